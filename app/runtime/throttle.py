"""Limits how often the page is updated: ten times a second is enough for the eye. Events are collected in between.

An update costs a browser and the server about 25 ms of processor time. Where the decoder computes on every core, this
slows decoding, so updates are rarer there. `bench --suite page` measures their cost.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from app.runtime.events import Pause

INTERVAL_SECONDS = 0.1
SIGN_OF_LIFE_SECONDS = 1.0  # empty update: Gradio notices a closed page only when it sends one

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UpdateIntervals:
    """Least seconds between two updates of an answer's text, and of the figures above it."""

    text: float
    figures: float


LIVELY, SPARING = UpdateIntervals(INTERVAL_SECONDS, INTERVAL_SECONDS), UpdateIntervals(0.25, 0.5)


def intervals_beside(num_busy: int, num_cores: int) -> UpdateIntervals:
    """The slower rate where the decoder's threads leave no core to the page."""
    return LIVELY if num_busy < num_cores else SPARING


class Metronome:
    """Says when the next update is due; the first is due at once."""

    def __init__(self, interval_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval, self._clock, self._last = interval_seconds, clock, -float("inf")

    def due(self) -> bool:
        """Whether the interval has passed since the last time this returned True."""
        now = self._clock()
        if now - self._last < self._interval:
            return False
        self._last = now
        return True


def in_batches(
    events: Iterable[T], interval_seconds: float = INTERVAL_SECONDS, clock: Callable[[], float] = time.monotonic
) -> Iterator[list[T]]:
    """Yield events in batches, at most one an interval; none is lost, the first comes at once and the last always.

    An empty batch is only a sign of life, after SIGN_OF_LIFE_SECONDS without a batch.
    """
    batch: list[T] = []
    shown = -float("inf")
    for event in events:
        if not isinstance(event, Pause):
            batch.append(event)
        waited = clock() - shown
        if waited >= interval_seconds if batch else waited >= SIGN_OF_LIFE_SECONDS:
            yield batch
            batch, shown = [], clock()
    if batch:
        yield batch
