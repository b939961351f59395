/* The conversation, the question box and its keys. */
import * as page from "./stream.js";
import { act, drawers, find, on, state } from "./stream.js";
import { bare, html as markdown } from "./markdown.js";
import { now } from "./settings.js";

const log = () => find('#chat [data-part="chat"]');
const escaped = (text) => Object.assign(document.createElement("i"), { textContent: text }).innerHTML;

// -------------------- exchanges: each is drawn when it changes; the one in progress whenever it grows

const words = (text, inserted) => `<div class="prose">${markdown(text, inserted)}</div>`;
const asked = (question) => `<div class="bubble user"><p dir="auto">${escaped(question)}</p></div>`;
const thought = (title, text, open) =>
  `<details class="thought" data-keep${open ? " open" : ""}><summary>${escaped(title)}</summary>${words(text)}</details>`;

function drawn(one) {
  const said = one.text === undefined ? one.notice && `<p class="quiet notice">${escaped(one.notice)}</p>` : words(one.text, one.inserted);
  return `${asked(one.question)}${one.asked}${one.thought ? thought(...one.thought) : ""}${said ? `<div class="bubble bot">${said}</div>` : ""}${one.foot}`;
}

function drawnLive(one) {
  const [text, reasons] = [state.get("live.text") ?? "", state.get("live.thought") ?? ""];
  const body = one.wait === undefined ? text && words(text) : `<p class="pending">${one.wait}</p>`;
  return `${asked(one.question)}<div class="asked"></div>${one.thought ? thought(one.thought, reasons, !text.trim()) : ""}${body ? `<div class="bubble bot">${body}</div>` : ""}`;
}

function article(id) {
  return find(`[data-exchange="${CSS.escape(id)}"]`, log()) ?? Object.assign(document.createElement("article"), { className: "exchange" });
}

let atEnd = true; // the reader has not scrolled up
on("scroll", '#chat [data-part="chat"]', (place) => page.seen(place) && (atEnd = place.scrollHeight - place.scrollTop - place.clientHeight < 60), true);

function arrange() {
  const place = log();
  const chat = state.get("chat");
  if (!place || !chat) return;
  const first = !place.querySelector(".exchange");
  const live = state.get("live");
  const wanted = live ? [...chat.order, "live"] : chat.order;
  const nodes = wanted.map((id) => {
    const node = article(id);
    const value = id === "live" ? live : state.get(`exchange:${id}`);
    const html = id === "live" ? drawnLive(live) : value ? (node.value === value ? node.html : drawn(value)) : "";
    node.dataset.exchange = id;
    if (node.html !== html) page.morph(node, html);
    Object.assign(node, { value, html });
    return node;
  });
  for (const node of [...place.children]) if (!nodes.includes(node)) node.remove();
  if (chat.welcome) place.innerHTML === chat.welcome || (place.innerHTML = chat.welcome);
  nodes.forEach((node, at) => place.children[at] === node || place.insertBefore(node, place.children[at] ?? null));
  if (nodes.length && (atEnd || first)) place.scrollTop = place.scrollHeight;
}

let due = false;
const soon = () => {
  if (!due) requestAnimationFrame(() => ((due = false), arrange()));
  due = true;
};
for (const name of ["chat", "exchange:", "live", "live."]) drawers.set(name, soon);

// A chip whose page opens beside the chat stays in view, though the lines are shorter now.
let cited = null;
on("click", "#chat .quote.found", (chip) => (cited = chip));
page.watch((names) => {
  if (!cited || !names.includes("leaf")) return;
  const chip = cited;
  cited = null;
  requestAnimationFrame(() => chip.isConnected && chip.scrollIntoView({ block: "nearest" }));
});

// -------------------- copying an answer

on("click", "[data-copy]", (button) => {
  const text = state.get(`exchange:${button.dataset.copy}`)?.text;
  if (text) page.copy(bare(text)).then((done) => page.reword(button, done ? "Copied" : "Not allowed here"));
});

// -------------------- the question box: empty as soon as its question is sent, full again if that gets no answer

