"""Books on disk as shown by the page: in the card of the open book, and as a list. Pure functions."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from app import formats
from app.runtime.reopening import keeping
from app.runtime.saved_books import LEAST_REUSED, disk_state
from app.runtime.sessions import Session
from app.ui import render

NOTHING_KEPT = "No saved books yet. A book that took long to read can be saved; it then opens in seconds."

KEEP_TITLE = "Write its text to the data folder, so that its conversations open it again with one click"


@dataclass(frozen=True, slots=True)
class SavedLine:
    """One book of the list."""

    id: str
    name: str
    num_tokens: int
    size_bytes: int
    used: float  # seconds since 1970
    read_seconds: float


MOST_READ_AGAIN = 64  # tokens at the end of an opening that are read again whatever is in memory


def how_read(session: Session) -> str:
    """How the model got the book: read or fetched from disk."""
    state = disk_state(session)
    if state.num_fetched:
        once = f" instead of read in {formats.duration(state.once_seconds)}" if state.once_seconds else ""
        rest = (session.book.num_opening - 1 if session.book else 0) - state.num_fetched
        added = f"; {formats.plural(rest, 'token')} at the end read anew" if rest > 0 else ""
        return f"Opened from disk in {formats.duration(state.fetch_seconds)}{once}{added}."
    whole = session.book.num_opening - 1 if session.book else 0
    if whole and session.num_reused >= LEAST_REUSED * whole:
        took = formats.duration(session.read_seconds) if session.read_seconds else ""
        had = formats.percent(session.num_reused / whole)
        if whole - session.num_reused <= MOST_READ_AGAIN:
            return f"Opened again {f'in {took}' if took else 'at once'}: it was still in memory."
        return f"Read{f' in {took}' if took else ''}: {had} of it was still in memory."
    how = f" once, in {formats.duration(session.read_seconds)}" if session.read_seconds > 0 else ""
    return f"Read{how}."


def on_disk(session: Session) -> str:
    """Whether the book is saved, or the question whether to save it."""
    state = disk_state(session)
    if state.kept_bytes:
        return f'<p class="quiet">Saved on disk: {formats.amount(state.kept_bytes)}.</p>'
    if state.note:
        return f'<p class="quiet">{render.escape(state.note)}</p>'
    if state.offer is None or not _asks(session):
        return ""
    size = formats.amount(state.offer.size_bytes)
    return (
        f'<div class="keeping"><p>Save what was read? It takes {size} on disk, and the book then opens in seconds.</p>'
        f"{render.button('Save it', 'keep')}{render.link('Do not save', 'keep-not')}</div>"
    )


def _asks(session: Session) -> bool:
    """The reader is asked whether to save what was read."""
    state = disk_state(session)
    return not (state.kept_bytes or state.note or state.offer is None or state.wanted)


def keep_line(session: Session) -> str:
    """Whether conversations can open the book again by themselves, and the button that changes it."""
    kept = keeping(session)
    if kept is None or _asks(session):  # one question at a time
        return ""
    verb, label, title = "keep-texts", "Keep its text", KEEP_TITLE
    if kept:
        verb, label, title = (
            "forget-texts",
            "Delete the kept text",
            "The open book stays; its conversations no longer open it by themselves",
        )
    told = "Its text is kept: its conversations open it again. " if kept else ""
    return f'<p class="quiet keep-line">{told}{render.link(label, verb, title=title)}</p>'


def saved_list(books: Sequence[SavedLine], cap_bytes: int, notices: Sequence[str], now: float | None = None) -> str:
    """All books on disk with their sizes, each with a button to remove it."""
    now = time.time() if now is None else now
    total = sum(book.size_bytes for book in books)
    rows = "".join(
        f"<li><span><b>{render.escape(book.name)}</b><i>{book.num_tokens:,} tokens · "
        f"{formats.amount(book.size_bytes)} · used {formats.duration(max(0.0, now - book.used))} ago</i></span>"
        f"{render.link('Remove', f'unkeep:{book.id}', name=f'Remove {book.name} from disk')}</li>"
        for book in books
    )
    told = "".join(f'<p class="quiet" role="status">{render.escape(notice)}</p>' for notice in notices)
    body = f'<ul class="kept">{rows}</ul>' if rows else f'<p class="quiet">{NOTHING_KEPT}</p>'
    share = render.bar(total / cap_bytes if cap_bytes else 0.0, "Room taken on disk")
    head = f"{formats.amount(total) if total else 'Nothing'} of {formats.amount(cap_bytes)}"
    return f'<section class="card kept-books" aria-label="Saved books"><p>{head}</p>{share}{body}{told}</section>'
