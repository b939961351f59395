/* Clicks on the library, on pages and on quotations: what was clicked, told to the server by the component it is in.
   And pages as images. */
"use strict";

(() => {
  const acts = { act: "", asked: "" }; // asked: the page beside the chat that is wanted: "loaded", "quoted", "" for none

  // -------------------- a page as an image: as sharp as the screen, larger or smaller, beside its text or instead of it

  const ZOOMS = [0.75, 1, 1.25, 1.5, 2, 3];
  const MOST_PIXELS = 2400;
  const SHARP = 1.15; // how far an image may be stretched
  const FIELDS = { preview: 4, page: 3 }; // of actions that draw pages, without the width of their image
  let zoom = 1; // an index
  let asText = false; // where there is no room for both

  const visible = (sheet) => sheet && sheet.offsetWidth > 0;

  acts.pixels = (element) => {
    const sheet = [element?.querySelector(".paper > .sheet"), ...document.querySelectorAll(".paper > .sheet")].find(visible);
    const beside = innerWidth > 1100 ? Math.max(380, Math.min(640, 0.36 * innerWidth)) - 36 : innerWidth - 52; // as in library.css
    return Math.min(MOST_PIXELS, Math.round((sheet?.offsetWidth || ZOOMS[zoom] * beside) * devicePixelRatio));
  };

  function sized(action, element) {
    const fields = action.split(":");
    const most = FIELDS[fields[0]];
    if (!most) return action;
    while (fields.length < most) fields.push("");
    return [...fields.slice(0, most), acts.pixels(element)].join(":");
  }

  // A page that is drawn again stays where it was; a new one shows its first mark.
  function settle(element) {
    const paper = element.querySelector(".paper");
    if (!paper) return;
    const sheet = paper.querySelector(".sheet");
    view(element);
    const mark = sheet.querySelector("i");
    if (element.held?.shown === sheet.dataset.shown) {
      paper.scrollTo(element.held.x * paper.scrollWidth, element.held.y * paper.scrollHeight);
    } else if (mark) {
      paper.scrollTo(mark.offsetLeft - paper.clientWidth / 3, mark.offsetTop - paper.clientHeight / 3);
    }
    sharpen(element);
  }

  function hold(element) {
    const paper = element.querySelector(".paper");
    const shown = paper?.querySelector(".sheet").dataset.shown;
    element.held = paper && { shown, x: paper.scrollLeft / paper.scrollWidth, y: paper.scrollTop / paper.scrollHeight };
  }

  function sharpen(element) {
    const sheet = element.querySelector(".sheet");
    if (!visible(sheet)) return;
    if (acts.pixels(element) > SHARP * Number(sheet.dataset.asked)) element.act(sheet.dataset.shown);
  }

  function view(element) {
    const root = document.documentElement;
    root.style.setProperty("--zoom", ZOOMS[zoom]);
    root.classList.toggle("as-text", asText);
    for (const label of element.querySelectorAll(".zoomed")) label.textContent = `${Math.round(100 * ZOOMS[zoom])}%`;
    for (const side of element.querySelectorAll("[data-side]")) side.textContent = asText ? "Page" : "Text";
  }

  function zoomed(element, step) {
    zoom = Math.min(Math.max(zoom + step, 0), ZOOMS.length - 1);
    hold(element);
    settle(element);
  }

  function turnSide(element) {
    asText = !asText;
    settle(element);
  }

  // -------------------- clicks

  // The page beside the chat is closed here and now: on the way to the server a click that comes later could overtake it.
  let beside = null; // its component
  let numWanted = 0;
  let numDrawn = 0; // of them, when it was drawn last

  acts.wants = (kind) => {
    acts.asked = kind;
    numWanted += 1;
  };

  acts.close = () => {
    acts.asked = "";
    beside?.empty();
  };

  // Finds a button again that is drawn anew.
  const nameOf = ({ turn, zoom: step, side, act } = {}) =>
    turn ? `[data-turn="${turn}"]` : step ? `[data-zoom="${step}"]` : side === "" ? "[data-side]" : act && `[data-act="${CSS.escape(act)}"]`;

  // An action belongs to a button with data-act, a page number with data-preview, or a form with data-choose.
  acts.watch = (element, tell) => {
    const act = (element.act = (action) => {
      if (action === "close") return acts.close();
      if (element.closest("#where")) acts.wants("loaded");
      hold(element);
      acts.act = sized(action, element);
      tell();
    });
    element.addEventListener("click", (event) => {
      const button = event.target.closest("[data-act], [data-zoom], [data-side]");
      if (!button || button.disabled) return;
      if (button.dataset.zoom) zoomed(element, Number(button.dataset.zoom));
      else if (button.dataset.side === "") turnSide(element);
      else act(button.dataset.act);
    });
    element.addEventListener("change", (event) => {
      const { preview: key, mark } = event.target.dataset;
      if (key) act(`preview:${key}:${Math.max(1, Math.trunc(Number(event.target.value)) || 1)}${mark}`);
    });
    element.addEventListener("submit", (event) => {
      event.preventDefault();
      if (event.target.matches(".find")) return act(window.triforceFind(event.target));
      if (event.target.matches(".checklist")) {
        const parts = window.triforceChecklist.action(event.target);
        if (parts) act(parts);
        return;
      }
      const key = event.target.dataset.choose;
      const typed = event.target.querySelector("input").value.trim();
      if (key && typed) act(`choose:${key}:${typed}`);
    });
    element.addEventListener("focusin", (event) => {
      element.focused = nameOf(event.target.dataset) ?? null;
    });
    element.addEventListener("focusout", (event) => {
      if (event.target.isConnected) element.focused = null; // a redrawn button loses the focus without wanting to
    });
    element.addEventListener("keydown", (event) => {
      if (event.target.closest(".paper")) return keyOnPage(element, event);
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const bar = event.target.closest(".bar-page");
      if (!step || !bar) return;
      const bars = [...bar.parentElement.children];
      bars[bars.indexOf(bar) + step]?.focus();
      event.preventDefault();
    });
  };

  function keyOnPage(element, event) {
    const turned = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const step = { "+": 1, "=": 1, "-": -1 }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey || (!step && !(turned && ZOOMS[zoom] <= 1))) return;
    if (step) zoomed(element, step);
    else element.querySelector(`[data-turn="${turned}"]`)?.click();
    element.focused = ".paper";
    event.preventDefault();
  }

  acts.redrawn = (element) => {
    if (element.empty) {
      beside = element;
      const waits = numWanted > numDrawn; // for a page that was asked for since
      numDrawn = numWanted;
      if (!element.querySelector(".card")) acts.asked = waits ? acts.asked : ""; // the server has closed it
      else if (!acts.asked) return element.empty(); // it was closed while it was drawn
    }
    if (element.focused) element.querySelector(element.focused)?.focus({ preventScroll: true });
    const text = element.querySelector(".page-text");
    const mark = text?.querySelector("mark");
    if (mark) text.scrollTop = mark.offsetTop - text.offsetTop - 40;
    const { top, bottom } = element.getBoundingClientRect();
    if (text && (top > 0.7 * innerHeight || bottom < 60)) element.scrollIntoView({ block: "start" });
    settle(element);
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("[data-tab]");
    if (!link) return;
    const tabs = [...document.querySelectorAll('#tabs [role="tab"]')];
    tabs.find((tab) => tab.textContent.trim() === link.dataset.tab)?.click();
  });

  window.triforceActs = acts;
})();
