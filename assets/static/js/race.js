/* The race: its form, and lanes that move while they are written. */
import { act, all, drawers, find, on, state, watch } from "./stream.js";
import { at, stop, tell } from "./replay.js";

// -------------------- live: every lane's clock runs after the newest round that is known, without jumps

const CATCH_UP_MS = 150;
const shown = new WeakMap(); // by a lane's element: its clock in milliseconds, and its text
let live = 0;

function frameOfLive(now) {
  const nodes = all("#race-board .race.running .lane[data-lane]");
  live = nodes.length && requestAnimationFrame(frameOfLive);
  for (const node of nodes) drawLive(node, now);
}

function drawLive(node, now) {
  const [points, text] = ["points", "text"].map((part) => state.get(`lane:${node.dataset.lane}.${part}`));
  if (!points) return;
  const lane = shown.get(node) ?? { node, time: 0 };
  if (text !== lane.text) Object.assign(lane, { text, letters: Array.from(text), characters: -1 });
  const end = points.at(-1)[0];
  if (end !== lane.end) Object.assign(lane, { end, from: Math.min(lane.time, end), since: now });
  const share = (now - lane.since) / CATCH_UP_MS;
  lane.time = share < 1 ? lane.from + (end - lane.from) * share : end;
  shown.set(node, lane);
  tell(lane, at(points, lane.time), lane.time);
}

drawers.set("lane:", () => {}); // drawn by the frames, once there is a board for it
watch(() => (live ||= requestAnimationFrame(frameOfLive)));

// -------------------- the form

const question = () => find("#race-ask textarea");
let proposed = "";

drawers.set("race-proposal", (text = "") => {
  if (!question()) return;
  if (!question().value.trim() || question().value === proposed) question().value = text;
  proposed = text;
});

export function start() {
  stop();
  const { seconds, limit, temperature } = find("#race-setup").elements;
  const number = (field) => (field.value === "" ? null : Number(field.value));
  const lanes = all("#race-lanes :checked").map((box) => box.value);
  return act("race", { question: question().value, lanes, seconds: number(seconds), limit: number(limit), temperature: number(temperature) });
}

on("submit", "[data-race]", () => start());
on("click", "#race-prompts button", (prompt) => (question().value = prompt.textContent));
