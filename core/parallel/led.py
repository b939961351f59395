"""Rank 0's caches: the ordinary ones, which tell the other ranks whatever changes them outside a pass."""

from collections.abc import Callable
from itertools import count
from typing import Self

from core.caches.full import FullCache, Tail
from core.caches.retrieval import RetrievalCache
from core.caches.selection import ChunkPolicy
from core.parallel.orders import Attach, Detach, Forget, Order, Select, Truncate

Tell = Callable[[Order], None]


class LedFullCache(FullCache):
    """The full cache of rank 0's heads."""

    _tell: Tell

    def lead(self, tell: Tell) -> Self:
        """Tell the others from here on; once, while it is empty."""
        self._tell = tell
        self._numbers = count()
        self._aside: dict[int, tuple[int, Tail]] = {}  # by identity: rows cannot be compared
        return self

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on, on every rank."""
        if length < self.length:
            self._tell(Truncate("full", length))
        super().truncate(length)

    def detach(self, start: int) -> Tail:
        """Take out what was seen from `start` on, on every rank."""
        number = next(self._numbers)
        self._tell(Detach(number, start))
        tail = super().detach(start)
        self._aside[id(tail)] = (number, tail)
        return tail

    def attach(self, tail: Tail) -> None:
        """Put a tail back, on every rank."""
        number, _ = self._aside.pop(id(tail))
        self._tell(Attach(number))
        super().attach(tail)

    def forget(self, tail: Tail) -> None:
        """Free a tail on every rank."""
        number, _ = self._aside.pop(id(tail))
        self._tell(Forget(number))


class LedRetrievalCache(RetrievalCache):
    """A retrieval cache of rank 0's heads."""

    def __init__(self, full: FullCache, policy: ChunkPolicy, name: str, tell: Tell) -> None:
        super().__init__(full, policy)
        self._name, self._tell = name, tell

    def select(self) -> None:
        """Choose chunks anew on every rank, each for its heads and all at the same time."""
        self._tell(Select(self._name))
        super().select()

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on, on every rank."""
        if length < self.length:
            self._tell(Truncate(self._name, length))
        super().truncate(length)
