"""What is kept of a few lengths of a text, so that a rewind to one of them finds it again."""

from typing import TypeVar

T = TypeVar("T")


class Marks(dict[int, T]):
    """What is kept, by length, oldest first: of the newest lengths, and of the shortest (a book's end)."""

    def keep(self, length: int, kept: T, most: int) -> None:
        """Keep something of this length, and of at most so many lengths."""
        self.pop(length, None)
        self[length] = kept
        if len(self) > most:
            del self[next(mark for mark in self if mark != min(self))]

    def truncate(self, length: int) -> None:
        """Forget what was kept of longer texts."""
        for mark in [mark for mark in self if mark > length]:
            del self[mark]  # it belongs to forgotten tokens

    def before(self, length: int) -> int:
        """The longest of the lengths up to this one; 0: there is none."""
        return max((mark for mark in self if mark <= length), default=0)
