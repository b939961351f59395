/* Clicks on the shelf, on pages and on quotations: what was clicked, told to the server by the component it is in. */
"use strict";

(() => {
  const shelf = { act: "" };

  // An action belongs to a button with data-act, a page number with data-preview, or a form with data-choose.
  shelf.watch = (element, tell) => {
    const act = (action) => {
      shelf.act = action;
      tell();
    };
    element.addEventListener("click", (event) => {
      const button = event.target.closest("[data-act]");
      if (button && !button.disabled) act(button.dataset.act);
    });
    element.addEventListener("change", (event) => {
      const key = event.target.dataset.preview;
      if (key) act(`preview:${key}:${Math.max(1, Math.trunc(Number(event.target.value)) || 1)}`);
    });
    element.addEventListener("submit", (event) => {
      event.preventDefault();
      if (event.target.matches(".find")) return act(window.triforceFind(event.target));
      const key = event.target.dataset.choose;
      const typed = event.target.querySelector("input").value.trim();
      if (key && typed) act(`choose:${key}:${typed}`);
    });
    element.addEventListener("focusin", (event) => {
      element.focused = event.target.dataset?.act ?? null;
    });
    element.addEventListener("focusout", (event) => {
      if (event.target.isConnected) element.focused = null; // a redrawn button loses the focus without wanting to
    });
    element.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const bar = event.target.closest(".bar-page");
      if (!step || !bar) return;
      const bars = [...bar.parentElement.children];
      bars[bars.indexOf(bar) + step]?.focus();
      event.preventDefault();
    });
  };

  shelf.redrawn = (element) => {
    if (element.focused) element.querySelector(`[data-act="${CSS.escape(element.focused)}"]`)?.focus({ preventScroll: true });
    const text = element.querySelector(".page-text");
    const mark = text?.querySelector("mark");
    if (mark) text.scrollTop = mark.offsetTop - text.offsetTop - 40;
    if (text?.querySelector(".quoted")) element.scrollIntoView({ block: "nearest" }); // it was asked for further down
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("[data-tab]");
    if (!link) return;
    const tabs = [...document.querySelectorAll('#tabs [role="tab"]')];
    tabs.find((tab) => tab.textContent.trim() === link.dataset.tab)?.click();
  });

  window.triforceShelf = shelf;
})();
