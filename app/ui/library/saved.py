"""The books on disk, in the tab "Library": whether books are saved, their size limit, and their list."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from app import formats
from app.runtime.sessions import Session
from app.ui import render
from app.ui.acts import Act, Values
from app.ui.site import Site
from core.errors import InvalidSetting

if TYPE_CHECKING:  # importing it loads torch
    from core.kv_store.folder import SavedBook, SavingMode

GIB = 1 << 30
CHOICES = [("Ask, with the size", "ask"), ("Always", "always"), ("Never", "never")]
ABOUT = "A saved book opens in seconds after a restart. Its text is then on this machine’s disk."
FIRST_OUT = "The books unused for longest go first."
NOTHING_KEPT = "No saved books yet. A book that took long to read can be saved; it then opens in seconds."


def saved_books(site: Site, _session: Session) -> str:
    """The folded section. It is drawn from the folder every time: other programs use it too."""
    folder, body = site.worker.saved_books.folder, '<p class="quiet">This start keeps no books.</p>'
    if folder is not None:
        settings = folder.settings
        body = render.radios(
            "<legend>Save what was read</legend>",
            [(label, f'name="keeping" data-act-change="keeping:{value}"') for label, value in CHOICES],
            info=ABOUT,
            also=' id="keeping"',
            value=f'name="keeping" data-act-change="keeping:{settings.keeping}"',
        )
        field = f'min="0" step="any" value="{settings.cap_bytes / GIB:g}" data-act-change="saved-room" data-keep'
        body += render.number("Room, GiB", field, info=FIRST_OUT, also=' id="kept-room"')
        body += saved_list(folder.books(), settings.cap_bytes, folder.notices)
    return (
        f'<details id="kept" class="fold-part" data-keep><summary role="button">Saved books</summary>{body}</details>'
    )


def saved_list(books: "Sequence[SavedBook]", cap_bytes: int, notices: Sequence[str], now: float | None = None) -> str:
    """All books on disk with their sizes, each with a button to remove it."""
    now = time.time() if now is None else now
    total = sum(book.size_bytes for book in books)
    rows = "".join(
        f"<li><span><b>{render.escape(book.name)}</b><i>{book.label.num_tokens:,} tokens · "
        f"{formats.amount(book.size_bytes)} · used {formats.duration(max(0.0, now - book.used))} ago</i></span>"
        f"{render.link('Remove', f'unkeep:{book.id}', name=f'Remove {book.name} from disk')}</li>"
        for book in books
    )
    told = "".join(f'<p class="quiet" role="status">{render.escape(notice)}</p>' for notice in notices)
    body = f'<ul class="kept">{rows}</ul>' if rows else f'<p class="quiet">{NOTHING_KEPT}</p>'
    share = render.bar(total / cap_bytes if cap_bytes else 0.0, "Room taken on disk")
    head = f"{formats.amount(total) if total else 'Nothing'} of {formats.amount(cap_bytes)}"
    return f'<section class="card kept-books" aria-label="Saved books"><p>{head}</p>{share}{body}{told}</section>'


def remove(site: Site, _session: Session, book_id: str, _values: Values) -> None:
    """Delete a saved book."""
    if (folder := site.worker.saved_books.folder) is not None:
        for book in folder.books():
            if book.id == book_id:
                folder.remove(book)


def choose(site: Site, _session: Session, keeping: str, _values: Values) -> None:
    """Set whether books are saved. Raises InvalidSetting."""
    if (folder := site.worker.saved_books.folder) is not None:
        folder.choose(replace(folder.settings, keeping=cast("SavingMode", keeping)))  # which checks it


def choose_room(site: Site, _session: Session, _detail: str, values: Values) -> None:
    """Set the size limit, in GiB. Raises InvalidSetting."""
    try:
        room = int(float(str(values["value"])) * GIB)
    except (ValueError, OverflowError) as error:
        raise InvalidSetting("The size limit is no number.", hint="Give it in GiB, for example 40.") from error
    if (folder := site.worker.saved_books.folder) is not None:
        folder.choose(replace(folder.settings, cap_bytes=room))


ACTS: dict[str, Act] = {"unkeep": remove, "keeping": choose, "saved-room": choose_room}
