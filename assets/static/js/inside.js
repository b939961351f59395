/* The tab Inside: a note on every token, and the report of the tab System. */
"use strict";

(() => {
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
  document.addEventListener("mouseover", (event) => explain(tokenOf(event)));
  document.addEventListener("focusin", (event) => explain(tokenOf(event)));
  document.addEventListener("focusout", () => explain(null));
  document.addEventListener("scroll", () => explain(null), true);
  document.addEventListener("click", (event) => tokenOf(event)?.focus());
  document.addEventListener("keydown", (event) => {
    const text = event.target.closest?.(".written");
    if (!text) return;
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

  // -------------------- the report of the system

  const page = window.triforcePage;
  const box = () => document.querySelector("#system-report");
  page.drawers.set("report", (text = "") => box() && box().value !== text && (box().value = text));

  document.addEventListener("click", async (event) => {
    if (!event.target.closest?.("[data-copy-report]")) return;
    try {
      await navigator.clipboard.writeText(box().value);
    } catch {
      box().select(); // not allowed, or the page came over plain HTTP from another machine
      document.execCommand("copy");
    }
    document.querySelector("#system-copied").textContent = "Copied.";
  });
})();
