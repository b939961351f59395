/* What the page does without the server: replay, notes on tokens, saving a report. */
"use strict";

(() => {
  const find = (selector, from = document) => from.querySelector(selector);

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

  // -------------------- another page

  // Another page may have changed the model while this one was in the background.
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) find("#returned")?.click();
  });

  // -------------------- who wrote a token: one note for all of them, kept inside the window

  const note = document.createElement("div");
  note.id = "token-note";
  note.setAttribute("role", "tooltip");
  note.hidden = true;
  document.addEventListener("DOMContentLoaded", () => document.body.append(note));

  function explain(token) {
    note.hidden = !token;
    if (!token) return;
    if (!note.isConnected) document.body.append(note);
    const [who, how] = token.dataset.tip.split("|");
    note.replaceChildren(Object.assign(document.createElement("b"), { textContent: who }), how);
    token.setAttribute("aria-describedby", note.id);
    const [box, size] = [token.getClientRects()[0], note.getBoundingClientRect()];
    const left = Math.min(Math.max(8, box.left + box.width / 2 - size.width / 2), innerWidth - size.width - 8);
    const above = box.top - size.height - 6;
    note.style.left = `${left}px`;
    note.style.top = `${above > 8 ? above : box.bottom + 6}px`;
  }

  const tokenOf = (event) => event.target.closest?.(".written [data-tip]") ?? null;
  document.addEventListener("mouseover", (event) => explain(tokenOf(event)));
  document.addEventListener("focusin", (event) => explain(tokenOf(event)));
  document.addEventListener("focusout", () => explain(null));
  document.addEventListener("scroll", () => explain(null), true);
  document.addEventListener("click", (event) => tokenOf(event)?.focus());
  document.addEventListener("keydown", (event) => {
    const text = event.target.closest?.(".written");
    if (!text) return;
    if (event.key === "Escape") return explain(null);
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const tokens = [...text.querySelectorAll("[data-tip]")];
    const now = tokens.indexOf(document.activeElement);
    const next = tokens[now < 0 ? 0 : now + step];
    next?.focus({ preventScroll: true });
    next?.scrollIntoView({ block: "nearest" });
    if (next) explain(next);
    event.preventDefault();
  });

  // -------------------- reports: made by the server, saved by the browser, kept nowhere else

  function save(parcel) {
    if (!parcel) return "";
    const { name, type, text } = JSON.parse(parcel);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    return "";
  }

  // -------------------- the question of a race: what is proposed never replaces the reader's own words

  let proposed = "";
  function propose(own, next) {
    const keep = (own ?? "").trim() && own !== proposed;
    proposed = next ?? "";
    return keep ? own : proposed;
  }

  window.triforceRace = { propose, save, replay, endReplay: () => stop() };
})();
