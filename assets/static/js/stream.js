/* The page is a function of one state. One stream brings the state; places marked data-part show its parts; what the
   reader does is an act, one request each. Nothing else draws what the server knows. */

const ATTEMPTS = 8; // to send an act
const SILENT_MS = 5000; // without a sign of life the program does not answer
const JUST_MS = 2000; // ago
export const state = new Map(); // parts by name
export const drawers = new Map(); // by the beginning of a name: how a part is drawn that is not HTML
const root = document.documentElement;
const watchers = new Set(); // told of the names that changed
export const watch = (watcher) => watchers.add(watcher);

export const find = (selector, from = document) => from.querySelector(selector);
export const all = (selector, from = document) => [...from.querySelectorAll(selector)];

export const seen = (element) => element && element.offsetParent !== null;
export const presenting = () => root.classList.contains("presenting"); // it has keys of its own
export const typing = ({ target }) => target.closest?.("input, textarea, select, [contenteditable]");

// What happens to, or in, an element of a kind, however often the element is drawn anew: `run(element, event)`.
export function on(kind, selector, run, capture = false) {
  const found = (event) => event.target.closest?.(selector);
  document.addEventListener(kind, (event) => found(event) && run(found(event), event), capture);
}

// What this browser remembers: any value, or a text as an earlier version kept it; null: nothing.
export const recall = (key) => {
  const text = localStorage.getItem(key);
  return text?.match(/^[a-z]+$/) ? text : JSON.parse(text);
};
export const remember = (key, value) => localStorage.setItem(key, JSON.stringify(value));

// -------------------- whose page it is: a reload keeps its session, a second tab gets its own

