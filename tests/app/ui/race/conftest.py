"""Races about a small book, by an engine that writes what a test lays before it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.runtime.events import Begun, Changed, Pause, WorkerEvent
from app.runtime.sessions import Session
from app.runtime.trace import Race
from app.runtime.worker import EngineWorker
from core.config import GenerationConfig
from tests.app.fakes import FakeEngine


def config(method: str) -> GenerationConfig:
    return GenerationConfig(method=method)


PAIR = [config("autoregressive"), config("triforce")]


def run(stream: Iterator[WorkerEvent]) -> list[WorkerEvent]:
    return [event for event in stream if not isinstance(event, Pause)]


def raced(worker: EngineWorker, session_id: str, configs: list[GenerationConfig], **more: Any) -> Race:
    events = run(worker.race(session_id, "How was it?", configs, **more))
    assert isinstance(events[0], Begun) and isinstance(events[-1], Changed)
    return events[0].record


RaceOf = Callable[..., Race]


@pytest.fixture
def race_of(worker: EngineWorker, engine: FakeEngine, session: Session) -> RaceOf:
    """A race whose lanes write these texts, or all the same one."""

    def race(*texts: str, configs: list[GenerationConfig] = PAIR, **more: Any) -> Race:
        for text in texts if len(texts) > 1 else texts * len(configs):
            engine.enqueue(text)
        return raced(worker, session.id, configs, **more)

    return race
