"""How often the page is told what happens: ten times a second is enough for the eye; events are collected in between.

An update costs a browser and the server about 25 ms of a processor's time. Where the decoder computes with every core,
that is taken from it: there, updates are rarer. `bench --suite page` measures what they cost.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from app.runtime.events import Pause

INTERVAL_SECONDS = 0.1
SIGN_OF_LIFE_SECONDS = 1.0  # an update without news: only when it hears one does Gradio notice that a page was closed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pace:
    """Least seconds between two updates of an answer's text, and between two of the figures above it."""

    text: float
    figures: float


LIVELY, SPARING = Pace(INTERVAL_SECONDS, INTERVAL_SECONDS), Pace(0.25, 0.5)


def pace_beside(num_busy: int, num_cores: int) -> Pace:
    """Sparing where the decoder's threads leave no core to the page."""
    return LIVELY if num_busy < num_cores else SPARING


class Metronome:
    """Says when it is time again; the first time at once."""

    def __init__(self, interval_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval, self._clock, self._last = interval_seconds, clock, -float("inf")

    def due(self) -> bool:
        """Whether the interval has passed since it last said yes."""
        now = self._clock()
        if now - self._last < self._interval:
            return False
        self._last = now
        return True


def paced(
    events: Iterable[T], interval_seconds: float = INTERVAL_SECONDS, clock: Callable[[], float] = time.monotonic
) -> Iterator[list[T]]:
    """Batches of events, none lost: the first at once, the last always, at most one an interval.

    A batch is empty only as a sign of life, when there has been none for SIGN_OF_LIFE_SECONDS.
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
