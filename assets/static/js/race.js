/* The race: its form, lanes that move while they are written, and the replay on the clocks that were measured. */
"use strict";

(() => {
  const page = window.triforcePage;
  const { drawers, state } = page;
  const find = (selector, from = document) => from.querySelector(selector);
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];

  // -------------------- number formats, as in app/ui/render.py

  const figure = (value) =>
    value === null ? "–" : value >= 99.95 ? Math.round(value).toLocaleString("en") : value.toFixed(value >= 9.995 ? 1 : 2);
  const side = (difference) => (difference < 0 ? "behind" : "ahead");

  // -------------------- replay: from points [milliseconds, characters, tokens], each true from its time on

  let frame = 0;
  let stop = () => {};

  const at = (points, time) => {
    let low = 0;
    for (let high = points.length - 1; low < high; ) {
      const middle = (low + high + 1) >> 1;
      if (points[middle][0] <= time) low = middle;
      else high = middle - 1;
    }
    return points[low];
  };
  const timeOf = (points, tokens) => (points.find((point) => point[2] >= tokens) ?? points.at(-1))[0];

  const laneOf = (node, points) => ({
    node,
    points,
    letters: Array.from(find(".lane-text p", node).textContent),
    ending: find(".ending", node).textContent,
    end: points.at(-1)[0],
    total: points.at(-1)[2],
  });

  function draw(lane, time, longest) {
    const [, characters, tokens] = at(lane.points, time);
    const clock = Math.min(time, lane.end);
    find(".rate b", lane.node).textContent = figure(tokens ? (1000 * tokens) / Math.max(clock, 1) : null);
    find(".tokens", lane.node).textContent = tokens.toLocaleString("en");
    find(".clock", lane.node).textContent = (clock / 1000).toFixed(2);
    find(".track > span", lane.node).style.width = `${(100 * tokens) / Math.max(longest, 1)}%`;
    find(".lane-text p", lane.node).textContent = lane.letters.slice(0, characters).join("");
    lane.node.classList.toggle("alive", time < lane.end);
    find(".ending", lane.node).textContent = time < lane.end ? "Replay" : lane.ending;
    return [tokens, clock];
  }

  function drawGap(node, fast, plain, time) {
    const [few, slow] = [at(plain.points, time), at(fast.points, time)];
    const both = Math.min(few[2], slow[2]);
    const [theirs, ours] = [timeOf(plain.points, both), timeOf(fast.points, both)];
    const seconds = (theirs - ours) / 1000;
    const reached = Math.min(time, fast.end, plain.end);
    const lead = at(fast.points, reached)[2] - at(plain.points, reached)[2];
    const tokens = seconds > 0 ? Math.max(lead, 0) : Math.min(lead, 0);
    const speedup = both && ours && theirs ? theirs / ours : null;
    find(".speedup b", node).textContent = speedup === null ? "–" : `${speedup.toFixed(2)}×`;
    find(".gap-tokens b", node).textContent = Math.abs(tokens).toLocaleString("en");
    find(".gap-tokens span", node).textContent = `token${Math.abs(tokens) === 1 ? "" : "s"} ${side(tokens)}`;
    find(".gap-seconds b", node).textContent = `${Math.abs(seconds).toFixed(2)} s`;
    find(".gap-seconds span", node).textContent = side(seconds);
  }

  function replay(section, speed, ended = () => {}) {
    stop();
    const kept = find(".board", section).innerHTML;
    const status = find(".status", section);
    const told = status.textContent;
    const points = JSON.parse(section.dataset.replay);
    const lanes = [...section.querySelectorAll(".lane")].map((node, number) => laneOf(node, points[number]));
    const longest = Math.max(...lanes.map((lane) => lane.total));
    const end = Math.max(...lanes.map((lane) => lane.end));
    const gap = find(".gap", section);
    const pair = gap ? gap.dataset.pair.split(",").map((number) => lanes[number]) : null;
    const began = performance.now();
    section.classList.add("replaying");
    status.textContent = speed === 1 ? "Replay" : `Replay, ${speed} times as fast`;
    stop = () => {
      cancelAnimationFrame(frame);
      section.classList.remove("replaying");
      status.textContent = told;
      if (section.isConnected) find(".board", section).innerHTML = kept;
      stop = () => {};
    };
    const step = () => {
      const time = speed * (performance.now() - began);
      if (!section.isConnected || time >= end) {
        stop();
        return ended();
      }
      for (const lane of lanes) draw(lane, time, longest);
      if (pair) drawGap(gap, ...pair, time);
      frame = requestAnimationFrame(step);
    };
    step();
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest?.(".replay button");
    if (button) replay(button.closest(".race"), Number(button.dataset.speed));
  });

  // -------------------- live: every lane's clock runs after the newest round that is known, without jumps

  const CATCH_UP_MS = 150;
  const shownTimes = new Map(); // milliseconds of a lane's clock, by its number
  let live = 0;

  function frameOfLive(now, before = now) {
    live = 0;
    const lanes = all("#race-board .race.running .lane");
    if (!lanes.length) return shownTimes.clear();
    for (const [number, node] of lanes.entries()) {
      const points = state.get(`lane:${number}.points`);
      if (!points) continue;
      const end = points.at(-1)[0];
      const time = (shownTimes.get(number) ?? 0) + (end - (shownTimes.get(number) ?? 0)) * Math.min(1, (now - before) / CATCH_UP_MS);
      shownTimes.set(number, time);
      const [, characters, tokens] = at(points, end - time < 1 ? end : time);
      find(".rate b", node).textContent = figure(tokens ? (1000 * tokens) / Math.max(time, 1) : null);
      find(".tokens", node).textContent = tokens.toLocaleString("en");
      find(".clock", node).textContent = (time / 1000).toFixed(2);
      const text = Array.from(state.get(`lane:${number}.text`) ?? "").slice(0, characters).join("");
      const words = find(".lane-text p", node);
      if (words.textContent !== text) {
        words.textContent = text;
        words.parentElement.scrollTop = words.parentElement.scrollHeight;
      }
    }
    live = requestAnimationFrame((next) => frameOfLive(next, now));
  }

  const move = () => {
    if (!live) live = requestAnimationFrame((now) => frameOfLive(now));
  };
  drawers.set("lane:", move);

  // -------------------- the form

  const form = () => find("#race-setup");
  const question = () => find("#race-ask textarea");
  let proposed = "";
  let chosen = false; // the reader has ticked lanes: they stay

  function offer(setup) {
    if (!setup || !form()) return;
    const ticked = lanes();
    const names = setup.lanes.map(([, name]) => name);
    const kept = chosen ? ticked.filter((name) => names.includes(name)) : [];
    const first = kept.length >= Math.min(2, ticked.length) && chosen ? kept : setup.first;
    const rows = setup.lanes.map(([label, name]) => `<label><input type="checkbox" name="lane" value="${name}"${first.includes(name) ? " checked" : ""}><span>${label}</span></label>`);
    const options = find("#race-lanes .options");
    if (options.made !== String(rows)) options.innerHTML = rows.join("");
    options.made = String(rows);
    find("#race-prompts").replaceChildren(...setup.prompts.map((text) => Object.assign(document.createElement("button"), { type: "button", textContent: text })));
    if (!question().value.trim() || question().value === proposed) question().value = setup.proposal;
    proposed = setup.proposal;
    expect();
  }
  drawers.set("race-setup", offer);

  const lanes = () => all("#race-lanes :checked").map((box) => box.value);
  const number = (name) => (form().elements[name].value === "" ? null : Number(form().elements[name].value));

  // How long it takes: lanes take turns, so that their times add up.
  function expect() {
    const [ticked, seconds, limit] = [lanes(), number("seconds"), number("limit")];
    const speeds = ticked.map((name) => state.get("race-setup")?.speeds[name]);
    let told = "Lanes take turns, so that their times add up";
    if (seconds) told = `${ticked.length} lanes take turns: about ${duration(ticked.length * seconds)}, then the texts are compared`;
    else if (limit >= 1 && speeds.every(Boolean) && speeds.length) told = `${ticked.length} lanes take turns: at most ${duration((limit * speeds.reduce((sum, one) => sum + one, 0)) / 1000)}, by the speeds of the race before`;
    find("#race-expected").textContent = ticked.length < 2 ? "" : told;
  }
  const duration = (seconds) => (seconds < 100 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`);

  function start() {
    const values = { question: question().value, lanes: lanes(), seconds: number("seconds") ?? 0, limit: number("limit"), temperature: number("temperature") };
    return page.act("race", values);
  }

  document.addEventListener("input", (event) => {
    if (!event.target.closest?.("#race-setup")) return;
    if (event.target.name === "lane") chosen = true;
    expect();
  });
  document.addEventListener("submit", (event) => event.target.matches("[data-race]") && start());
  document.addEventListener("keydown", (event) => {
    if (event.target !== question() || event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    start();
  });
  document.addEventListener("click", (event) => {
    const prompt = event.target.closest?.("#race-prompts button");
    if (prompt) question().value = prompt.textContent;
  });

  window.triforceRace = { replay, endReplay: () => stop(), start };
})();
