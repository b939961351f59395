/* A page of a document as an image, larger or smaller, beside its text or instead of it. */
import { act, all, find, on, watch } from "./stream.js";

const ZOOMS = [0.75, 1, 1.25, 1.5, 2, 3];
const root = document.documentElement;
let zoom = 1; // an index
let asText = false; // where there is no room for both

const placeOf = (element) => element.closest("[data-part]");

function view(place) {
  root.style.setProperty("--zoom", ZOOMS[zoom]);
  root.classList.toggle("as-text", asText);
  for (const label of all(".zoomed", place)) label.textContent = `${Math.round(100 * ZOOMS[zoom])}%`;
  for (const side of all("[data-side]", place)) side.textContent = asText ? "Page" : "Text";
}

function zoomed(place, step) {
  const paper = find(".paper", place);
  const [x, y] = [paper.scrollLeft / paper.scrollWidth, paper.scrollTop / paper.scrollHeight];
  zoom = Math.min(Math.max(zoom + step, 0), ZOOMS.length - 1);
  view(place);
  paper.scrollTo(x * paper.scrollWidth, y * paper.scrollHeight);
}

// A new page shows its first mark.
function drawn(place) {
  const [text, paper] = [find(".page-text", place), find(".paper", place)];
  if (!text && !paper) return;
  view(place);
  const [mark, box] = [text && find("mark", text), paper && find("i", paper)];
  if (mark) text.scrollTop = mark.offsetTop - text.offsetTop - 40;
  if (paper) paper.scrollTo(box ? box.offsetLeft - paper.clientWidth / 3 : 0, box ? box.offsetTop - paper.clientHeight / 3 : 0);
  const { top, bottom } = place.getBoundingClientRect();
  if (text && (top > 0.7 * innerHeight || bottom < 60)) place.scrollIntoView({ block: "start" });
}

watch((names) => {
  for (const name of ["leaf", "preview"]) if (names.includes(name)) all(`[data-part="${name}"]`).forEach(drawn);
});

on("click", "[data-zoom]", (button) => zoomed(placeOf(button), Number(button.dataset.zoom)));
on("click", "[data-side]", (button) => {
  asText = !asText;
  view(placeOf(button));
});
on("change", "[data-page]", (field) => {
  const number = Math.max(1, Math.trunc(Number(field.value)) || 1);
  act(`${field.dataset.page}:${number}${field.dataset.mark}`);
});

const ALONG = { ArrowLeft: -1, ArrowRight: 1 };
on("keydown", ".paper", (paper, event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const step = { "+": 1, "=": 1, "-": -1 }[event.key];
  const turned = ALONG[event.key];
  if (step) zoomed(placeOf(paper), step);
  else if (turned && ZOOMS[zoom] <= 1) find(`[data-turn="${turned}"]`, placeOf(paper))?.click();
  else return;
  event.preventDefault();
});
on("keydown", ".bar-page", (bar, event) => {
  const next = { "-1": bar.previousElementSibling, 1: bar.nextElementSibling }[ALONG[event.key]];
  if (!(event.key in ALONG)) return;
  next?.focus();
  event.preventDefault();
});
