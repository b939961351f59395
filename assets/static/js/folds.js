/* What the Read tab folds: figures, the side on a narrow screen, an offer that was declined. Kept by this browser. */
import { all, find, on, recall, remember, watch } from "./stream.js";

const root = document.documentElement;
const KEPT = "triforce-folds-1";
const kept = () => recall(KEPT) ?? {};
const keep = (changes) => remember(KEPT, { ...kept(), ...changes });

// Folds are classes of the page: html.figures-open, html.side-open. The side folds again when the page is loaded.
const isOpen = (name) => root.classList.contains(`${name}-open`);

function unfold(name, open) {
  root.classList.toggle(`${name}-open`, open);
  if (name === "figures") keep({ figures: open });
  follow();
}

on("click", "[data-fold]", ({ dataset: { fold } }) => unfold(fold, !isOpen(fold)));
on("click", "[data-choosing]", () => unfold("side", false)); // what is chosen from stands behind it
on("click", "#model-offer [data-decline]", (button) => {
  keep({ declined: [...declined(), button.closest("[data-offer]").dataset.offer] });
  follow();
});

// -------------------- what follows from what the page shows

const declined = () => [kept().declined ?? []].flat();
let hadBook = false;

function follow() {
  const [has, offer] = [root.classList.contains("has-book"), find("#model-offer [data-offer]")?.dataset.offer];
  if (has && !hadBook) root.classList.remove("side-open"); // the book has come: to the chat
  hadBook = has;
  root.classList.toggle("offer-declined", offer !== undefined && declined().includes(offer));
  for (const button of all("[data-fold]")) button.setAttribute("aria-expanded", String(isOpen(button.dataset.fold)));
}

root.classList.toggle("figures-open", kept().figures === true);
watch(follow);
