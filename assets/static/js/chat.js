/* What the chat and the list of conversations do without the server: small buttons, keys, and settings that stay. */
"use strict";

(() => {
  const find = (selector, from = document) => from.querySelector(selector);
  const KEPT = "triforce-settings-1";
  const ARMED_MS = 4000;
  let waiting = false; // a question is not sent yet, see `send`

  // -------------------- states of the page, as classes of the whole: a `:has()` high up in the page would have every style
  // in it computed anew at every word of an answer

  const STATES = { answering: "#strip .strip.running", incognito: "#conv-list .incognito", "page-open": "#where-page .card", choosing: "#choosing form" };

  function state() {
    const classes = document.documentElement.classList;
    const before = classes.contains("answering");
    for (const [name, sign] of Object.entries(STATES)) classes.toggle(name, find(sign) !== null);
    if (!before && classes.contains("answering")) {
      if (window.triforceActs.asked === "loaded") window.triforceActs.close(); // for the answer before
      if (!waiting) {
        arrived();
        sending = false;
      }
    }
    waits();
  }

  // -------------------- waiting: how long still, in the tab's title, and a notice when a long reading has ended

  const NAME = "TriForce Reader";
  let long = false; // a long reading goes on

  function waits() {
    const told = find("#chat .until") ?? find("#book .until");
    const title = told ? `${told.textContent} · ${NAME}` : NAME;
    if (document.title !== title) document.title = title;
    const reads = find("#chat .until.long, #book .until.long") !== null;
    if (long && !told && find("#book .step.done")) notice();
    if (reads || !told) long = reads;
  }

  const mayNotify = () => document.documentElement.classList.toggle("may-ask", globalThis.Notification?.permission === "default");
  mayNotify();

  const ONCE_MS = 10000; // an older drawing of the card may come once more: that is no second reading
  let noticed = -ONCE_MS;

  function notice() {
    if (performance.now() - noticed < ONCE_MS) return;
    noticed = performance.now();
    if (!document.hidden || globalThis.Notification?.permission !== "granted") return;
    const note = new Notification("The book is read", { body: find("#book .book-title")?.textContent ?? "", tag: "read" });
    note.onclick = () => {
      window.focus();
      note.close();
    };
  }
  const watched = () =>
    new MutationObserver(state).observe(document.body, {
      childList: true,
      characterData: true, // a card that is drawn anew keeps its nodes where it can: only their words change
      subtree: true,
      attributeFilter: ["class"],
    });
  if (document.body) watched(); // this script may come after the page
  else addEventListener("DOMContentLoaded", watched);

  // -------------------- small buttons: what they stand for goes to the server by way of a hidden one

  const asked = {}; // by the hidden button: an event may wait for the one before, while the other button is pressed
  let pressed = null; // the button in the chat whose event began last

  function press(hidden, act, text = "", button = null) {
    asked[hidden] = { request: JSON.stringify({ act, text }), button };
    find(hidden)?.click();
  }

  function take(hidden) {
    pressed = asked[hidden]?.button ?? pressed;
    return asked[hidden]?.request ?? "{}";
  }

  // What cannot be undone takes a second press.
  function armed(button) {
    if (button.classList.contains("armed")) return true;
    const [label, title] = [button.textContent, button.title];
    button.classList.add("armed");
    button.textContent = `${label}?`;
    button.title = "Press again to delete for good";
    setTimeout(() => {
      button.classList.remove("armed");
      [button.textContent, button.title] = [label, title];
    }, ARMED_MS);
    return false;
  }

  function inChat(button, numClicks) {
    const verb = button.value.split(":")[0];
    if (verb === "delete" && (numClicks > 1 || !armed(button))) return; // a double click is no second thought
    if (verb === "quote") {
      window.triforceActs.wants("quoted");
      return press("#act-quote", button.value, String(window.triforceActs.pixels(find("#where-page"))));
    }
    press(verb === "again" || verb === "continue" ? "#act-again" : "#act-now", button.value, "", button);
  }

  function inList(button) {
    const verb = button.dataset.list;
    const id = button.closest("[data-id]")?.dataset.id ?? "";
    if (verb === "rename") return rename(button.closest("li"), id);
    button.closest("details")?.removeAttribute("open");
    press("#act-now", `${verb === "delete" ? "delete-conversation" : verb}:${id}`);
  }

  function rename(row, id) {
    const button = find(".open", row);
    const title = find("b", button);
    const field = Object.assign(document.createElement("input"), { value: title.textContent, maxLength: 200 });
    field.setAttribute("aria-label", "Title");
    let done = false;
    const end = (keep) => {
      if (done) return;
      done = true;
      const text = field.value.trim();
      field.replaceWith(button);
      if (keep && text && text !== title.textContent) press("#act-now", `rename:${id}`, text);
    };
    find("details", row).removeAttribute("open");
    button.replaceWith(field);
    field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter") end(true);
      else if (event.key === "Escape") end(false);
    });
    field.addEventListener("blur", () => end(true));
    field.focus();
    field.select();
  }

  document.addEventListener("click", (event) => {
    const target = event.target;
    const act = target.closest?.("#chat button:is(.act, .quote)");
    const told = find("#told .told"); // why a question got no answer: read, as soon as something else is done
    if (target.closest?.("#act-now, #act-again, #act-quote, #returned")) return; // pressed by a script
    if (told && (target.closest?.("[data-told-close]") || !target.closest?.("#told, #question"))) told.hidden = true;
    const listed = target.closest?.("[data-list]");
    for (const menu of document.querySelectorAll("#conv-list details[open]")) {
      if (!menu.contains(target)) menu.removeAttribute("open");
    }
    if (act) inChat(act, event.detail);
    else if (listed) inList(listed);
    else if (target.closest?.("[data-keys]")) help();
    else if (target.closest?.("[data-notify]")) Notification.requestPermission().then(mayNotify);
  });

  // -------------------- what the server made for the browser: a file, a text for the clipboard, a question to change

  function deliver(parcel) {
    if (!parcel) return "";
    const { copy, focus } = JSON.parse(parcel);
    if (copy !== undefined) copied(copy);
    else if (focus) setTimeout(focusQuestion);
    else window.triforceRace.save(parcel);
    return "";
  }

  async function copied(text) {
    const [button, label] = [pressed, pressed?.textContent];
    let said = "Copied";
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      said = "Not allowed here";
    }
    if (!button || label === said) return;
    button.textContent = said;
    setTimeout(() => (button.textContent = label), 1500);
  }

  function focusQuestion() {
    const box = find("#question textarea");
    if (!box) return;
    box.focus();
    box.setSelectionRange(box.value.length, box.value.length);
  }

  // -------------------- keys

  function help() {
    const drawn = find("template.keys");
    if (!find("#keys-help") && drawn) {
      document.body.append(drawn.content.cloneNode(true)); // it outlives the line it is drawn in
      find("#keys-help").addEventListener("close", () => {
        const at = document.activeElement;
        if (at && at !== document.body && !find("#keys-help").contains(at)) return;
        find("[data-keys]")?.focus(); // its button was drawn anew
      });
    }
    const dialog = find("#keys-help");
    if (dialog?.open) dialog.close();
    else dialog?.showModal();
  }

  // -------------------- the question box: empty as soon as its question is sent, whatever is typed next stays

  const SENT = "triforce-sent"; // until the server has it
  let sent = "";
  let sending = false; // the question that was sent last waits for the page to show its answer
  let stopRestoring = () => {};

  const unanswered = () => sessionStorage.getItem(SENT);
  const arrived = () => sessionStorage.removeItem(SENT);

  function ended() {
    sending = false;
    arrived();
  }

  // Sends a question when the server knows the page and all files that are still being uploaded.
  async function send(question) {
    const typed = find("#question textarea")?.value;
    stopRestoring();
    if (question.trim()) {
      sent = question;
      sessionStorage.setItem(SENT, question);
    }
    waiting = true;
    sending = true;
    try {
      await window.triforceEntry;
      await uploaded();
    } catch (error) {
      sending = false;
      restore();
      throw error;
    } finally {
      waiting = false;
    }
    if (find("#question textarea")?.value === typed) write("");
    return question;
  }

  const UPLOADING = ":is(#drop, #library-drop) .uploading";
  const UPLOADED = ":is(#drop, #library-drop) .file-preview"; // until the server has told that it has the files
  let numOpened = 0; // fields whose files were uploaded
  let numLost = 0; // of those, the ones that the server was not told

  const opening = () => (numOpened += 1);

  function lost() {
    numLost += 1;
    return null; // empties the field
  }

  async function uploaded() {
    if (!find(UPLOADING) && !find(UPLOADED)) return;
    const before = { opened: find(UPLOADING) ? numOpened : -1, lost: numLost };
    const told = document.createElement("p");
    told.className = "sending";
    told.textContent = "Your question is sent as soon as the file is uploaded.";
    find("#told")?.append(told);
    while (find(UPLOADING) || find(UPLOADED)) await new Promise((again) => setTimeout(again, 100));
    told.remove();
    if (numOpened === before.opened || numLost !== before.lost) throw new Error("The file did not arrive: the question about it waits.");
  }

  // Gradio keeps a second question until the event of the first has ended, which is a moment after its answer was shown:
  // right for a question asked in that moment, not for one asked during the answer.
  function onlyOnce(event) {
    const sends = event.type === "click" ? ".submit-button" : event.key === "Enter" && !event.shiftKey && "textarea";
    const answering = document.documentElement.classList.contains("answering") && shown(find("#question .stop-button"));
    const busy = waiting || sending || answering;
    if (!busy || !sends || !event.target.closest?.(`#question ${sends}`)) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }

  addEventListener("keydown", onlyOnce, true);
  addEventListener("keypress", onlyOnce, true);
  addEventListener("click", onlyOnce, true);

  function write(text) {
    const box = find("#question textarea");
    if (!box || box.value === text) return;
    box.value = text;
    box.dispatchEvent(new Event("input", { bubbles: true }));
  }

  // A question that never reached the server goes back into the box, unless something new is there. When Gradio has
  // connected again it loads the page, which a busy machine draws seconds later: so it is put back until somebody types.
  function restore() {
    stopRestoring();
    if (!unanswered()) return;
    const again = setInterval(() => {
      const question = unanswered();
      if (!question) stopRestoring();
      else if (!find("#question textarea")?.value) write(question);
    }, 250);
    const typed = (event) => {
      if (!event.isTrusted || !event.target.closest?.("#question")) return; // our own, or a setting
      stopRestoring();
      arrived();
    };
    addEventListener("input", typed, true);
    stopRestoring = () => {
      clearInterval(again);
      removeEventListener("input", typed, true);
    };
  }

  function unsent(typed) {
    sending = false;
    restore();
    return typed || sent;
  }

  const shown = (element) => element && element.offsetParent !== null;

  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || document.documentElement.classList.contains("presenting")) return;
    const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
    const command = event.ctrlKey || event.metaKey;
    const question = find("#question textarea");
    if (event.key === "Escape") {
      const stop = find("#question .stop-button");
      const menu = find("#conv-list details[open]");
      if (find("dialog[open]")) return;
      if (menu) menu.removeAttribute("open");
      else if (shown(stop)) stop.click();
      else if (shown(find("#where-page [data-act=close]"))) find("#where-page [data-act=close]").click();
      else return;
    } else if (event.altKey && !command && event.code === "KeyN") {
      find('[data-list="new"]')?.click();
      focusQuestion();
    } else if (shown(question) && command && !event.altKey && event.key.toLowerCase() === "k") {
      focusQuestion();
    } else if (shown(question) && !typing && !command && !event.altKey && event.key === "/") {
      focusQuestion();
    } else if (!typing && !command && !event.altKey && event.key === "?") {
      help();
    } else return;
    event.preventDefault();
  });

  // -------------------- settings: kept by this browser

  function keep(fields) {
    try {
      localStorage.setItem(KEPT, JSON.stringify(fields));
    } catch {
      // a browser that keeps nothing: the settings last as long as the page
    }
  }

  function kept() {
    if (!sending) restore(); // the page may have sent a question before this event of its own
    try {
      return localStorage.getItem(KEPT) ?? "";
    } catch {
      return "";
    }
  }

  window.triforceChat = { take, deliver, send, opening, lost, unsent, ended, keep, kept };
})();
