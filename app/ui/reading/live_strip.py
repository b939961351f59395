"""What an answer does while nothing but its figures tells it: the strip of figures, and why there is no word yet."""

from app import formats
from app.context.open_book import Book
from app.runtime.events import Waiting
from app.runtime.sessions import Session, Writing
from app.runtime.trace import Asked, Trace
from app.ui import render
from core.decoding.registry import METHODS, PLAIN, REMOTE, is_exact, method_label
from core.decoding.stats import DecodeStats, LevelStats
from core.generation.events import Finished, PrefillProgress, StopReason

ENDINGS: dict[StopReason, str] = {
    "end_of_text": "Complete",
    "stop_string": "Complete",
    "max_new_tokens": "At the limit of tokens",
    "context_full": "The context is full",
    "repeating": "It went on repeating itself",
    "time_up": "Time is up",
    "cancelled": "Stopped",
}
UNTIL = {  # what a job waits for
    "loading": " until the model is loaded",
    "opening": " until the book is open",
    "reading": " until the book is read",
    "saving": " until the book is on disk",
    "answer": " until this page’s answer is written",
    "race": " until this page’s race has ended",
}
ASK = "Ask a question: the figures of the answer appear here."
ACCEPTED = (
    "Of the guessed tokens, the share that was accepted: of the draft's by the pages at hand (retrieval), "
    "and of what these let pass by the whole book."
)
LEVEL1 = "Of the draft's guesses that the retrieval cache tested, the share it accepted."
LEVEL2 = "Of the guesses that were tested against the whole book, the share that was accepted."
PASSES = "Tokens committed per pass over the full cache. Plain decoding gets exactly 1."
REREAD = "Tokens of the book that had to be read again for this answer."
SPEED = "Decoding only; the time to read the prompt is not in it."
LEAST_SECONDS = 2.0  # shorter waits are not counted down


# -------------------- the strip


def strip(trace: Trace | None = None, told: str = ASK, num_reread: int | None = None) -> str:
    """The strip of an answer, or of none.

    Args:
        told: why it is not written yet; "": its turn has come.
        num_reread: tokens of the book that were read again for a past answer.
    """
    trace, share = trace or Trace("", ""), 0.0
    method, stats, finished, reading = trace.method, trace.stats, trace.finished, trace.reading
    name = method_label(method)
    badges = render.chip(name, tone="method") if name else ""
    if is_exact(method):
        badges += render.exactness(True)
    if reading and not stats.new_tokens and not finished:
        share = reading.done_tokens / max(reading.total_tokens, 1)
    status = told or _status(trace)
    bar = render.bar(share, status if share else "", tone="thin")
    state = "resting empty" if not method else "resting" if finished else "running"
    shown = "".join(tiles(trace))
    if method != REMOTE:  # a server elsewhere does not tell what it reads
        book = f"of {trace.num_book:,} book tokens" if trace.num_book else "book tokens"
        num_reread = trace.num_reread if num_reread is None else num_reread
        reread = formats.NONE_YET if num_reread is None else formats.count(num_reread)
        shown += render.tile("reread", "Re-read", reread, book, title=REREAD)
    return (
        f'<section class="strip {state}" aria-label="Live figures">'
        f'<div class="strip-head"><span class="dot"></span>'
        f'<span class="status">{render.escape(status)}{_amount(finished)}</span>{_brief(method, stats)}'
        f'<span class="badges">{badges}</span></div>{bar}<div class="tiles">{shown}</div></section>'
    )


def _status(trace: Trace) -> str:
    """How far an answer is."""
    stats = trace.stats
    if trace.finished is not None:
        ending = ENDINGS[trace.finished.stop_reason].replace("Complete", "Answer complete")
        return ending + (" while it was thinking" if trace.finished.in_thought else "")
    if stats.new_tokens:
        what = "Writing" if stats.answer_tokens or not stats.thought_tokens else "Thinking"
        return f"{what} · {formats.plural(stats.new_tokens, 'token')}"
    return reading_line(trace)


def _amount(finished: Finished | None) -> str:
    """How much was written; a folded strip has no room for it, and the answer says it too."""
    if finished is None or not finished.stats.new_tokens:
        return ""
    stats = finished.stats
    told = f" · {formats.plural(stats.new_tokens, 'token')} in {formats.duration(stats.decode_seconds)}"
    if stats.thought_tokens and finished.text:
        told += f", {formats.count(stats.thought_tokens)} of them thought"
    return f'<span class="amount">{told}</span>'


def _guesser(name: str) -> str:
    """Who guesses at level 1."""
    method = METHODS.get(name)
    if method is None or not method.lookup_at_least:
        return "draft"
    return "draft and lookups" if method.needs_draft else "lookups"


