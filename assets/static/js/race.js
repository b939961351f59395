/* The race: its form, lanes that move while they are written, and the replay on the clocks that were measured. */
"use strict";

(() => {
  const page = window.triforcePage;
  const { all, drawers, find, on, state } = page;

  // A number as in app/formats.py.
  const figure = (value) =>
    value === null ? "–" : value >= 99.95 ? Math.round(value).toLocaleString("en") : value.toFixed(value >= 9.995 ? 1 : 2);

  // -------------------- a lane: from points [milliseconds, characters, tokens], each true from its time on

  const at = (points, time) => points.findLast((point) => point[0] <= time) ?? points[0];

  function tell(lane, [, characters, tokens], time) {
    find(".rate b", lane.node).textContent = figure(tokens ? (1000 * tokens) / Math.max(time, 1) : null);
    find(".tokens", lane.node).textContent = tokens.toLocaleString("en");
    find(".clock", lane.node).textContent = (time / 1000).toFixed(2);
    if (lane.characters !== characters) find(".lane-text p", lane.node).textContent = lane.letters.slice(0, characters).join("");
    lane.characters = characters;
  }

  // -------------------- replay

  let frame = 0;
  let stop = () => {};

  function draw(lane, time, longest) {
    const [point, end] = [at(lane.points, time), lane.points.at(-1)[0]];
    tell(lane, point, Math.min(time, end));
    find(".track > span", lane.node).style.width = `${(100 * point[2]) / Math.max(longest, 1)}%`;
    lane.node.classList.toggle("alive", time < end);
    find(".ending", lane.node).textContent = time < end ? "Replay" : lane.ending;
  }

  function replay(section, speed, ended = () => {}) {
    stop();
    const [kept, status, recorded] = [find(".board", section).innerHTML, find(".status", section), section.dataset.replay];
    const [told, points, began] = [status.textContent, JSON.parse(recorded), performance.now()];
    const laneOf = (node, number) => {
      const letters = Array.from(find(".lane-text p", node).textContent);
      return { node, letters, points: points[number], ending: find(".ending", node).textContent };
    };
    const lanes = all(".lane", section).map(laneOf);
    const [end, , longest] = [0, 1, 2].map((field) => Math.max(...points.map((one) => one.at(-1)[field])));
    const there = () => section.isConnected && section.dataset.replay === recorded; // else the board shows another race
    section.classList.add("replaying");
    status.textContent = speed === 1 ? "Replay" : `Replay, ${speed} times as fast`;
    stop = () => {
      cancelAnimationFrame(frame);
      stop = () => {};
      if (!there()) return;
      section.classList.remove("replaying");
      status.textContent = told;
      find(".board", section).innerHTML = kept;
    };
    const step = () => {
      const time = speed * (performance.now() - began);
      if (!there() || time >= end) {
        stop();
        return ended();
      }
      for (const lane of lanes) draw(lane, time, longest);
      frame = requestAnimationFrame(step);
    };
    step();
  }

  on("click", ".replay button", (button) => replay(button.closest(".race"), Number(button.dataset.speed)));

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
  page.watch(() => (live ||= requestAnimationFrame(frameOfLive)));

  // -------------------- the form

  const question = () => find("#race-ask textarea");
  let proposed = "";

  drawers.set("race-proposal", (text = "") => {
    if (!question()) return;
    if (!question().value.trim() || question().value === proposed) question().value = text;
    proposed = text;
  });

  function start() {
    stop();
    const { seconds, limit, temperature } = find("#race-setup").elements;
    const number = (field) => (field.value === "" ? null : Number(field.value));
    const lanes = all("#race-lanes :checked").map((box) => box.value);
    return page.act("race", { question: question().value, lanes, seconds: number(seconds), limit: number(limit), temperature: number(temperature) });
  }

  on("submit", "[data-race]", () => start());
  on("click", "#race-prompts button", (prompt) => (question().value = prompt.textContent));

  window.triforceRace = { replay, endReplay: () => stop(), start };
})();
