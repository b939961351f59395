/* Find on the Library tab: its keys, and what a search is; the component of the field sends it (acts.js). */
"use strict";

(() => {
  const find = (selector, from = document) => from.querySelector(selector);
  const field = () => find("#find input[type=search]");
  const hits = () => [...document.querySelectorAll("#found .hit")];

  window.triforceFind = (form) => {
    const options = [...form.querySelectorAll(":checked")].map((box) => box.name).join(",");
    return (window.triforceFind.newest = `find:${form.dataset.find}:${options}:${field().value}`);
  };

  // -------------------- a search: Enter, the button, another choice, an emptied field, more hits

  document.addEventListener("change", (event) => {
    const form = event.target.closest?.("form.find");
    if (form && event.target.type === "checkbox" && field().value.trim()) form.requestSubmit();
  });

  document.addEventListener("input", (event) => {
    const form = event.target.closest?.("form.find");
    if (form && event.target === field() && !field().value) form.requestSubmit();
  });

  document.addEventListener("click", (event) => {
    const more = event.target.closest?.("[data-find-more]");
    const hit = event.target.closest?.("#found .hit");
    if (more) showMore(find("form.find"), more.dataset.findMore);
    if (event.target.closest?.("[data-find-open]")) open();
    if (hit) for (const other of hits()) other.toggleAttribute("aria-current", other === hit);
  });

  function showMore(form, number) {
    const usual = form.dataset.find;
    form.dataset.find = number;
    form.requestSubmit();
    form.dataset.find = usual;
  }

  // -------------------- keys

  function open() {
    [...document.querySelectorAll('#tabs [role="tab"]')].find((tab) => tab.textContent.trim() === "Library")?.click();
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
    const visible = field()?.offsetParent;
    if (command && event.shiftKey && event.key.toLowerCase() === "f") open();
    else if (visible && !typing && !command && event.key === "/") open();
    else if (event.key === "Escape" && hit) field().focus();
    else if (event.key === "Escape" && inField && field().value) {
      field().value = "";
      field().form.requestSubmit();
    } else if ((hit || inField) && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      const all = hits();
      const to = all.indexOf(hit) + (event.key === "ArrowDown" ? 1 : -1);
      if (to === -1) field().focus();
      else all[to]?.focus();
    } else return;
    event.preventDefault();
  });
})();
