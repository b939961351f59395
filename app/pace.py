"""Ten updates a second are enough for the eye, and cheap: events are collected in between."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

INTERVAL_SECONDS = 0.1
SIGN_OF_LIFE_SECONDS = 1.0  # an update without news: only when it hears one does Gradio notice that a page was closed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing new for a while: what has been collected should be shown now."""


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
