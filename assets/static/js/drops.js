/* A file dropped anywhere on the page is opened as if it was dropped on the field for books; and the order of documents. */
"use strict";

(() => {
  const classes = document.documentElement.classList;
  const holdsFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  const ownField = (event) => event.target.closest?.("#drop, #library-drop"); // they take their files themselves

  document.addEventListener(
    "dragover",
    (event) => {
      if (!holdsFiles(event)) return;
      event.preventDefault(); // else the browser would leave the page for the file
      classes.toggle("dropping", !ownField(event));
    },
    true,
  );

  // -------------------- documents of the library, dragged to another place by their numbers

  let dragged = null;
  const place = (event) => dragged && event.target.closest?.("[data-row]");
  const mark = (row) => {
    for (const one of document.querySelectorAll("[data-row].goes-here")) one.classList.remove("goes-here");
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
    let watched = row; // the element that acts.js watches
    while (!watched.act) watched = watched.parentElement;
    watched.act(`move:${dragged.dataset.drag}:${row.dataset.row}`);
  });
  document.addEventListener("dragend", () => {
    mark(null);
    dragged = null;
  });

  document.addEventListener(
    "dragleave",
    (event) => {
      if (!event.relatedTarget) classes.remove("dropping");
    },
    true,
  );

  document.addEventListener(
    "drop",
    (event) => {
      classes.remove("dropping");
      if (!holdsFiles(event) || ownField(event)) return;
      event.preventDefault();
      event.stopPropagation(); // the question box would take it for an attachment
      const field = document.querySelector("#drop input[type=file]");
      if (!field) return;
      field.files = event.dataTransfer.files;
      field.dispatchEvent(new Event("change", { bubbles: true }));
    },
    true,
  );
})();
