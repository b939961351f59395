"""Ten updates a second are enough for the eye, and cheap: events are collected in between."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

INTERVAL_SECONDS = 0.1

T = TypeVar("T")


def paced(
    events: Iterable[T], interval_seconds: float = INTERVAL_SECONDS, clock: Callable[[], float] = time.monotonic
) -> Iterator[list[T]]:
    """Batches of events, none of them empty or lost: the first at once, the last always, at most one an interval."""
    batch: list[T] = []
    due = -float("inf")
    for event in events:
        batch.append(event)
        if clock() >= due:
            yield batch
            batch, due = [], clock() + interval_seconds
    if batch:
        yield batch