const hex = (bytes) => [...crypto.getRandomValues(new Uint8Array(bytes))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
export function session() {
  let id = sessionStorage.getItem("triforce-session");
  if (!id) sessionStorage.setItem("triforce-session", (id = hex(16)));
  return id;
}

// -------------------- drawing

const kept = (node) => node.nodeType === 1 && node.matches("[data-keep]");
const ownOf = (node) => (["radio", "checkbox"].includes(node.type) ? "checked" : "value");
const MORPH = {
  morphStyle: "innerHTML",
  callbacks: {
    beforeNodeMorphed: (old, now) => !(old.nodeType === 1 && old.matches("[data-live]") && now.matches?.("[data-live]")),
    beforeAttributeUpdated: (name, node) => !(kept(node) && (name === ownOf(node) || name === "open")), // the reader's own
  },
};

export const morph = (element, html) => Idiomorph.morph(element, html, MORPH);
const drawerOf = (name) => drawers.get(name) ?? drawers.get(name.slice(0, name.search(/[:.]/) + 1));

function draw(name, before, whole) {
  const drawer = drawerOf(name);
  if (drawer) return drawer(state.get(name), name, before);
  for (const element of all(`[data-part="${CSS.escape(name)}"]`)) {
    const elsewhere = whole && !state.has(name) && !element.offsetParent; // on a tab that is not seen: it stays for the return
    if (!elsewhere) show(element, state.get(name) ?? "");
  }
}

function show(element, html) {
  if (element.shown === html) return;
  element.shown = html;
  const block = element.closest(".block");
  if (block && all("[data-part]", block).length === 1) block.classList.toggle("vacant", html === "");
  morph(element, html);
}

// Gradio has put places on the page, perhaps long after their parts have come: a tab is made when it is first seen.
export function mounted(element) {
  for (const place of all("[data-part]", element)) {
    const name = place.dataset.part;
    if (!drawerOf(name) && (state.has(name) || !place.innerHTML)) show(place, state.get(name) ?? "");
  }
  for (const [name, drawer] of drawers) {
    if (state.has(name)) drawer(state.get(name), name);
    else for (const part of state.keys()) if (drawerOf(part) === drawer) drawer(state.get(part), part);
  }
  changed([...state.keys()]);
}

function changed(names) {
  for (const watcher of watchers) watcher(names);
}

// -------------------- the stream

let source = null;
let heard = 0;
let acted = 0; // when the last act was done: what it began may not have been told yet
const lost = []; // acts that did not arrive: they go out again with the next sign of life

function take({ parts, whole }) {
  const names = Object.keys(parts);
  const before = new Map(whole ? [] : names.map((name) => [name, state.get(name)]));
  if (whole) {
    const places = all("[data-part]").map((place) => place.dataset.part);
    for (const name of new Set([...state.keys(), ...places])) if (!(name in parts)) names.push(name);
    for (const name of names) if (!(name in parts)) state.delete(name);
  }
  for (const [name, value] of Object.entries(parts)) {
    if (value === null) state.delete(name);
    else if (typeof value === "object" && "+" in value) state.set(name, state.get(name).concat(value["+"]));
    else state.set(name, value);
  }
  for (const name of names) draw(name, before.get(name), whole);
  if (names.length) changed(names);
}

const tab = () => find('#tabs [role="tab"][aria-selected="true"]')?.textContent.trim().toLowerCase() || "read";

function connect() {
  source?.close();
  source = new EventSource(`page/state?session=${session()}&tab=${tab()}`);
  source.tab = tab();
  // Refused: another start of the program wants the password again
  source.onerror = () => source.readyState === EventSource.CLOSED && fetch("page/file").then(({ status }) => status === 401 && location.reload(), () => {});
  source.onmessage = ({ data }) => {
    heard = performance.now();
    source.told = true;
    root.classList.remove("silent");
    for (const again of lost.splice(0)) again();
    take(JSON.parse(data));
    rest();
  };
}

// A browser has six connections to a program: a tab that nobody sees gives its own back, once nothing goes on in it.
const busy = () => ["answering", "racing", "reading", "loading"].some((name) => state.get("flags")?.includes(name));
function rest() {
  if (document.hidden && !busy() && source.told && performance.now() - acted > JUST_MS) source.close();
  else if (!document.hidden && source.readyState === EventSource.CLOSED) connect();
}
document.addEventListener("visibilitychange", () => {
  if (heard) heard = performance.now(); // while nobody looked, nothing was expected
  rest();
});

// A tab that the reader opens has parts of its own.
new MutationObserver(() => source.tab !== tab() && connect()).observe(root, { attributeFilter: ["aria-selected"], childList: true, subtree: true });

setInterval(() => {
  rest(); // refused: the program is on its way up or down
  root.classList.toggle("silent", !document.hidden && heard > 0 && performance.now() - heard > SILENT_MS);
}, 1000);

// -------------------- acts: each has an id and is done once, however often it is sent

// Acts of one verb go out one after the other: of two searches the later one is the last that the server does.
const last = new Map(); // by verb
export function act(name, values = {}) {
  const [verb] = name.split(":", 1);
  const sent = Promise.resolve(last.get(verb)).then(() => post(name, values));
  last.set(verb, sent);
  sent.then(() => {
    acted = performance.now();
    if (source.readyState === EventSource.CLOSED) connect(); // a hidden page, which may have begun something
  });
  return sent;
}

async function post(name, values) {
  const body = JSON.stringify({ session: session(), id: hex(12), act: name, values });
  for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
    if (attempt) await new Promise((again) => lost.push(again));
    try {
      const answer = await fetch("page/act", { method: "POST", headers: { "Content-Type": "application/json" }, body, keepalive: body.length < 60000 });
      if (answer.ok) return await answer.json();
      if (answer.status < 500) return false;
    } catch {
      // the connection broke: once more
    }
  }
  return false;
}

// Whether a text could be copied: not where it is not allowed, as on a page that came over plain HTTP.
export const copy = (text) => Promise.resolve(navigator.clipboard?.writeText(text) ?? Promise.reject()).then(() => true, () => false);

