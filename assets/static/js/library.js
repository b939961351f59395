/* The tab Library, and what is offered elsewhere of it: Find, the order of documents, which parts are read. */
import { act, all, drawers, find, on, presenting, seen, state, typing, watch } from "./stream.js";

const goTo = (name) => all('#tabs :is([role="tab"], .overflow-dropdown button)').find((tab) => tab.textContent.trim() === name)?.click();
on("click", "[data-tab]", (link) => goTo(link.dataset.tab));

on("submit", "form.find", (form) => search(form));
on("submit", "form.checklist", (form) => act(`parts:_:${ticked(form)}`));
on("submit", "[data-choose]", (form) => {
  const typed = find("input", form).value.trim();
  if (typed) act(`choose:${form.dataset.choose}:${typed}`);
});

// -------------------- Find: Enter, the button, another choice, an emptied field, more hits

const field = () => find("#find input[type=search]");
const hits = () => all("#found .hit");

function search(form) {
  const options = all(":checked", form).map((box) => box.name).join(",");
  act(`find:${form.dataset.find}:${options}:${field().value}`);
}

on("change", "form.find [type=checkbox]", (box) => field().value.trim() && search(box.form));
on("input", "#find input[type=search]", () => field().value || search(field().form));
on("click", "[data-find-open]", () => open());
on("click", "#found .hit", (hit) => hits().forEach((other) => other.toggleAttribute("aria-current", other === hit)));

function open() {
  goTo("Library");
  if (seen(field())) choose(); // what is typed at once is not lost
  else requestAnimationFrame(choose);
}

function choose() {
  field()?.focus();
  field()?.select();
}

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || presenting() || event.altKey) return;
  const command = event.ctrlKey || event.metaKey;
  const hit = event.target.closest?.("#found .hit");
  const inField = event.target === field();
  if (command && event.shiftKey && event.key.toLowerCase() === "f") open();
  else if (seen(field()) && !typing(event) && !command && event.key === "/") open();
  else if (event.key === "Escape" && hit) field().focus();
  else if (event.key === "Escape" && inField && field().value) {
    field().value = "";
    search(field().form);
  } else if ((hit || inField) && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    const to = hits().indexOf(hit) + (event.key === "ArrowDown" ? 1 : -1);
    if (to === -1) field().focus();
    else hits()[to]?.focus();
  } else return;
  event.preventDefault();
});

// -------------------- choosing what is read of a library that is too long: ticks; the server tells what they cost

const boxes = (book) => all("[name=chapter]", book);
const above = (path) => path.slice(0, path.lastIndexOf(".") + 1); // "2." of "2.1", "" of "2"

// How the server calls what is ticked of a document; "": nothing.
function partOf(book) {
  const [chapters, pages] = [boxes(book), all("[type=number]", book).map((field) => field.value)];
  if (!chapters.length) return !find("[name=book]", book).checked ? "" : pages.length ? `#${pages[0]}-#${pages[1]}` : "all";
  if ("whole" in book.dataset && chapters.every((box) => box.checked)) return "all";
  const runs = []; // of neighbours below one chapter
  chapters.forEach((box, at) => {
    const before = chapters[at - 1];
    if (box.checked && before?.checked && above(before.value) === above(box.value)) runs.at(-1)[1] = box.value;
    else if (box.checked) runs.push([box.value, box.value]);
  });
  return runs.length ? `c${runs.map(([first, last]) => (first === last ? first : `${first}-${last}`)).join(",")}` : "";
}

function ticked(form) {
  const parts = all("[data-book]", form).map((book) => [book.dataset.book, partOf(book)]);
  return parts.filter(([, part]) => part).map((pair) => pair.join("=")).join(";");
}

function show(form) {
  for (const book of all("[data-book]", form)) {
    const [whole, chapters] = [find("[name=book]", book), boxes(book)];
    if (!chapters.length) continue;
    for (const divided of all("details", book)) {
      const parts = boxes(divided);
      const ticked = parts.filter((box) => box.checked).length;
      find("summary em", divided).textContent = ticked ? `${ticked} of ${parts.length} parts` : `${parts.length} parts`;
    }
    const ticked = chapters.filter((box) => box.checked).length;
    whole.checked = ticked === chapters.length;
    whole.indeterminate = ticked > 0 && !whole.checked;
  }
  tell();
  act(`tick:${ticked(form)}`);
}

function tell() {
  const [form, total] = [find("form.checklist"), state.get("ticked")];
  if (!form || !total) return;
  const output = find("output", form);
  if (output.textContent !== total.said) output.textContent = total.said;
  output.title = total.tokens;
  output.className = total.fits ? "fits" : "not";
  find(".go", form).disabled = !total.fits;
}
drawers.set("ticked", tell);

on("input", "form.checklist", (form, event) => {
  const book = event.target.closest("[data-book]");
  if (event.target.name === "book") {
    const possible = boxes(book).filter((box) => !box.disabled);
    const tick = !possible.every((box) => box.checked);
    for (const box of possible) box.checked = tick;
  }
  show(form);
});

watch((names) => {
  const form = names.includes("choosing") && find("form.checklist");
  if (form) show(form); // nothing moves the focus
});

on("click", "[data-choosing]", () => {
  goTo("Read");
  requestAnimationFrame(() => find("#choosing-title")?.focus());
});
