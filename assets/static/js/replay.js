/* The replay of a race on the clocks that were measured: on the page, and in a proof card, which has this script alone. */

const find = (selector, from) => from.querySelector(selector);
const all = (selector, from) => [...from.querySelectorAll(selector)];

// A number as in app/formats.py.
const figure = (value) =>
  value === null ? "–" : value >= 99.95 ? Math.round(value).toLocaleString("en") : value.toFixed(value >= 9.995 ? 1 : 2);

// -------------------- a lane: from points [milliseconds, characters, tokens], each true from its time on

export const at = (points, time) => points.findLast((point) => point[0] <= time) ?? points[0];

export function tell(lane, [, characters, tokens], time) {
  find(".rate b", lane.node).textContent = figure(tokens ? (1000 * tokens) / Math.max(time, 1) : null);
  find(".tokens", lane.node).textContent = tokens.toLocaleString("en");
  find(".clock", lane.node).textContent = (time / 1000).toFixed(2);
  if (lane.characters !== characters) find(".lane-text p", lane.node).textContent = lane.letters.slice(0, characters).join("");
  lane.characters = characters;
}

// -------------------- replay

let frame = 0;
let end = () => {}; // of the replay that runs

export const stop = () => end();

function draw(lane, time, longest) {
  const [point, end] = [at(lane.points, time), lane.points.at(-1)[0]];
  tell(lane, point, Math.min(time, end));
  find(".track > span", lane.node).style.width = `${(100 * point[2]) / Math.max(longest, 1)}%`;
  lane.node.classList.toggle("alive", time < end);
  find(".ending", lane.node).textContent = time < end ? "Replay" : lane.ending;
}

export function replay(section, speed, ended = () => {}) {
  stop();
  const [kept, status, recorded] = [find(".board", section).innerHTML, find(".status", section), section.dataset.replay];
  const [told, points, began] = [status.textContent, JSON.parse(recorded), performance.now()];
  const laneOf = (node, number) => {
    const letters = Array.from(find(".lane-text p", node).textContent);
    return { node, letters, points: points[number], ending: find(".ending", node).textContent };
  };
  const lanes = all(".lane", section).map(laneOf);
  const [last, , longest] = [0, 1, 2].map((field) => Math.max(...points.map((one) => one.at(-1)[field])));
  const there = () => section.isConnected && section.dataset.replay === recorded; // else the board shows another race
  section.classList.add("replaying");
  status.textContent = speed === 1 ? "Replay" : `Replay, ${speed} times as fast`;
  end = () => {
    cancelAnimationFrame(frame);
    end = () => {};
    if (!there()) return;
    section.classList.remove("replaying");
    status.textContent = told;
    find(".board", section).innerHTML = kept;
  };
  const step = () => {
    const time = speed * (performance.now() - began);
    if (!there() || time >= last) {
      stop();
      return ended();
    }
    for (const lane of lanes) draw(lane, time, longest);
    frame = requestAnimationFrame(step);
  };
  step();
}

document.addEventListener("click", ({ target }) => {
  if (target.closest("[data-speed]")) replay(target.closest(".race"), Number(target.dataset.speed));
});
