/* A file dropped anywhere on the page is opened as if it was dropped on the field for books; of folders, their files. */
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

/* Folders: their files go to the upload as if each was dropped, named by their paths. */
(() => {
  const MOST_FILES = 1000; // as on the command line
  const isHidden = (name) => name.startsWith(".");

  const called = (find) => new Promise((done) => find(done, () => done(null))); // null: it cannot be read

  async function children(folder) {
    const reader = folder.createReader();
    const found = [];
    for (let some; (some = await called((done, fail) => reader.readEntries(done, fail)))?.length; ) found.push(...some);
    return found;
  }

  /* Files of entries and of the folders among them; the server puts them into natural order by their names. */
  async function files(entries, path = "", found = []) {
    for (const entry of entries) {
      if (isHidden(entry.name) || found.length > MOST_FILES) continue;
      if (entry.isDirectory) {
        await files(await children(entry), `${path}${entry.name} - `, found);
        continue;
      }
      const file = await called((done, fail) => entry.file(done, fail));
      if (file) found.push(path ? new File([file], path + file.name, { type: file.type }) : file);
    }
    return found;
  }

  async function hand(zone, entries) {
    const carried = new DataTransfer();
    const found = await files(entries);
    if (found.length > MOST_FILES) {
      alert(`This holds more than ${MOST_FILES} files. Open fewer at once; nothing was opened.`);
      return;
    }
    for (const file of found) carried.items.add(file);
    const input = zone.querySelector("input[type=file]");
    if (!input || !carried.files.length) return;
    input.files = carried.files;
    input.dispatchEvent(new Event("change", { bubbles: true }));
  }

  addEventListener(
    "drop",
    (event) => {
      const zone = event.target.closest?.("#drop, #library-drop");
      const entries = [...(event.dataTransfer?.items ?? [])].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
      if (!zone || !entries.some((entry) => entry.isDirectory)) return; // Gradio takes files
      event.preventDefault();
      event.stopImmediatePropagation();
      hand(zone, entries);
    },
    true,
  );
})();
