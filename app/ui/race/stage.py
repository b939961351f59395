"""The scenes of presenter mode around a race: the book, one real round in slow motion, and what came of it.

Pure functions to HTML. The page's script (assets/static/js/presenter.js) says which scene is seen; the styles move it.
"""

from zlib import crc32

from app import formats
from app.context.open_book import Book
from app.runtime.trace import Race, Trace, lead
from app.ui import render
from app.ui.race.result import is_stopped, result, verdict
from core.decoding.registry import method_label
from core.generation.events import TokenRecord

COVERS = ("#7a2e2e", "#1f4e5f", "#3d5a35", "#5b3a68", "#7a5520", "#2d4270")  # of books: white letters stand on them
COUNT = '<section class="scene count" aria-live="assertive"><b></b></section>'
GUESS_SECONDS, CHECK_SECONDS, PAUSE_SECONDS = 0.35, 0.6, 1.0  # of the slow motion
READ_SECONDS = 4.0  # its last sentence stays at least so long


def opening(book: Book | None) -> str:
    """The book, as the show begins; without one only what the countdown needs."""
    if book is None:
        return COUNT
    documents = [one.document for one in book.library.books] or [book.document]
    pages = formats.plural(sum(len(document.pages) for document in documents), "page")
    authors = ", ".join(dict.fromkeys(name for document in documents for name in document.authors))
    by = f'<p class="by">{render.escape(authors)}</p>' if authors else ""
    colour = COVERS[crc32(book.title.encode()) % len(COVERS)]
    return (
        f'<section class="scene opening" style="--cover:{colour}"><div class="jacket" {render.written(book.document)}>'
        f"<h2>{render.escape(book.title)}</h2>{by}</div>"
        f'<p class="size"><b>{pages}</b> · {book.num_tokens:,} tokens, all of them in the model’s context</p></section>'
        f"{COUNT}"
    )


def scenes(race: Race) -> str:
    """What follows a race: the slow motion, and the closing card."""
    told = result(race)
    if told is None or is_stopped(race):
        return ""
    return slow_motion(race, told.lane) + closing(race, told.lane)


# -------------------- one round


def typical_round(trace: Trace) -> list[TokenRecord]:
    """Of the rounds in which guesses held, the one whose size is nearest to the mean; empty: no guess held."""
    rounds: dict[int, list[TokenRecord]] = {}
    for record in trace.records:
        rounds.setdefault(record.round, []).append(record)
    mean = len(trace.records) / max(len(rounds), 1)
    held = {
        number: records
        for number, records in rounds.items()
        if any(record.origin.level != "full" for record in records) and all(record.text for record in records)
    }
    if not held:
        return []
    most = max(len({record.origin.level for record in records}) for records in held.values())
    full = [number for number, records in held.items() if len({one.origin.level for one in records}) == most]
    return held[min(full, key=lambda number: (abs(len(held[number]) - mean), number))]


def slow_motion(race: Race, lane: Trace) -> str:
    """The guesses that held, when each was checked, and the pass over the book that confirmed them."""
    records = typical_round(lane)
    if not records:
        return ""
    words, sure = _moving_words(records)
    count = formats.plural(len(records), "token")
    number, passes, book = records[0].round + 1, lane.stats.full_passes, f"{race.num_book:,}"
    steps = "".join(
        f'<li class="{key}"><b>{who}</b><span>{what}</span></li>'
        for key, who, what in (
            ("draft", "Guess", "a small model, or words that stood there before"),
            ("retrieval", "Check", "the model itself, over the part of the book that matters now"),
            ("full", "Confirm", f"the model itself, over all {book} tokens of the book, once"),
        )
        if any(_who(record) == key for record in records) or key == "full"
    )
    return (
        f'<section class="scene round" style="--sure:{sure:.2f}s" data-seconds="{sure + READ_SECONDS:.1f}">'
        f"<h2>One round in slow motion</h2><p class='which'>Round {number:,} of {passes:,} in this race, by "
        f"{render.escape(method_label(lane.method))}; guesses that did not hold are left out</p>"
        f'<ol class="steps">{steps}</ol><p class="words">{words}</p>'
        f'<p class="outcome">One pass over the book: <b>{count}</b>. Plain decoding: one.</p></section>'
    )


def _who(record: TokenRecord) -> str:
    return "draft" if record.origin.level in ("draft", "lookup") else record.origin.level


def _moving_words(records: list[TokenRecord]) -> tuple[str, float]:
    """Each word with the seconds at which it comes and at which it is checked; and when the book confirms them all."""
    times: list[float] = []
    checked: list[float] = [0.0] * len(records)
    now, unchecked = 0.5, 0
    for at, record in enumerate(records):
        now += GUESS_SECONDS if _who(record) == "draft" else CHECK_SECONDS
        times.append(now)
        if _who(record) != "draft":
            checked[unchecked : at + 1] = [now] * (at + 1 - unchecked)
            unchecked = at + 1
    checked[unchecked:] = [now + CHECK_SECONDS] * (len(records) - unchecked)
    sure = now + CHECK_SECONDS + PAUSE_SECONDS
    words = "".join(
        f'<span class="w {_who(record)}" style="--at:{sure if _who(record) == "full" else time:.2f}s;--ok:{ok:.2f}s">'
        f"{render.escape(record.text)}</span>"
        for record, time, ok in zip(records, times, checked, strict=True)
    )
    return words, sure


# -------------------- the end


def closing(race: Race, lane: Trace) -> str:
    """Both times, and whether the texts are the same."""
    plain, found = race.plain, race.judgements.get(lane.method)
    assert plain is not None, "a result without plain decoding"
    tone, _, words = verdict(race, lane)
    if tone == "good" and found and found.whole:
        words = "identical, token for token"
    speedup = lead(lane, plain).speedup or 1.0
    ratio = f"{speedup:.1f}× as fast" if speedup >= 1 else f"plain was {1 / speedup:.1f}× as fast"
    clocks = "".join(
        f'<div class="{tone}"><b>{one.stats.decode_seconds:.1f} s</b>'
        f"<span>{render.escape(method_label(one.method))}</span>"
        f"<span>{formats.plural(one.stats.new_tokens, 'token')}</span></div>"
        for one, tone in ((plain, "plain"), (lane, "fast"))
    )
    return (
        f'<section class="scene closing"><p class="of">{render.escape(race.book)}</p>'
        f'<p class="about">{render.escape(race.question)}</p><div class="clocks">{clocks}</div>'
        f'<p class="ratio">{ratio}</p>'
        f'<p class="equal {tone}">{render.escape(words)}</p></section>'
    )
