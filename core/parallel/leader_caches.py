"""Rank 0's caches: the ordinary ones, which tell the other ranks whatever changes them outside a pass."""

from collections.abc import Callable
from itertools import count
from typing import Self

from core.caches.full import FullCache, Suffix
from core.caches.policies import ChunkPolicy
from core.caches.retrieval import HeldPart, RetrievalCache
from core.parallel.commands import (
    Attach,
    Detach,
    Forget,
    ForgetPart,
    Order,
    PutBack,
    Remember,
    Select,
    SetAside,
    Truncate,
)

Tell = Callable[[Order], None]


class LedFullCache(FullCache):
    """The full cache of rank 0's heads."""

    _tell: Tell

    def lead(self, tell: Tell) -> Self:
        """Tell the others from here on; once, while it is empty."""
        self._tell = tell
        self._numbers = count()
        self._aside: dict[int, tuple[int, Suffix]] = {}  # by identity: rows cannot be compared
        return self

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on, on every rank."""
        if length < self.length:
            self._tell(Truncate("full", length))
        super().truncate(length)

    def remember_queries(self, num_queries: int) -> None:
        """Keep the newest queries, on every rank."""
        self._tell(Remember(num_queries))
        super().remember_queries(num_queries)

    def detach(self, start: int) -> Suffix:
        """Take out what was seen from `start` on, on every rank."""
        number = next(self._numbers)
        self._tell(Detach(number, start))
        suffix = super().detach(start)
        self._aside[id(suffix)] = (number, suffix)
        return suffix

    def attach(self, suffix: Suffix) -> None:
        """Put a suffix back, on every rank."""
        number, _ = self._aside.pop(id(suffix))
        self._tell(Attach(number))
        super().attach(suffix)

    def forget(self, suffix: Suffix) -> None:
        """Free a tail on every rank."""
        number, _ = self._aside.pop(id(suffix))
        self._tell(Forget(number))


class LedRetrievalCache(RetrievalCache):
    """A retrieval cache of rank 0's heads."""

    def __init__(self, full: FullCache, policy: ChunkPolicy, name: str, tell: Tell) -> None:
        super().__init__(full, policy)
        self._name, self._tell = name, tell
        self._numbers = count()
        self._aside: dict[int, int] = {}  # numbers of what lies aside, by identity

    def select(self) -> None:
        """Choose chunks anew on every rank, each for its heads and all at the same time."""
        self._tell(Select(self._name))
        super().select()

    def set_aside(self) -> HeldPart:
        """What is held now, on every rank: each holds other chunks for its heads."""
        number = next(self._numbers)
        self._tell(SetAside(self._name, number))
        part = super().set_aside()
        self._aside[id(part)] = number
        return part

    def put_back(self, part: HeldPart, shared: int) -> None:
        """Hold again what was set aside, on every rank."""
        self._tell(PutBack(self._name, self._aside.pop(id(part)), shared))
        super().put_back(part, shared)

    def forget(self, part: HeldPart) -> None:
        """Free what was set aside, on every rank."""
        self._tell(ForgetPart(self._name, self._aside.pop(id(part))))

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on, on every rank."""
        if length < self.length:
            self._tell(Truncate(self._name, length))
        super().truncate(length)
