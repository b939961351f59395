"""Rank 0's caches, which also send every change outside a pass to the other ranks."""

from itertools import count
from typing import Any, Self

from core.caches.full import FullCache
from core.caches.full_parts import Suffix
from core.caches.policies import ChunkPolicy
from core.caches.retrieval import HeldPart, RetrievalCache
from core.parallel.worker import Order, Tell

NUMBERS = count()  # of what is set aside


class Leader:
    """Tells the other ranks what the cache of one model does."""

    def __init__(self, model: str, tell: Tell) -> None:
        self._model, self._tell = model, tell
        self.aside: dict[int, int] = {}  # numbers by identity, because rows cannot be compared

    def change(self, method: str, *arguments: Any) -> None:
        """Every rank's cache does the same."""
        self._tell(Order("change", (self._model, method, *arguments)))

    def set_aside(self, method: str, *arguments: Any) -> int:
        """Every rank keeps what the method returns, under the number returned."""
        number = next(NUMBERS)
        self._tell(Order("set_aside", (self._model, method, number, *arguments)))
        return number

    def give_back(self, method: str, part: object, *arguments: Any) -> None:
        """Every rank gives its own of what was set aside to the method."""
        self._tell(Order("give_back", (self._model, method, self.aside.pop(id(part)), *arguments)))


class LedFullCache(FullCache):
    """The full cache of rank 0's heads."""

    leader: Leader

    def lead(self, tell: Tell) -> Self:
        """Send changes to the other ranks from now on; called once, while the cache is empty."""
        self.leader = Leader("full", tell)
        return self

    def truncate(self, length: int) -> None:
        if length < self.length:
            self.leader.change("truncate", length)
        super().truncate(length)

    def let_host_attend(self, share: float) -> None:
        self.leader.change("let_host_attend", share)
        super().let_host_attend(share)

    def count_votes(self, wanted: bool) -> None:
        if wanted != self.votes.wanted:
            self.leader.change("count_votes", wanted)
        super().count_votes(wanted)

    def remember_queries(self, num_queries: int) -> None:
        self.leader.change("remember_queries", num_queries)
        super().remember_queries(num_queries)

    def detach(self, start: int) -> Suffix:
        number = self.leader.set_aside("detach", start)
        suffix = super().detach(start)
        self.leader.aside[id(suffix)] = number
        return suffix

    def attach(self, suffix: Suffix) -> None:
        self.leader.give_back("attach", suffix)
        super().attach(suffix)

    def forget(self, suffix: Suffix) -> None:
        self.leader.give_back("forget", suffix)


class LedRetrievalCache(RetrievalCache):
    """A retrieval cache of rank 0's heads: each rank chooses chunks for its own."""

    def __init__(self, full: FullCache, policy: ChunkPolicy, name: str, tell: Tell) -> None:
        super().__init__(full, policy)
        self._leader = Leader(name, tell)

    def select(self) -> None:
        self._leader.change("select")
        super().select()

    def set_aside(self) -> HeldPart:
        number = self._leader.set_aside("set_aside")
        part = super().set_aside()
        self._leader.aside[id(part)] = number
        return part

    def put_back(self, part: HeldPart, shared: int) -> None:
        self._leader.give_back("put_back", part, shared)
        super().put_back(part, shared)

    def forget(self, part: HeldPart) -> None:
        self._leader.give_back("forget", part)

    def truncate(self, length: int) -> None:
        if length < self.length:
            self._leader.change("truncate", length)
        super().truncate(length)
