"""The proof card: one race as a small page that needs no other file.

Question, cited passages, both clocks, equality, and a replay on the clocks that were measured. Its only script is its
own, named by its hash in the page's policy; all words of books and models are escaped.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import replace

from app import formats
from app.context.open_book import Book
from app.runtime.trace import Race, Trace
from app.ui import render
from app.ui.assets import STATIC
from app.ui.race.result import result
from app.ui.race.view import lane_html, replay_points, short_text
from app.ui.reading.where import page_of, page_words
from core.decoding.registry import METHODS

MOST_PASSAGES, MOST_PASSAGE_CHARS = 4, 240
MOST_CHARS, MOST_LOSSY_CHARS = 12_000, 160  # of one lane's text, exact or not
COLOURS = (STATIC / "css" / "theme.css").read_text(encoding="utf-8").partition("/* Gradio")[0]
STYLE = (
    f"{COLOURS}\n"
    + """
* { box-sizing: border-box; margin: 0; }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 20px 40px; display: grid; gap: 16px; overflow-wrap: anywhere;
  font-variant-numeric: tabular-nums; }
h1 { font-size: 26px; line-height: 1.25; } :is(h2, h3) { font-size: 15px; }
.soft, small, span { color: var(--ink-soft); }
.result { font-size: 19px; font-weight: 640; } .good { color: var(--good); } .amber { color: var(--warn); }
.bad { color: var(--bad); }
.board { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 14px; }
.lane, blockquote { background: var(--sheet); border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px; }
.lane { display: flex; flex-direction: column; }
.lane header, .counts { display: flex; gap: 4px 14px; flex-wrap: wrap; }
.counts { align-items: baseline; } .counts span:has(.clock) { order: -1; flex: 1 0 100%; }
.clock { font-size: 44px; font-weight: 650; line-height: 1.15; letter-spacing: -0.02em; color: var(--ink); }
.fast .clock { color: var(--accent); }
.track { order: 1; height: 6px; margin: 6px 0 10px; border-radius: 3px; background: var(--line); overflow: hidden; }
.track span { display: block; height: 100%; background: var(--ink-soft); }
.fast .track span { background: var(--accent); }
.lane-text { order: 2; height: 230px; overflow: auto; white-space: pre-wrap; }
.lane:only-child .lane-text { height: auto; min-height: 4.5em; }
blockquote { border-left: 4px solid var(--accent); } section { display: grid; gap: 8px; }
button { padding: 6px 16px; border: 1px solid var(--ink-soft); border-radius: 99px; background: none; color: inherit;
  font: inherit; font-weight: 600; cursor: pointer; }
@media print { button { display: none; } .lane-text { height: auto; } }
"""
)
SCRIPT = (STATIC / "js" / "replay.js").read_text(encoding="utf-8")
HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{HASH}'"
REPLAY = '<p><button type="button" data-speed="1">Replay</button> <span class="status"></span></p>'
RACED = "by TriForce Reader in turns; a clock runs only while its lane computes."


def passages(text: str, book: Book) -> list[tuple[str, str]]:
    """What the book has of an answer word for word, and the page in words; neighbours on one page are one passage."""
    found: list[tuple[str, str]] = []
    for one in book.evidence(text):
        if one.source is None:
            continue
        words, page = text[one.start : one.end], page_words(book, page_of(book, one.source.start))
        if found and found[-1][1] == page:
            words = f"{found.pop()[0]} {words}"
        found.append((words, page))
    return found


def card_html(race: Race, book: Book | None, *, told: str = "", result_of: str = "") -> str:
    """One self-contained file about a race, or about an answer, as a race of one lane.

    Args:
        book: the one it was about, if it is still open: passages are searched in it.
        told: how it was made, where that was no race.
        result_of: HTML above the lanes, in place of the result of a race.
    """
    found, question = result(race), render.escape(race.question)
    cited = passages((race.plain or race.lanes[0]).text, book) if book else []
    if found:
        result_of = f'<p class="result {found.tone}">{render.escape(found.text)}</p>'
    short = replace(race, lanes=tuple(map(_shortened, race.lanes)))
    sides = "".join(lane_html(short, number) for number in range(len(short.lanes)))
    about = render.escape(f"{race.book} · {race.num_book:,} tokens, all of it in the context")
    told = told or f"Raced {race.begun:%Y-%m-%d %H:%M} {RACED}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{POLICY}"><meta name="viewport" content="width=device-width, initial-scale=1"><meta '
        f'name="color-scheme" content="light dark"><title>{question}</title><style>{STYLE}</style></head><body><main>'
        f'<header><p class="soft">{about}</p><h1>{question}</h1></header>{result_of}'
        f'<section class="race" data-replay="{render.escape(replay_points(race))}"><div class="board">{sides}</div>'
        f"{REPLAY if any(len(lane.points) > 2 for lane in race.lanes) else ''}</section>"
        f'{cited_html(cited)}<p class="soft">{render.escape(told)}</p></main><script type="module">{SCRIPT}</script>'
        "</body></html>\n"
    )


def _shortened(lane: Trace) -> Trace:
    """A lane as the card shows it: more of a text that is not exact would prove nothing."""
    most = MOST_CHARS if lane.exact or lane.method not in METHODS else MOST_LOSSY_CHARS
    return replace(lane, thought="", answer=short_text(lane.text, most))


def cited_html(found: Sequence[tuple[str, str]]) -> str:
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
