"""Workers that end with their test."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.worker import EngineWorker
from tests.app.fakes import FakeEngine, worker_of


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def start_worker() -> Iterator[Callable[..., EngineWorker]]:
    workers: list[EngineWorker] = []

    def start(engine: Any, seed: int = 0) -> EngineWorker:
        workers.append(worker_of(engine, seed))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()


@pytest.fixture
def worker(engine: FakeEngine, start_worker: Callable[..., EngineWorker]) -> EngineWorker:
    return start_worker(engine)
