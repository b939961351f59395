/* Presenter mode: the book, 3-2-1, the race, one round in slow motion, the closing card. The scene is an attribute of the
   page that the styles read; a race that ran before is shown by the replay. */
import { act, all, find, on, presenting, watch } from "./stream.js";
import { start } from "./race.js";
import { replay, stop } from "./replay.js";

const root = document.documentElement;
const FINISH = 5000; // milliseconds that a finished race stays before the slow motion
const running = () => Boolean(find("#race-board .race.running"));
const told = () => find("#race-board .scene.closing");

let timer = 0;
let waiting = false; // for a book
let followed = false; // a race that runs is followed to its end

function after(milliseconds, next) {
  cancelAnimationFrame(timer);
  const end = performance.now() + milliseconds;
  const look = () => (performance.now() < end ? (timer = requestAnimationFrame(look)) : next());
  look();
}

function scene(name) {
  cancelAnimationFrame(timer);
  root.dataset.scene = name;
  if (name === "round") after(1000 * find(".scene.round").dataset.seconds, () => scene("closing"));
}

function begin(run, count = 3) {
  scene("count");
  find(".scene.count b").textContent = count;
  after(1000, () => {
    if (count > 1) return begin(run, count - 1);
    scene("race");
    run();
  });
}

const recorded = () => replay(find("#race-board .race"), 1, finish);

function finish() {
  if (presenting() && root.dataset.scene === "race" && told()) after(FINISH, next);
}

function next() {
  if (root.dataset.scene === "race" && find("#race-board .scene.round")) scene("round");
  else scene("closing");
}

// The board is drawn by the server: a race that began, here or by the button, and its end.
watch((names) => {
  if (!presenting() || !names.some((name) => name.startsWith("race"))) return;
  const runs = running();
  if (waiting && find(".scene.opening")) {
    waiting = false;
    if (!runs && root.dataset.scene === "race") scene("opening"); // a book that was on its way
  }
  if (runs && root.dataset.scene !== "race") scene("race");
  if (followed && !runs) finish();
  followed = runs;
});

function present(on = true) {
  root.classList.toggle("presenting", on);
  if (on) {
    followed = running();
    waiting = !find(".scene.opening");
    scene(running() || !find(".scene.opening") ? "race" : "opening");
    document.activeElement?.blur();
    root.requestFullscreen?.().catch(() => {}); // refused: the window is what there is
  } else {
    cancelAnimationFrame(timer);
    delete root.dataset.scene;
    if (document.fullscreenElement) document.exitFullscreen();
  }
}

document.addEventListener("fullscreenchange", () => {
  if (!document.fullscreenElement && presenting()) present(false);
});

function space() {
  const now = root.dataset.scene;
  if (running()) act("stop-race");
  else if (find(".race.replaying")) stop();
  else if (now === "count") scene(find(".scene.opening") ? "opening" : "race");
  else if (now === "race" && told()) next();
  else if (now === "round") scene("closing");
  else if (now === "closing") scene("opening");
  else begin(start);
}

function choose(number) {
  const button = all("#race-prompts button")[number];
  if (!button || running()) return;
  if (find(".scene.opening")) scene("opening");
  button.click();
}

const typing = (element) => element.closest?.("textarea, input:not([type=radio], [type=checkbox])");

document.addEventListener(
  "keydown",
  (event) => {
    if (!presenting() || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") return present(false);
    if (typing(event.target)) {
      if (event.key === "Enter") setTimeout(() => event.target.blur());
      return;
    }
    if (event.key === " ") space();
    else if (event.key.toLowerCase() === "r" && find(".replay button") && !running()) begin(recorded);
    else if ("123".includes(event.key)) choose(Number(event.key) - 1);
    else return;
    event.preventDefault();
    document.activeElement?.blur(); // a focused button would take the space bar for itself
  },
  true,
);

on("click", "[data-present]", () => present());
