"""What happens to a shelf on the engine's thread, for the streams of `app/runtime/worker.py`."""

from dataclasses import dataclass

from app.context.uploads import Fit
from app.runtime.sessions import Book


@dataclass(frozen=True, slots=True)
class Counting:
    """A text is being cut into tokens."""


@dataclass(frozen=True, slots=True)
class BookOpened:
    """The shelf is the session's book now; what is new of it has not been read by the model yet."""

    book: Book


@dataclass(frozen=True, slots=True)
class ShelfTooLong:
    """The context does not hold the shelf. The book that was open stays open, and something can be chosen."""

    fit: Fit


@dataclass(frozen=True, slots=True)
class ShelfClosed:
    """The shelf is empty, and so there is no book."""


ShelfEvent = Counting | BookOpened | ShelfTooLong | ShelfClosed
