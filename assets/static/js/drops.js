/* A file dropped anywhere on the page is opened as if it was dropped on the field for books; of folders, their files, as if
   each was dropped, named by their paths. */

const MOST_FILES = 1000; // as on the command line
const classes = document.documentElement.classList;
const holdsFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
const fieldOf = (event) => event.target.closest?.("#drop, #library-drop");

const called = (find) => new Promise((done) => find(done, () => done(null))); // null: it cannot be read

/* Files of an entry and of all below it, but for hidden ones; the server puts them into natural order by their names. */
async function files(entry, path = "") {
  if (entry.name.startsWith(".")) return [];
  if (!entry.isDirectory) {
    const file = await called((done, fail) => entry.file(done, fail));
    return [file && path ? new File([file], path + file.name, { type: file.type }) : file].filter(Boolean);
  }
  const [reader, found] = [entry.createReader(), []];
  for (let some; found.length <= MOST_FILES && (some = await called((done, fail) => reader.readEntries(done, fail)))?.length; )
    for (const one of some) found.push(...(await files(one, `${path}${entry.name} - `)));
  return found;
}

const inputOf = (field) => field?.querySelector("input[type=file]"); // none while Gradio takes other files

async function hand(field, found) {
  if (found.length > MOST_FILES) return alert(`This holds more than ${MOST_FILES} files. Open fewer at once; nothing was opened.`);
  if (!field || !found.length) return;
  while (!inputOf(field)) await new Promise((again) => setTimeout(again, 100));
  const input = inputOf(field);
  const carried = new DataTransfer();
  for (const file of found) carried.items.add(file);
  input.files = carried.files;
  input.dispatchEvent(new Event("change", { bubbles: true }));
}

function over(event) {
  if (!holdsFiles(event)) return;
  event.preventDefault(); // else the browser would leave the page for the file
  classes.toggle("dropping", !fieldOf(event));
}

async function drop(event) {
  classes.remove("dropping");
  if (!holdsFiles(event)) return;
  const plain = [...event.dataTransfer.files];
  const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const hasFolder = entries.some((entry) => entry.isDirectory);
  if (inputOf(fieldOf(event)) && !hasFolder) return; // Gradio takes files
  event.preventDefault();
  event.stopImmediatePropagation();
  hand(fieldOf(event) ?? document.querySelector("#drop"), hasFolder ? (await Promise.all(entries.map((entry) => files(entry)))).flat() : plain);
}

addEventListener("dragover", over, true);
addEventListener("dragleave", (event) => event.relatedTarget || classes.remove("dropping"), true);
addEventListener("drop", drop, true);
