"""What the disk does with the book of one page: opened from there, offered, written."""

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
    """One book of one page, and the disk."""

    book: "Book | None" = None
    doing: BookMoving | None = None
    num_fetched: int = 0  # tokens that came from disk
    fetch_seconds: float = 0.0
    once_seconds: float = 0.0  # that reading it had taken
    offer: "ReadBook | None" = None  # can be kept; nobody has said yes or no
    wanted: bool = False  # yes
    writing: "Generator[Moving | Kept] | None" = None
    kept_bytes: int = 0  # on disk since this reading
    note: str = ""

    def decline(self, note: str = "") -> None:
        """It is not to be kept, or cannot be."""
        self.offer, self.wanted, self.note, self.doing = None, False, note, None
        writing, self.writing = self.writing, None
        if writing is not None:
            with contextlib.suppress(ValueError):  # it is at work just now, and is told by its job
                writing.close()
