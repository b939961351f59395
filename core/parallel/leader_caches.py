"""Rank 0's caches, which also send every change outside a pass to the other ranks."""

from collections.abc import Callable
from itertools import count
from typing import Self

from core.caches.full import FullCache
from core.caches.full_parts import Suffix
from core.caches.policies import ChunkPolicy
from core.caches.retrieval import HeldPart, RetrievalCache
from core.parallel.commands import (
    Attach,
    CountVotes,
    Detach,
    Forget,
    ForgetPart,
    LetHostAttend,
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
        """Send changes to the other ranks from now on; called once, while the cache is empty."""
        self._tell = tell
        self._numbers = count()
        self._aside: dict[int, tuple[int, Suffix]] = {}  # by identity, because rows cannot be compared
        return self

    def truncate(self, length: int) -> None:
        if length < self.length:
            self._tell(Truncate("full", length))
        super().truncate(length)

    def let_host_attend(self, share: float) -> None:
        self._tell(LetHostAttend(share))
        super().let_host_attend(share)

    def count_votes(self, wanted: bool) -> None:
        if wanted != self.votes.wanted:
            self._tell(CountVotes(wanted))
        super().count_votes(wanted)

    def remember_queries(self, num_queries: int) -> None:
        self._tell(Remember(num_queries))
        super().remember_queries(num_queries)

    def detach(self, start: int) -> Suffix:
        number = next(self._numbers)
        self._tell(Detach(number, start))
        suffix = super().detach(start)
        self._aside[id(suffix)] = (number, suffix)
        return suffix

    def attach(self, suffix: Suffix) -> None:
        number, _ = self._aside.pop(id(suffix))
        self._tell(Attach(number))
        super().attach(suffix)

    def forget(self, suffix: Suffix) -> None:
        number, _ = self._aside.pop(id(suffix))
        self._tell(Forget(number))


class LedRetrievalCache(RetrievalCache):
    """A retrieval cache of rank 0's heads."""

    def __init__(self, full: FullCache, policy: ChunkPolicy, name: str, tell: Tell) -> None:
        super().__init__(full, policy)
        self._name, self._tell = name, tell
        self._numbers = count()
        self._aside: dict[int, int] = {}  # numbers of the parts set aside, by identity

    def select(self) -> None:
        """Choose chunks again on every rank at the same time, each for its heads."""
        self._tell(Select(self._name))
        super().select()

    def set_aside(self) -> HeldPart:
        """Set the present contents aside on every rank: each holds other chunks for its heads."""
        number = next(self._numbers)
        self._tell(SetAside(self._name, number))
        part = super().set_aside()
        self._aside[id(part)] = number
        return part

    def put_back(self, part: HeldPart, shared: int) -> None:
        self._tell(PutBack(self._name, self._aside.pop(id(part)), shared))
        super().put_back(part, shared)

    def forget(self, part: HeldPart) -> None:
        self._tell(ForgetPart(self._name, self._aside.pop(id(part))))

    def truncate(self, length: int) -> None:
        if length < self.length:
            self._tell(Truncate(self._name, length))
        super().truncate(length)
