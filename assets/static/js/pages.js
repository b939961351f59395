/* A page of a document as an image: as sharp as the screen, larger or smaller, beside its text or instead of it. */
"use strict";

(() => {
  const page = window.triforcePage;
  const ZOOMS = [0.75, 1, 1.25, 1.5, 2, 3];
  const MOST_PIXELS = 2400;
  const SHARP = 1.15; // how far an image may be stretched
  const FIELDS = { preview: 4, page: 3 }; // of acts that draw pages, with the width of their image
  const root = document.documentElement;
  let zoom = 1; // an index
  let asText = false; // where there is no room for both

  const visible = (sheet) => sheet && sheet.offsetWidth > 0;
  const placeOf = (element) => element.closest("[data-part]");

  function pixels(element) {
    const sheet = [element?.querySelector(".paper > .image"), ...document.querySelectorAll(".paper > .image")].find(visible);
    const beside = innerWidth > 1100 ? Math.max(380, Math.min(640, 0.36 * innerWidth)) - 36 : innerWidth - 52; // as in library.css
    return Math.min(MOST_PIXELS, Math.round((sheet?.offsetWidth || ZOOMS[zoom] * beside) * devicePixelRatio));
  }

  for (const [verb, most] of Object.entries(FIELDS)) {
    page.preparing.set(verb, (name, element) => {
      const fields = name.split(":").slice(1);
      while (fields.length < most) fields.push("");
      const target = document.querySelector(`[data-part="${verb === "preview" ? "preview" : "leaf"}"]`);
      return [[verb, ...fields.slice(0, most - 1), pixels(target)].join(":"), {}];
    });
  }

  // A page that is drawn again stays where it was; a new one shows its first mark.
  function settle(place) {
    view(place);
    const paper = place.querySelector(".paper");
    if (!paper) return;
    const sheet = paper.querySelector(".image");
    const mark = sheet.querySelector("i");
    if (place.held?.shown === sheet.dataset.shown) paper.scrollTo(place.held.x * paper.scrollWidth, place.held.y * paper.scrollHeight);
    else if (mark) paper.scrollTo(mark.offsetLeft - paper.clientWidth / 3, mark.offsetTop - paper.clientHeight / 3);
    hold(place);
    if (visible(sheet) && pixels(place) > SHARP * Number(sheet.dataset.asked)) page.send(sheet.dataset.shown, sheet);
  }

  function hold(place) {
    const paper = place.querySelector(".paper");
    const shown = paper?.querySelector(".image").dataset.shown;
    place.held = paper && { shown, x: paper.scrollLeft / paper.scrollWidth, y: paper.scrollTop / paper.scrollHeight };
  }

  function view(place) {
    root.style.setProperty("--zoom", ZOOMS[zoom]);
    root.classList.toggle("as-text", asText);
    for (const label of place.querySelectorAll(".zoomed")) label.textContent = `${Math.round(100 * ZOOMS[zoom])}%`;
    for (const side of place.querySelectorAll("[data-side]")) side.textContent = asText ? "Page" : "Text";
  }

  function zoomed(place, step) {
    hold(place);
    zoom = Math.min(Math.max(zoom + step, 0), ZOOMS.length - 1);
    settle(place);
  }

  page.watch((names) => {
    for (const name of ["leaf", "preview"]) {
      if (!names.includes(name)) continue;
      for (const place of document.querySelectorAll(`[data-part="${name}"]`)) drawn(place);
    }
  });

  function drawn(place) {
    const text = place.querySelector(".page-text");
    const mark = text?.querySelector("mark");
    if (mark) text.scrollTop = mark.offsetTop - text.offsetTop - 40;
    const { top, bottom } = place.getBoundingClientRect();
    if (text && (top > 0.7 * innerHeight || bottom < 60)) place.scrollIntoView({ block: "start" });
    settle(place);
  }

  page.on("click", "[data-zoom]", (button) => zoomed(placeOf(button), Number(button.dataset.zoom)));
  page.on("click", "[data-side]", (button) => {
    asText = !asText;
    settle(placeOf(button));
  });
  page.on("change", "[data-preview]", (field) => {
    const number = Math.max(1, Math.trunc(Number(field.value)) || 1);
    page.send(`preview:${field.dataset.preview}:${number}${field.dataset.mark}`, field);
  });

  const ALONG = { ArrowLeft: -1, ArrowRight: 1 };
  page.on("keydown", ".paper", (paper, event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { "+": 1, "=": 1, "-": -1 }[event.key];
    const turned = ALONG[event.key];
    if (step) zoomed(placeOf(paper), step);
    else if (turned && ZOOMS[zoom] <= 1) page.find(`[data-turn="${turned}"]`, placeOf(paper))?.click();
    else return;
    event.preventDefault();
  });
  page.on("keydown", ".bar-page", (bar, event) => {
    const next = { "-1": bar.previousElementSibling, 1: bar.nextElementSibling }[ALONG[event.key]];
    if (!(event.key in ALONG)) return;
    next?.focus();
    event.preventDefault();
  });
})();
