"""Ten updates a second are enough for the eye, and cheap: events are collected in between."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

INTERVAL_SECONDS = 0.1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing new for a while: what has been collected should be shown now."""


def paced(
    events: Iterable[T], interval_seconds: float = INTERVAL_SECONDS, clock: Callable[[], float] = time.monotonic
) -> Iterator[list[T]]:
    """Batches of events, none of them empty or lost: the first at once, the last always, at most one an interval."""
    batch: list[T] = []
    due = -float("inf")
    for event in events:
        if not isinstance(event, Pause):
            batch.append(event)
        if batch and clock() >= due:
            yield batch
            batch, due = [], clock() + interval_seconds
    if batch:
        yield batch
