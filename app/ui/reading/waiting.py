"""What a reader waits for, in words: how far in pages, how long still. The same in the card, the bubble and the title.

The page's script shows it in the tab's title, too, and tells when a long reading has ended.
"""

from collections.abc import Sequence
from typing import Any

from app import formats
from app.context.open_book import Book
from app.runtime.events import AnswerBegun, Waiting, WorkerEvent
from app.runtime.sessions import Session
from app.ui import render
from app.ui.reading.live_strip import waiting_line
from core.generation.events import PrefillProgress

LONG_SECONDS = 20.0  # of a whole reading, from which on its end is worth a notice
BACK = '<p class="quiet">Stop puts the question back into its box, to be changed.</p>'
LEAST_SECONDS = 2.0  # shorter waits are not counted down


def until(progress: PrefillProgress) -> str:
    """How far a reading is, and how long it still takes, as HTML; tokens and their rate in its tooltip."""
    elapsed = progress.elapsed_seconds
    note = f"{progress.done_tokens:,} of {formats.plural(progress.total_tokens, 'token')}"
    if elapsed > 0 and progress.done_tokens > progress.reused_tokens:
        rate = formats.figure((progress.done_tokens - progress.reused_tokens) / elapsed)
        note += f", {rate} a second so far; later ones take longer, and the time left counts that"
    return f'<b class="until" title="{render.escape(note)}">{waits_for(progress)["told"]}</b>'


def waits_for(progress: PrefillProgress) -> dict[str, Any]:
    """The same in words, and whether the whole reading is a long one."""
    left, told = progress.remaining_seconds, f"{progress.done_tokens / max(progress.total_tokens, 1):.0%}"
    if left is not None and left >= LEAST_SECONDS:
        told += f" · {formats.about(left)} left"
    return {"told": told, "long": progress.elapsed_seconds + (left or 0.0) >= LONG_SECONDS}


def page_reached(book: Book | None, num_tokens: int) -> str:
    """ "page 12 of 300" of the newest token read, by position; "" of several documents."""
    if book is None or not book.starts or len(book.library.books) != 1:
        return ""
    token = min(max(num_tokens - book.first_token, 0), len(book.starts) - 1)
    page = book.library.place(book.starts[token]).page
    return f"page {page.number:,} of {len(book.document.pages):,}"


class AnswerWait:
    """Why an answer has no word yet, for its bubble."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: Waiting | None = None
        self._begun: AnswerBegun | None = None
        self.progress: PrefillProgress | None = None

    def apply(self, events: Sequence[WorkerEvent]) -> "AnswerWait":
        """Apply events."""
        for event in events:
            match event:
                case Waiting():
                    self._waiting = event
                case AnswerBegun():
                    self._waiting, self._begun = None, event
                case PrefillProgress():
                    self.progress = event
        return self

    def html(self) -> str:
        """One line; "" before anything is known."""
        session, progress = self._session, self.progress
        if self._waiting is not None:
            doing = session.doing
            what = waiting_line(self._waiting)
            if self._waiting.reason == "own job" and isinstance(doing, PrefillProgress):
                return _line(what, page_reached(session.book, doing.done_tokens), until(doing)) + BACK
            return _line(what) + BACK
        if progress is None or self._begun is None:
            return ""
        if progress.total_tokens - progress.reused_tokens <= self._begun.num_book / 2:
            return _line("Reading the question")
        again = min(self._begun.num_read_before, self._begun.num_book) > progress.reused_tokens
        what = "Reading the book again: another page used the model" if again else "Reading the book"
        return _line(what, page_reached(session.book, progress.done_tokens), until(progress))


def _line(*parts: str) -> str:
    """Parts with a dot between; the last may be HTML of `until`."""
    return f'<div class="waits">{" · ".join(filter(None, parts))}</div>'
