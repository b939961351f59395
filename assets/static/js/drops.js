/* A file dropped anywhere on the page is opened as if it was dropped on the field for books. */
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
