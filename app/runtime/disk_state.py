"""The state of one page's book on disk: fetched, offered for saving, being written."""

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.runtime.events import BookMoving

if TYPE_CHECKING:
    from app.context.open_book import Book
    from core.kv_store.engine_store import Kept, Moving, ReadBook


@dataclass(slots=True, eq=False)
class DiskState:
    """The state of one page's book on disk."""

    book: "Book | None" = None
    doing: BookMoving | None = None
    num_fetched: int = 0  # tokens fetched from disk
    fetch_seconds: float = 0.0
    offer: "ReadBook | None" = None  # may be saved; not yet accepted or declined
    wanted: bool = False  # accepted
    writing: "Generator[Moving | Kept] | None" = None
    kept_bytes: int = 0  # bytes saved since this reading
    note: str = ""

    def decline(self, note: str = "") -> None:
        """Do not save the book, because the reader declined or because it is impossible."""
        self.offer, self.wanted, self.note, self.doing = None, False, note, None
        writing, self.writing = self.writing, None
        if writing is not None:
            with contextlib.suppress(ValueError):  # the generator is running; its job ends it
                writing.close()
