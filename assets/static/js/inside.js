/* The tab Inside: a note on every token, and the report of the tab System. */
import * as page from "./stream.js";

// -------------------- who wrote a token: one note for all of them, kept inside the window

const note = document.createElement("div");
note.id = "token-note";
note.setAttribute("role", "tooltip");
note.hidden = true;

function explain(token) {
  note.hidden = !token;
  if (!token) return;
  if (!note.isConnected) document.body.append(note);
  const [who, how] = token.dataset.tip.split("|");
  note.replaceChildren(Object.assign(document.createElement("b"), { textContent: who }), how);
  token.setAttribute("aria-describedby", note.id);
  const [box, size] = [token.getClientRects()[0], note.getBoundingClientRect()];
  const left = Math.min(Math.max(8, box.left + box.width / 2 - size.width / 2), innerWidth - size.width - 8);
  const above = box.top - size.height - 6;
  note.style.left = `${left}px`;
  note.style.top = `${above > 8 ? above : box.bottom + 6}px`;
}

const tokenOf = (event) => event.target.closest?.(".written [data-tip]") ?? null;
for (const kind of ["mouseover", "focusin"]) document.addEventListener(kind, (event) => explain(tokenOf(event)));
for (const kind of ["focusout", "scroll"]) document.addEventListener(kind, () => explain(null), true);
page.on("click", ".written [data-tip]", (token) => token.focus());
page.on("keydown", ".written", (text, event) => {
  if (event.key === "Escape") return explain(null);
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const tokens = [...text.querySelectorAll("[data-tip]")];
  const now = tokens.indexOf(document.activeElement);
  const next = tokens[now < 0 ? 0 : now + step];
  next?.focus({ preventScroll: true });
  next?.scrollIntoView({ block: "nearest" });
  if (next) explain(next);
  event.preventDefault();
});

// -------------------- the report of the system: what its tab shows, but for where data lies, as text

const box = () => page.find("#system-report");
const words = (node) => node.textContent.replace(/\s+/g, " ").trim();
const line = (row) => {
  const because = page.all(".because", row).map((reason) => ` (${words(reason)})`);
  const [name, ...values] = [...row.children].map((cell) => words(page.find(".because", cell) ? cell.firstChild : cell));
  return `${`${name}:`.padEnd(20)} ${values.join(", ")}${because.join("")}`;
};
const card = (sheet) => [words(page.find("h3", sheet)), ...page.all(".bar-line, tr", sheet).map(line)].join("\n");

function report() {
  const head = [`TriForce Reader, ${new Date().toISOString().slice(0, 16)}`, ...page.all("#system-view :is(.status, .problem)").map(words)].join("\n");
  return [head, ...page.all("#system-view .sheet:not([data-private])").map(card)].join("\n\n");
}
page.watch((names) => names.includes("system") && box() && (box().value = report()));

page.on("click", "[data-copy-report]", async () => {
  if (!(await page.copy(box().value))) {
    box().select();
    document.execCommand("copy");
  }
  page.find("#system-copied").textContent = "Copied.";
});