// Other words on a button, until the reader does something else.
const reworded = new Map(); // by button: its label and title before
export function reword(button, label, title = button.title) {
  if (!reworded.has(button)) reworded.set(button, [button.textContent, button.title]);
  [button.textContent, button.title] = [label, title];
}

function restore({ target }) {
  for (const [button, before] of reworded) {
    if (button.contains(target)) continue;
    [button.textContent, button.title] = before;
    button.classList.remove("armed");
    reworded.delete(button);
  }
}
for (const kind of ["pointerdown", "focusin"]) document.addEventListener(kind, restore, true);

// What cannot be undone takes a second press.
function armed(button) {
  if (button.classList.contains("armed")) return true;
  reword(button, `${button.textContent}?`, "Press again to delete for good");
  button.classList.add("armed");
  return false;
}

let standing = () => ({}); // what is sent with every press
export const sendWith = (values) => (standing = values);

// Between press and release of the mouse a button may be drawn anew: what it stood for when it was pressed is done. Or it
// may move, or go: a browser then clicks what lies around, though the hand was still; the button is clicked here.
const STILL = 4; // pixels that a still hand moves
let pressed = null;
document.addEventListener("pointerdown", ({ target, clientX, clientY, button: key }) => {
  const button = key === 0 ? target.closest?.("button:enabled") : null;
  pressed = button && { button, act: button.dataset.act, x: clientX, y: clientY };
});
document.addEventListener("pointerup", ({ target, clientX, clientY }) => {
  if (!pressed || pressed.button.contains(target) || Math.hypot(clientX - pressed.x, clientY - pressed.y) > STILL) return;
  if (pressed.act && !("armed" in pressed.button.dataset)) act(pressed.act, standing());
  else pressed.button.click();
});

on("click", "[data-act], [data-save]", (button, event) => {
  if (button.disabled) return;
  if ("armed" in button.dataset && (event.detail > 1 || !armed(button))) return; // a double click is no second thought
  if (button.dataset.save) return save(button.dataset.save);
  act(event.detail && pressed?.button === button ? pressed.act : button.dataset.act, standing());
});

on("change", "[data-act-change]", (field) => act(field.dataset.actChange, { value: field.value }));
on("submit", "form", (_, event) => event.preventDefault());
on("submit", "[data-submit]", (form) => {
  const field = find("input", form);
  act(`${form.dataset.submit}:${field.value.trim()}`).then((done) => done && (field.value = ""));
});

// Enter sends what stands in a box; Shift and Enter begin a line.
on("keydown", "form textarea", (box, event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  box.form.requestSubmit();
});

export function save(what) {
  const link = document.createElement("a");
  link.href = `page/file?session=${session()}&what=${encodeURIComponent(what)}`;
  link.download = "";
  link.click();
}

// -------------------- files: Gradio has stored them

export const opening = new Set();
export function opened(files) {
  const paths = [files ?? []].flat().map((file) => file.path);
  if (paths.length) {
    const sent = act("open", { files: paths });
    opening.add(sent);
    sent.finally(() => opening.delete(sent));
  }
  return null; // empties the field
}

// -------------------- what the whole page shows

let flags = [];
drawers.set("flags", (names = []) => {
  root.classList.remove(...flags.filter((name) => !names.includes(name)));
  root.classList.add(...names);
  flags = names;
});

drawers.set("title", (title = "") => {
  if (title && document.title !== title) document.title = title;
});

// The end of a long reading that nobody sees, where the reader has asked to be told.
const mayNotify = () => root.classList.toggle("may-ask", globalThis.Notification?.permission === "default");
mayNotify();
on("click", "[data-notify]", () => Notification.requestPermission().then(mayNotify));
drawers.set("read", (title, _, before) => {
  if (title && before === "" && document.hidden && globalThis.Notification?.permission === "granted")
    new Notification("The book is read", { body: title, tag: "read" }).onclick = () => window.focus();
});

window.triforcePage = { mounted, opened, session }; // for Gradio, and for measurements

connect();
