/* A page of a document as an image: as sharp as the screen, larger or smaller, beside its text or instead of it. */
"use strict";

(() => {
  const page = window.triforcePage;
  const ZOOMS = [0.75, 1, 1.25, 1.5, 2, 3];
  const MOST_PIXELS = 2400;
  const SHARP = 1.15; // how far an image may be stretched
  const FIELDS = { preview: 4, page: 3, quote: 2 }; // of acts that draw pages, with the width of their image
  const root = document.documentElement;
  let zoom = 1; // an index
  let asText = false; // where there is no room for both

  const visible = (sheet) => sheet && sheet.offsetWidth > 0;
  const placeOf = (element) => element.closest("[data-part]");

  function pixels(element) {
    const sheet = [element?.querySelector(".paper > .sheet"), ...document.querySelectorAll(".paper > .sheet")].find(visible);
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
    const sheet = paper.querySelector(".sheet");
    const mark = sheet.querySelector("i");
    if (place.held?.shown === sheet.dataset.shown) paper.scrollTo(place.held.x * paper.scrollWidth, place.held.y * paper.scrollHeight);
    else if (mark) paper.scrollTo(mark.offsetLeft - paper.clientWidth / 3, mark.offsetTop - paper.clientHeight / 3);
    hold(place);
    if (visible(sheet) && pixels(place) > SHARP * Number(sheet.dataset.asked)) page.send(sheet.dataset.shown, sheet);
  }

  function hold(place) {
    const paper = place.querySelector(".paper");
    const shown = paper?.querySelector(".sheet").dataset.shown;
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

  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-zoom], [data-side]");
    if (!button) return;
    if (button.dataset.zoom) return zoomed(placeOf(button), Number(button.dataset.zoom));
    asText = !asText;
    settle(placeOf(button));
  });

  document.addEventListener("change", (event) => {
    const { preview: key, mark } = event.target.dataset;
    if (key) page.send(`preview:${key}:${Math.max(1, Math.trunc(Number(event.target.value)) || 1)}${mark}`, event.target);
  });

  document.addEventListener("keydown", (event) => {
    const place = event.target.closest?.(".paper") && placeOf(event.target);
    if (place && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const turned = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const step = { "+": 1, "=": 1, "-": -1 }[event.key];
      if (step) zoomed(place, step);
      else if (turned && ZOOMS[zoom] <= 1) place.querySelector(`[data-turn="${turned}"]`)?.click();
      else return;
      event.preventDefault();
    }
    const bar = event.target.closest?.(".bar-page");
    const along = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!along || !bar) return;
    const bars = [...bar.parentElement.children];
    bars[bars.indexOf(bar) + along]?.focus();
    event.preventDefault();
  });
})();
