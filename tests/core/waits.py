"""Where the processor waits for the device, counted on a pretended GPU: by kind of work, against a stated budget.

A wait belongs to the innermost work around it: a
round's own waits are those outside of passes, of rounds below and of choosing chunks. Counted are numbers read from the
device (`item`, `tolist`, `nonzero`, `equal`, `bincount`, masks as indices), copies that are not pinned or not asked to
run beside, and events and streams that are waited for. Not counted: waits inside of kernels' own libraries.
"""

import functools
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from core.caches.retrieval import RetrievalCache
from core.decoding.speculative import AutoregressiveProposer, Speculative
from core.generation.decode_loop import Answer
from core.models.cached_model import CachedModel

OUTSIDE = "the rest of a step"
GAMMA1 = 2


class Ledger:
    """Waits by the work they belong to."""

    def __init__(self) -> None:
        self._stack = [[OUTSIDE, 0]]
        self.most: dict[str, int] = {}  # waits of one piece of work of a kind, at most
        self.why: dict[str, Counter[str]] = defaultdict(Counter)
        self.times: Counter[str] = Counter()
        self.beside = 0  # waits of other threads
        self.link_bytes = (
            0  # of the last pass over the full cache: without any, nothing of an offloaded cache was asked
        )

    def wait(self, what: str) -> None:
        """One more. The thread that attends on the host waits beside the others, and holds nobody up."""
        if threading.current_thread() is not threading.main_thread():
            self.beside += 1
            return
        self._stack[-1][1] += 1
        self.why[self._stack[-1][0]][what] += 1

    @contextmanager
    def inside(self, kind: str) -> Iterator[None]:
        """Waits from here on belong to a piece of work of this kind."""
        self._stack.append([kind, 0])
        try:
            yield
        finally:
            _, count = self._stack.pop()
            self.times[kind] += 1
            self.most[kind] = max(self.most.get(kind, 0), count)


def watch(ledger: Ledger, patch: pytest.MonkeyPatch) -> None:
    """Let the ledger know what runs."""

    def wrap(owner: type, name: str, kind: Callable[[Any], str]) -> None:
        real = getattr(owner, name)

        @functools.wraps(real)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            with ledger.inside(kind(self)):
                return real(self, *args, **kwargs)

        patch.setattr(owner, name, call)

    def wrap_passes(owner: type, name: str, kind: Callable[[Any], str]) -> None:
        """As `wrap`, for what asks for passes: these are inside of it."""
        real = getattr(owner, name)

        @functools.wraps(real)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            with ledger.inside(kind(self)):
                return (yield from real(self, *args, **kwargs))

        patch.setattr(owner, name, call)

    wrap(CachedModel, "feed_tokens", lambda model: f"a pass of the {model.name} model")
    wrap_passes(Speculative, "round", lambda level: f"a round verified by {level._verifier.name}")
    wrap_passes(AutoregressiveProposer, "propose", lambda sampler: "a proposal of the draft")
    wrap(RetrievalCache, "select", lambda _: "choosing chunks")
    wrap(Answer, "round", lambda _: OUTSIDE)


# What a piece of work may wait for at most, and why
RESIDENT = {
    "a pass of the draft model": 0,
    "a pass of the retrieval model": 0,
    "a pass of the full model": 0,
    "a proposal of the draft": GAMMA1,  # each token is fed to the next pass
    "a round verified by retrieval": 2,  # how many guesses hold, and the token drawn
    "a round verified by full": 2,
    "choosing chunks": 3,  # which chunks come, which slots they take, and both on the host
    OUTSIDE: 4,  # the newest pass of each model, whose time is asked for, and the chances of the tokens for display
}
# Tokens that are certain come in one copy, and their chances are known
CERTAIN = {"a round verified by retrieval": 1, "a round verified by full": 1, OUTSIDE: 3}
LAYERS = 2
# Beside that what was stored must be there, and in each layer a buffer must be free for keys and one for values
OFFLOADED = {**RESIDENT, "choosing chunks": 3 + 1 + 2 * LAYERS}
SHARED = {**OFFLOADED, "a pass of the full model": 1}  # the host reads what was stored
BUDGETS = {"resident": RESIDENT, "offloaded": OFFLOADED, "shared with the host": SHARED}
