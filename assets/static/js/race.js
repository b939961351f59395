/* The race: its form, lanes that move while they are written, and the replay on the clocks that were measured. */
"use strict";

(() => {
  const page = window.triforcePage;
  const { all, drawers, find, on, state } = page;

  // -------------------- number formats, as in app/formats.py

  const figure = (value) =>
    value === null ? "–" : value >= 99.95 ? Math.round(value).toLocaleString("en") : value.toFixed(value >= 9.995 ? 1 : 2);
  const side = (difference) => (difference < 0 ? "behind" : "ahead");
  function duration(seconds) {
    const whole = Math.round(seconds);
    if (seconds < 9.95) return `${Math.max(seconds, 0.1).toFixed(1)} s`;
    if (whole < 60) return `${whole} s`;
    const minutes = Math.floor(whole / 60);
    return whole < 3600 ? `${minutes} min ${whole % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  }

  // -------------------- replay: from points [milliseconds, characters, tokens], each true from its time on

  let frame = 0;
  let stop = () => {};

  const at = (points, time) => points.findLast((point) => point[0] <= time) ?? points[0];
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
    const point = at(lane.points, time);
    tell(lane, point, Math.min(time, lane.end));
    find(".track > span", lane.node).style.width = `${(100 * point[2]) / Math.max(longest, 1)}%`;
    lane.node.classList.toggle("alive", time < lane.end);
    find(".ending", lane.node).textContent = time < lane.end ? "Replay" : lane.ending;
  }

  function tell(lane, [, characters, tokens], time) {
    find(".rate b", lane.node).textContent = figure(tokens ? (1000 * tokens) / Math.max(time, 1) : null);
    find(".tokens", lane.node).textContent = tokens.toLocaleString("en");
    find(".clock", lane.node).textContent = (time / 1000).toFixed(2);
    if (lane.characters !== characters) find(".lane-text p", lane.node).textContent = lane.letters.slice(0, characters).join("");
    lane.characters = characters;
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
    const recorded = section.dataset.replay;
    const points = JSON.parse(recorded);
    const lanes = all(".lane", section).map((node, number) => laneOf(node, points[number]));
    const longest = Math.max(...lanes.map((lane) => lane.total));
    const end = Math.max(...lanes.map((lane) => lane.end));
    const gap = find(".gap", section);
    const pair = gap ? gap.dataset.pair.split(",").map((number) => lanes[number]) : null;
    const began = performance.now();
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
    const there = () => section.isConnected && section.dataset.replay === recorded; // else the board shows another race
    const step = () => {
      const time = speed * (performance.now() - began);
      if (!there() || time >= end) {
        stop();
        return ended();
      }
      for (const lane of lanes) draw(lane, time, longest);
      if (pair) drawGap(gap, ...pair, time);
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

  const form = () => find("#race-setup");
  const question = () => find("#race-ask textarea");
  let proposed = "";
  let chosen = false; // the reader has ticked lanes: they stay, as long as the model has them

  function offer(setup) {
    if (!setup || !form()) return;
    const names = setup.lanes.map(([, name]) => name);
    const ticked = lanes();
    const kept = ticked.filter((name) => names.includes(name));
    const first = chosen && kept.length >= Math.min(2, ticked.length) ? kept : setup.first;
    const options = find("#race-lanes .options");
    if (options.dataset.made !== String(names)) {
      const rows = setup.lanes.map(([label, name]) => `<label><input type="checkbox" name="lane" value="${name}"><span>${label}</span></label>`);
      options.innerHTML = rows.join("");
      options.dataset.made = names;
    }
    for (const box of all("input", options)) box.checked = first.includes(box.value);
    const prompts = setup.prompts.map((text) => Object.assign(document.createElement("button"), { type: "button", textContent: text }));
    find("#race-prompts").replaceChildren(...prompts);
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
    const turns = `${ticked.length} lanes take turns`;
    let told = "Lanes take turns, so that their times add up";
    if (seconds) told = `${turns}: about <b>${duration(ticked.length * seconds)}</b>, then the texts are compared`;
    else if (limit >= 1 && speeds.every(Boolean))
      told = `${turns}: at most <b>${duration((limit * speeds.reduce((sum, one) => sum + one, 0)) / 1000)}</b>, by the speeds of the race before`;
    find("#race-expected").innerHTML = ticked.length < 2 ? "" : told;
  }

  function start() {
    stop();
    const values = { question: question().value, lanes: lanes(), seconds: number("seconds"), limit: number("limit"), temperature: number("temperature") };
    return page.act("race", values);
  }

  on("input", "#race-setup", (_, event) => {
    if (event.target.name === "lane") chosen = true;
    expect();
  });
  on("submit", "[data-race]", () => start());
  on("click", "#race-prompts button", (prompt) => (question().value = prompt.textContent));

  window.triforceRace = { replay, endReplay: () => stop(), start };
})();
