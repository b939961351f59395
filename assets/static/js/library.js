/* The tab Library, and what is offered elsewhere of it: Find, the order of documents, which parts are read. */
"use strict";

(() => {
  const page = window.triforcePage;
  const find = (selector, from = document) => from.querySelector(selector);
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];

  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("[data-tab]");
    if (link) goTo(link.dataset.tab);
  });

  const goTo = (name) => all('#tabs [role="tab"]').find((tab) => tab.textContent.trim() === name)?.click();

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.matches(".find")) search(form);
    else if (form.matches(".checklist")) {
      const parts = parted(form);
      if (parts) page.act(parts);
    } else if (form.dataset.choose) {
      const typed = find("input", form).value.trim();
      if (typed) page.act(`choose:${form.dataset.choose}:${typed}`);
    }
  });

  // -------------------- Find: Enter, the button, another choice, an emptied field, more hits

  const field = () => find("#find input[type=search]");
  const hits = () => all("#found .hit");

  function search(form, number = form.dataset.find) {
    const options = all(":checked", form).map((box) => box.name).join(",");
    page.act(`find:${number}:${options}:${field().value}`);
  }

  document.addEventListener("change", (event) => {
    const form = event.target.closest?.("form.find");
    if (form && event.target.type === "checkbox" && field().value.trim()) search(form);
  });
  document.addEventListener("input", (event) => {
    if (event.target === field() && !field().value) search(field().form);
  });
  document.addEventListener("click", (event) => {
    const more = event.target.closest?.("[data-find-more]");
    const hit = event.target.closest?.("#found .hit");
    if (more) search(field().form, more.dataset.findMore);
    if (event.target.closest?.("[data-find-open]")) open();
    if (hit) for (const other of hits()) other.toggleAttribute("aria-current", other === hit);
  });

  function open() {
    goTo("Library");
    if (field()?.offsetParent) choose(); // what is typed at once is not lost
    else requestAnimationFrame(choose);
  }

  function choose() {
    field()?.focus();
    field()?.select();
  }

  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || document.documentElement.classList.contains("presenting") || event.altKey) return;
    const command = event.ctrlKey || event.metaKey;
    const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
    const hit = event.target.closest?.("#found .hit");
    const inField = event.target === field();
    if (command && event.shiftKey && event.key.toLowerCase() === "f") open();
    else if (field()?.offsetParent && !typing && !command && event.key === "/") open();
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

  // -------------------- documents, dragged to another place by their numbers

  let dragged = null;
  const place = (event) => dragged && event.target.closest?.("[data-row]");
  const mark = (row) => {
    for (const one of all("[data-row].goes-here")) one.classList.remove("goes-here");
    row?.classList.add("goes-here");
  };

  document.addEventListener("dragstart", (event) => {
    dragged = event.target.closest?.("[data-drag]") ?? null;
    if (dragged) event.dataTransfer.setData("text/plain", dragged.textContent);
  });
  document.addEventListener("dragover", (event) => {
    if (!place(event)) return;
    event.preventDefault();
    mark(place(event));
  });
  document.addEventListener("drop", (event) => {
    const row = place(event);
    if (!row) return;
    event.preventDefault();
    page.act(`move:${dragged.dataset.drag}:${row.dataset.row}`);
  });
  document.addEventListener("dragend", () => {
    mark(null);
    dragged = null;
  });

  // -------------------- choosing what is read of a library that is too long: ticks, their total, and what the button sends

  const count = (number) => number.toLocaleString("en");

  const boxes = (book) => all("[name=chapter]", book);
  const above = (path) => path.slice(0, path.lastIndexOf(".") + 1); // "2." of "2.1", "" of "2"

  // [[0, 1, 2], [4]] of [0, 1, 2, 4]: positions that follow each other, as long as `together` holds of neighbours
  function runs(sorted, together = () => true) {
    const found = [];
    for (const at of sorted) {
      if (found.at(-1)?.at(-1) === at - 1 && together(at - 1, at)) found.at(-1).push(at);
      else found.push([at]);
    }
    return found;
  }

  // The pages that parts stand on; neighbours may share one.
  const pagesOf = (parts) => new Set(parts.flatMap(([, , first, last]) => Array.from({ length: last - first + 1 }, (_, at) => first + at))).size;

  // The tokens and pages of what is ticked of a document, and its name for the server; null: nothing.
  function ofBook(book, costs, leftOut) {
    const whole = { tokens: costs.whole, pages: costs.num_pages, part: "all" };
    if (costs.parts) {
      const places = new Map(costs.parts.map(([path], at) => [path, at]));
      const ticked = boxes(book).filter((box) => box.checked).map((box) => places.get(box.value));
      if (!ticked.length) return null;
      if (ticked.length === costs.parts.length) return whole;
      const tokens = ticked.reduce((sum, at) => sum + costs.parts[at][1], leftOut * (runs(ticked).length - 1));
      const path = (at) => costs.parts[at][0];
      const named = runs(ticked, (a, b) => above(path(a)) === above(path(b)));
      const names = named.map((run) => (run.length === 1 ? path(run[0]) : `${path(run[0])}-${path(run.at(-1))}`));
      return { tokens, pages: pagesOf(ticked.map((at) => costs.parts[at])), part: `c${names.join(",")}` };
    }
    if (!find("[name=book]", book).checked) return null;
    const [first, last] = all("[type=number]", book).map((field) => Number(field.value));
    const most = costs.pages.length - 1;
    if (first === undefined || (first === 1 && last === most)) return whole;
    if (!(Number.isInteger(first) && Number.isInteger(last) && 1 <= first && first <= last && last <= most)) return { bad: true };
    return { tokens: costs.pages[last] - costs.pages[first - 1], pages: last - first + 1, part: `#${first}-#${last}` };
  }

  // The total in pages, and how much of the room they take; the tokens by which it is judged are in the tooltip.
  function said({ kept, tokens, room, closed }) {
    const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
    const pages = kept.reduce((sum, one) => sum + one.pages, 0);
    const share = (100 * tokens) / Math.max(room, 1);
    const fits = tokens <= room ? `fits, ${Math.max(1, Math.floor(share))}% of the room` : `does not fit, ${count(Math.max(101, Math.ceil(share)))}% of the room`;
    return `${plural(pages, "page")} ticked: ${fits}${closed ? ` · closes ${plural(closed, "document")}` : ""}`;
  }

  // All that is ticked: what it costs together, and how it is called.
  function total(form) {
    const sums = JSON.parse(form.dataset.sums);
    const found = all("[data-book]", form).map((book) => {
      const costs = sums.books[book.dataset.book];
      return { ...ofBook(book, costs, sums.left_out), key: book.dataset.book, costs };
    });
    const kept = found.filter((one) => one.part || one.bad);
    const tokens = kept.reduce(
      (sum, one, at) => sum + (one.tokens ?? 0) + (at ? one.costs.before : 0) + (at < kept.length - 1 ? one.costs.after : 0),
      0,
    );
    return { kept, tokens, room: sums.room, bad: kept.some((one) => one.bad), closed: found.length - kept.length };
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
    const sum = total(form);
    const { kept, tokens, room, bad } = sum;
    const output = find("output", form);
    const fits = !bad && kept.length > 0 && tokens <= room;
    const text = bad ? "These pages are not in the document." : kept.length ? said(sum) : "Nothing is ticked.";
    if (output.textContent !== text) output.textContent = text;
    output.title = `${count(tokens)} of ${count(room)} tokens`;
    output.className = fits ? "fits" : "not";
    find(".go", form).disabled = !fits;
  }

  function changed(event) {
    const form = event.target.closest?.("form.checklist");
    if (!form) return;
    const book = event.target.closest("[data-book]");
    if (event.target.name === "book") {
      const possible = boxes(book).filter((box) => !box.disabled);
      const tick = !possible.every((box) => box.checked);
      for (const box of possible) box.checked = tick;
    }
    show(form);
  }

  document.addEventListener("input", changed);

  function parted(form) {
    const { kept, tokens, room, bad } = total(form);
    return bad || !kept.length || tokens > room ? "" : `parts:_:${kept.map(({ key, part }) => `${key}=${part}`).join(";")}`;
  }

  page.watch((names) => {
    const form = names.includes("choosing") && find("form.checklist");
    if (form) show(form); // its total; nothing moves the focus
  });

  document.addEventListener("click", (event) => {
    if (event.target.closest?.("[data-choosing]")) find("#choosing-title")?.focus();
  });
})();
