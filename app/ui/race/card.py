"""The proof card: one race as a small page that needs no other file.

Question, cited passages, both clocks, equality, and a replay on the clocks that were measured. Its only script is its
own, named by its hash in the page's policy; all words of books and models are escaped.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

from app import formats
from app.context.open_book import Book
from app.runtime.trace import Race, Trace
from app.ui import render
from app.ui.race.result import best_lane, is_identical, result
from app.ui.race.view import ending_line, short_text, trace_points
from app.ui.retrieval_map.view import page_of, page_words
from core.decoding.registry import method_label
from core.decoding.stats import DecodeStats

MOST_PASSAGES, MOST_PASSAGE_CHARS = 4, 240
MOST_CHARS, MOST_LOSSY_CHARS = 12_000, 160  # of one lane's text; more of one that is not exact proves nothing
STYLE = """
:root { color-scheme: light dark; --ink: light-dark(#1c2329, #e6eaec); --soft: light-dark(#5a646d, #a3adb4);
  --paper: light-dark(#f6f5f1, #101417); --sheet: light-dark(#fff, #181e22); --line: light-dark(#e2dfd6, #2a3237);
  --accent: light-dark(#0a626a, #6bcdd4); --good: light-dark(#22673f, #6cc48e); --amber: light-dark(#7a4f00, #e8b04a);
  --bad: light-dark(#ae3427, #f08a7c); }
* { box-sizing: border-box; margin: 0; }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 20px 40px; display: grid; gap: 16px; overflow-wrap: anywhere;
  font-variant-numeric: tabular-nums; }
h1 { font-size: 26px; line-height: 1.25; } h2 { font-size: 15px; } .soft, small { color: var(--soft); }
.result { font-size: 19px; font-weight: 640; } .good { color: var(--good); } .amber { color: var(--amber); }
.bad { color: var(--bad); }
.lanes { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 14px; }
.lane, blockquote { background: var(--sheet); border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px; }
.clock { font-size: 44px; font-weight: 650; line-height: 1.15; letter-spacing: -0.02em; }
.fast .clock { color: var(--accent); }
.track { height: 6px; margin: 6px 0 10px; border-radius: 3px; background: var(--line); overflow: hidden; }
.track i { display: block; height: 100%; width: 100%; background: var(--soft); }
.fast .track i { background: var(--accent); }
.text { height: 230px; overflow: auto; white-space: pre-wrap; }
.lane:only-child .text { height: auto; min-height: 4.5em; }
blockquote { border-left: 4px solid var(--accent); } section { display: grid; gap: 8px; }
button { justify-self: start; padding: 6px 16px; border: 1px solid var(--soft); border-radius: 99px; background: none;
  color: inherit; font: inherit; font-weight: 600; cursor: pointer; }
@media print { button { display: none; } .text { height: auto; } }
"""
SCRIPT = """
"use strict";
const lanes = [...document.querySelectorAll(".lane")].map((node) => {
  const [clock, bar, text] = [".clock", ".track i", ".text"].map((name) => node.querySelector(name));
  return { clock, bar, text, points: JSON.parse(node.dataset.points), words: Array.from(text.textContent) };
});
const most = Math.max(...lanes.map((lane) => lane.points.at(-1)[2]), 1);
const draw = (time) => {
  for (const { clock, bar, text, points, words } of lanes) {
    const at = points.findLast((point) => point[0] <= time);
    clock.textContent = `${(Math.min(time, points.at(-1)[0]) / 1000).toFixed(2)} s`;
    bar.style.width = `${(100 * at[2]) / most}%`;
    text.textContent = words.slice(0, at[1]).join("");
    text.scrollTop = time < points.at(-1)[0] ? text.scrollHeight : 0;
  }
};
const end = Math.max(...lanes.map((lane) => lane.points.at(-1)[0]));
let frame = 0;
document.querySelector("button")?.addEventListener("click", () => {
  cancelAnimationFrame(frame);
  const began = performance.now();
  const step = () => {
    const time = Math.min(performance.now() - began, end);
    draw(time);
    if (time < end) frame = requestAnimationFrame(step);
    else for (const lane of lanes) lane.text.textContent = lane.words.join("");
  };
  step();
});
"""
REPLAY = '<button type="button">Replay</button>'
HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{HASH}'"


class Passage(NamedTuple):
    """Words of an answer that stand in the book, and the page in words."""

    words: str
    page: str


def passages(text: str, book: Book) -> list[Passage]:
    """What the book has of an answer word for word, in order; neighbours on one page are one passage."""
    found: list[Passage] = []
    for one in book.evidence(text):
        if one.source is None:
            continue
        words, page = text[one.start : one.end], page_words(book, page_of(book, one.source.start))
        if found and found[-1].page == page:
            words = f"{found.pop().words} {words}"
        found.append(Passage(words, page))
    return found


def card_html(race: Race, book: Book | None) -> str:
    """One self-contained file.

    Args:
        book: the one the race was about, if it is still open: passages are searched in it.
    """
    found = result(race)
    head = f'<p class="result {found.tone}">{render.escape(found.text)}</p>' if found else ""
    sides = "".join(_side(race, lane) for lane in race.lanes)
    cited = passages((race.plain or race.lanes[0]).text, book) if book else []
    return sheet(
        race.question,
        f"{race.book} · {race.num_book:,} tokens, all of it in the context",
        f'{head}{_equality(race)}<div class="lanes">{sides}</div>{REPLAY}{cited_html(cited)}'
        f'<p class="soft">Raced {race.begun:%Y-%m-%d %H:%M} by TriForce Reader in turns; '
        f"a clock runs only while its lane computes.</p>",
    )


def sheet(question: str, about: str, body: str) -> str:
    """The file around a card's HTML. `question`, `about`: as plain text."""
    head = f'<header><p class="soft">{render.escape(about)}</p><h1>{render.escape(question)}</h1></header>'
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{POLICY}"><meta name="viewport" content="width=device-width, initial-scale=1"><meta '
        f'name="color-scheme" content="light dark"><title>{render.escape(question)}</title><style>{STYLE}</style>'
        f"</head><body><main>{head}{body}</main><script>{SCRIPT}</script></body></html>\n"
    )


def _equality(race: Race) -> str:
    """Only where it holds: what else there is to say of the words is in the result."""
    best = best_lane(race)
    if best is None or not is_identical(race, best):
        return ""
    count = formats.plural(best.stats.new_tokens, "token")
    return f'<p class="good">✓ Identical, token for token: {count} compared.</p>'


def _side(race: Race, lane: Trace) -> str:
    tone = "plain" if lane is race.plain else "fast"
    ending = f" · {ending_line(lane).lower()}{'' if lane.exact else ' · not exact'}"
    text = lane.text if lane.exact else short_text(lane.text, MOST_LOSSY_CHARS)
    return side_html(tone, json.dumps(trace_points(lane)), method_label(lane.method), lane.stats, text, ending)


def side_html(tone: str, points: str, label: str, stats: DecodeStats, text: str, more: str = "") -> str:
    """One text with its clock. `points`: JSON for the replay, as of `replay_points` for one lane."""
    counts = f"{formats.plural(stats.new_tokens, 'token')}, {formats.figure(stats.tokens_per_second)} a second{more}"
    return (
        f'<article class="lane {tone}" data-points="{render.escape(points)}"><h2>{render.escape(label)}</h2>'
        f'<p class="clock">{stats.decode_seconds:.2f} s</p><div class="track"><i></i></div>'
        f'<small>{render.escape(counts)}</small><p class="text" tabindex="0">'
        f"{render.escape(short_text(text, MOST_CHARS))}</p></article>"
    )


def cited_html(found: Sequence[Passage]) -> str:
    """Passages with their pages, the first few of them."""
    if not found:
        return ""
    quotes = "".join(
        f"<blockquote>{render.escape(short_text(words, MOST_PASSAGE_CHARS))} <small>{render.escape(page)}</small>"
        "</blockquote>"
        for words, page in found[:MOST_PASSAGES]
    )
    more = len(found) - MOST_PASSAGES
    rest = f"<small>and {formats.plural(more, 'passage')} more</small>" if more > 0 else ""
    return f"<section><h2>In the book, word for word</h2>{quotes}{rest}</section>"