const PENDING = "triforce-question"; // a question on its way, until the program has taken or refused it
const box = () => find("#question textarea");
let sending = false;
let sent = null; // the last question, until it is given back

function fit() {
  const field = box();
  if (!field) return;
  field.style.height = "auto";
  if (field.scrollHeight) field.style.height = `${field.scrollHeight}px`; // 0 on a tab that is not seen
}

function write(text) {
  if (box()) box().value = text;
  fit();
}

const giveBack = (question) => write([question, box().value].filter((text) => text.trim()).join("\n")); // before what was typed since

function focus() {
  const field = box();
  field?.focus();
  field?.setSelectionRange(field.value.length, field.value.length);
}

const UPLOADING = ":is(#drop, #library-drop) .uploading";
async function filesAreThere() {
  const told = find("#ask .sending");
  while (find(UPLOADING) || page.opening.size) {
    told.hidden = false;
    await new Promise((again) => setTimeout(again, 100));
  }
  told.hidden = true;
}

async function ask(question) {
  if (sending || document.documentElement.classList.contains("answering")) return;
  sending = true;
  sent = question;
  const own = box().value === question;
  if (own) write("");
  sessionStorage.setItem(PENDING, question);
  await filesAreThere();
  const taken = await act("ask", { question, settings: now() });
  sessionStorage.removeItem(PENDING);
  sending = false;
  if (!taken && own) giveBack(question);
}

on("submit", "[data-question]", () => ask(box().value));
on("input", "#question textarea", fit);
on("click", "[data-ask]", (proposed) => ask(proposed.textContent));

// A text for the box is put there once: a question to change, or one that got no answer.
const DRAFT = "triforce-draft";
drawers.set("draft", (draft) => {
  if (!draft || !box() || sessionStorage.getItem(DRAFT) === draft[0]) return;
  sessionStorage.setItem(DRAFT, draft[0]);
  (draft[1] === sent ? giveBack : write)(draft[1]);
  sent = null;
  if (draft[1]) focus();
});

// A question that was on its way when the page went.
page.watch(() => {
  const question = sessionStorage.getItem(PENDING);
  if (!question || sending || !box()) return;
  sessionStorage.removeItem(PENDING);
  const last = state.get("live")?.question ?? state.get(`exchange:${state.get("chat")?.order.at(-1)}`)?.question;
  if (last !== question.trim() && !box().value) write(question);
});

// -------------------- the list of conversations

on("input", "#conv-search", (field) => act(`search:${field.value}`));
on("click", "#conversations .menu :is([data-save], [data-act])", (entry) => entry.closest("details").removeAttribute("open"));
document.addEventListener("click", (event) => {
  for (const menu of page.all("#conversations li details[open]")) if (!menu.contains(event.target)) menu.open = false;
});

// A menu at the lower edge comes into view; it closes as soon as it has given its conversation another title.
on("change", "#conversations .menu input", (field) => field.closest("details").removeAttribute("open"));
on("toggle", "#conversations li details[open]", (menu) => menu.closest("li").scrollIntoView({ block: "nearest" }), true);

// -------------------- keys

const help = () => find("#keys-help");

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || page.presenting()) return;
  const typing = page.typing(event);
  const command = event.ctrlKey || event.metaKey;
  if (event.key === "Escape") {
    const menu = find("#conversations li details[open]");
    if (help().matches(":popover-open")) return; // it closes by itself
    if (menu) menu.open = false;
    else if (page.seen(find("#question .stop"))) act("stop");
    else if (page.seen(find("#where-page [data-act=close]"))) act("close");
    else return;
  } else if (event.altKey && !command && event.code === "KeyN" && (!typing || event.key === "n")) {
    act("new:");
    focus();
  } else if (page.seen(box()) && command && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") focus();
  else if (page.seen(box()) && !typing && !command && !event.altKey && event.key === "/") focus();
  else if (!typing && !command && !event.altKey && event.key === "?") help().togglePopover();
  else return;
  event.preventDefault();
});
