/* For everybody: the switch of colours, the way past the header, names that Gradio's buttons lack, and what a screen
   reader hears of a page that changes ten times a second: a line when something begins, ends or fails. */
import { all, find, on, recall, remember, seen } from "./stream.js";

const root = document.documentElement;

// -------------------- light, dark, or as the system is: remembered by this browser

const KEPT = "triforce-colours";
const CHOICES = ["light", "dark", "system"];
const system = matchMedia("(prefers-color-scheme: dark)");

let chosen = CHOICES.includes(recall(KEPT)) ? recall(KEPT) : ""; // "": never chosen, Gradio follows the system

function paint() {
  root.dataset.colours = chosen || "system";
  if (chosen) {
    const dark = chosen === "dark" || (chosen === "system" && system.matches);
    document.body.classList.toggle("dark", dark);
  }
  root.style.colorScheme = document.body.classList.contains("dark") ? "dark" : "light";
}

function choose(choice) {
  chosen = choice;
  remember(KEPT, choice);
  paint();
  press();
}

function press() {
  for (const button of all(".colours button")) {
    button.setAttribute("aria-pressed", String(button.dataset.colours === root.dataset.colours));
  }
}

// -------------------- names of Gradio's own parts that have none, and no live region of every word

const NAMES = { drop: "Open books", "library-drop": "Add to the library" };

function name() {
  for (const [id, label] of Object.entries(NAMES)) find(`#${id} button[aria-dropeffect]`)?.setAttribute("aria-label", label);
}

// -------------------- what is said: the first line of a state, not each of its numbers

const TOLD = ["#strip .status", "#book .step > p:first-child", "#race-board .status", ".going-on > div p"];
const kinds = new Map(); // by selector: the words of the last line, without its numbers
const announcer = Object.assign(document.createElement("div"), { id: "announcer" });
announcer.setAttribute("role", "status");

function say() {
  if (!announcer.isConnected) document.body.append(announcer);
  for (const selector of TOLD) {
    const element = find(selector);
    const text = element?.textContent.trim() ?? "";
    const kind = text.replace(/[\d.,:]+/g, "");
    if (kinds.get(selector) === kind) continue;
    const first = !kinds.has(selector);
    kinds.set(selector, kind);
    if (text && !first) announcer.textContent = text;
  }
}

// -------------------- the page changes: looked at four times a second at most

let due = false;
function changed() {
  if (due) return;
  due = true;
  setTimeout(() => {
    due = false;
    press();
    name();
    say();
  }, 250);
}

paint();
changed();
new MutationObserver(changed).observe(document.body, { childList: true, subtree: true, characterData: true });
new MutationObserver(paint).observe(document.body, { attributeFilter: ["class"] });
system.addEventListener("change", paint);

// -------------------- clicks

on("click", ".colours button", (button) => choose(button.dataset.colours));
on("click", "a.skip", (_, event) => {
  event.preventDefault();
  const question = find("#question textarea");
  const panel = all("[role=tabpanel]").find(seen);
  if (seen(question)) return question.focus();
  if (!panel) return;
  panel.tabIndex = -1;
  panel.focus();
});
