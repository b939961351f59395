/* What the Read tab folds: figures, the side on a narrow screen, an offer that was declined. Kept by this browser. */
import { all, find, on, recall, remember, watch } from "./stream.js";

const root = document.documentElement;
const KEPT = "triforce-folds-1";
const kept = () => recall(KEPT) ?? {};
const keep = (changes) => remember(KEPT, { ...kept(), ...changes });

// -------------------- folds: html.figures-open, html.side-open

const LASTING = "figures"; // the side folds again when the page is loaded

function unfold(name, open) {
  root.classList.toggle(`${name}-open`, open);
  for (const button of all(`[data-fold="${name}"]`)) button.setAttribute("aria-expanded", String(open));
  if (name === LASTING) keep({ [name]: open });
}

function ready(element) {
  const { fold } = find("[data-fold]", element).dataset;
  unfold(fold, fold === LASTING && kept()[fold] === true);
}

on("click", "[data-fold]", ({ dataset: { fold } }) => unfold(fold, !root.classList.contains(`${fold}-open`)));
on("click", '#model-offer [data-decline]', (button) => {
  keep({ declined: (declinedOffers = [...declinedOffers, button.closest("[data-offer]").dataset.offer]) });
  follow();
});

// -------------------- what follows from what the page shows

let declinedOffers = [kept().declined ?? []].flat();

const follow = () => {
  const has = root.classList.contains("has-book");
  if (has && !hadBook && root.classList.contains("side-open")) unfold("side", false); // the book has come: to the chat
  hadBook = has;
  const offer = find("#model-offer [data-offer]")?.dataset.offer;
  root.classList.toggle("offer-declined", offer !== undefined && declinedOffers.includes(offer));
};
let hadBook = false;
watch(follow);

window.triforceFolds = { ready }; // told by Gradio