def _brief(method: str, stats: DecodeStats) -> str:
    """Speed and acceptance in a few words, for the folded strip."""
    told = ""
    if stats.tokens_per_second is not None:
        told = f'<span title="{SPEED}"><b>{formats.figure(stats.tokens_per_second)}</b> tokens/s</span>'
    levels = {_guesser(method): _acceptance(stats.level1), "retrieval": _acceptance(stats.level2)}
    shares = {level: f"<b>{formats.percent(share)}</b>" for level, share in levels.items() if share is not None}
    if shares:
        accepted = ", ".join(f"{level} {share}" for level, share in shares.items())
        accepted = accepted if len(shares) > 1 else "".join(shares.values())
        told += f'<span class="accepted" title="{ACCEPTED}">guesses right: {accepted}</span>'
    return f'<span class="brief">{told}</span>'


def tiles(trace: Trace) -> list[str]:
    """The big numbers of an answer."""
    method, stats, ms = trace.method, trace.stats, "of decoding alone"
    unused = "not used by plain decoding" if method == PLAIN else ""
    if stats.ms_per_token is not None:
        ms = f"{formats.figure(stats.ms_per_token)} ms per token"
    unit = "tokens/s" if stats.tokens_per_second is not None else ""
    speed = render.tile("speed", "Speed", formats.figure(stats.tokens_per_second), ms, unit=unit, title=SPEED)
    if method == REMOTE:
        return [speed]

    def accepted(number: int, level: LevelStats | None, at_first: str, title: str) -> str:
        share, below = _acceptance(level), unused or at_first
        if level is not None and level.tested:
            below = f"{level.accepted:,} of {level.tested:,} guesses"
        name = f"Accepted, level {number}"
        return render.tile(f"level{number}", name, formats.percent(share), below, share=share, title=title)

    passes = formats.figure(stats.tokens_per_full_pass if stats.new_tokens else None)
    return [
        speed,
        accepted(1, stats.level1, f"{_guesser(method)} → retrieval", LEVEL1),
        accepted(2, stats.level2, "guesses → book", LEVEL2),
        render.tile("passes", "Tokens per full pass", passes, "plain decoding: 1", title=PASSES),
    ]


def _acceptance(level: LevelStats | None) -> float | None:
    return level.acceptance if level else None


# -------------------- in words


def waits(writing: Writing, session: Session) -> str:
    """Why an answer has no word yet, and how long that takes; "" once its turn has come and nothing is read for it."""
    waiting, doing, trace = writing.waiting, session.doing, writing.trace
    if waiting is not None:
        if waiting.reason == "own job" and isinstance(doing, PrefillProgress):
            return f"{waiting_line(waiting)} · {far(doing, session.book)}"
        return waiting_line(waiting)
    if not writing.begun:
        return "Waiting for its turn"
    return reading_line(trace, session.book) if trace.reading and not trace.stats.new_tokens else ""


def waiting_line(waiting: Waiting) -> str:
    """Why a job has not begun."""
    if waiting.reason == "another page":
        pages = "another page" if waiting.num_ahead == 1 else f"{waiting.num_ahead} other pages"
        return f"Queued: {pages} first, one at a time uses the model"
    return "Waiting" + UNTIL[waiting.own if waiting.reason == "own job" else waiting.reason]


def reading_line(asked: Asked, book: Book | None = None) -> str:
    """What is being read: the question, the book, or the book once more; and how far."""
    progress = asked.reading
    if progress is None or progress.total_tokens - progress.reused_tokens <= asked.num_book / 2:
        return "Reading the question"
    again = " again (another page used the model)" if asked.num_reread else ""
    return f"Reading the book{again} · {far(progress, book)}"


def far(progress: PrefillProgress, book: Book | None) -> str:
    """The same, with the page that is read."""
    return " · ".join(filter(None, (page_reached(book, progress.done_tokens), time_left(progress))))


def time_left(progress: PrefillProgress) -> str:
    """How far a reading is, and how long it still takes."""
    left, told = progress.remaining_seconds, f"{progress.done_tokens / max(progress.total_tokens, 1):.0%}"
    return f"{told} · {formats.about(left)} left" if left is not None and left >= LEAST_SECONDS else told


def page_reached(book: Book | None, num_tokens: int) -> str:
    """ "page 12 of 300" of the newest token read, by position; "" of several documents."""
    if book is None or not book.starts or len(book.library.books) != 1:
        return ""
    token = min(max(num_tokens - book.first_token, 0), len(book.starts) - 1)
    page = book.library.place(book.starts[token]).page
    return f"page {page.number:,} of {len(book.document.pages):,}"
