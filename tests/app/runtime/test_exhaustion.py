"""No room on the disk, no memory, a clock that jumps: all is told, the conversation is kept, the service goes on."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from app.conversations import tree as dialogue_module
from app.conversations.store import Conversations
from app.runtime.conversation_actions import Conversing
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.ui.reading.conversation_view import conversation_list
from core.config import GenerationConfig
from core.errors import CoreError
from tests.app.conversations.on_disk import LIMIT, refuse
from tests.app.fakes import SECONDS, FakeEngine, Reader
from tests.core.toys import tiny_engine, with_words


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "conversations"


@pytest.fixture
def worker(engine: FakeEngine, folder: Path, start_worker: Callable[..., EngineWorker]) -> EngineWorker:
    """A worker that keeps its conversations on disk."""
    return start_worker(engine, conversations=Conversations(folder))


def on_disk(worker: EngineWorker, folder: Path) -> list[str]:
    """All questions that another program finds, once they are written."""
    assert worker.conversations.flush(SECONDS)
    store = Conversations(folder)
    found = [store.open(one.id) for one in store.listing().summaries]
    store.close()
    return sorted(node.question for dialogue in found for node in dialogue.nodes)


def test_a_full_disk_costs_no_answer(reader: Reader, folder: Path) -> None:
    worker, session = reader.worker, reader.session
    reader.asks("Before?")
    assert worker.conversations.flush(SECONDS)
    refuse(worker.conversations)
    reader.asks("On a full disk?" * 230)
    assert worker.conversations.flush(SECONDS)
    listing = worker.conversations.listing()
    (notice,) = listing.notices
    assert "disk is full" in notice and "Make room" in notice
    assert notice in conversation_list(listing, session), "the page says so"
    assert len(session.exchanges) == 2
    refuse(worker.conversations, LIMIT)
    worker.clear(session.id)
    reader.asks("With room again?")  # in another conversation: the first comes by itself
    assert on_disk(worker, folder) == ["Before?", "On a full disk?" * 230, "With room again?"]
    assert worker.conversations.listing().notices == ()


@pytest.mark.parametrize("fault", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory.")])
def test_an_engine_without_memory_amid_an_answer_keeps_it_and_answers_the_next(
    fault: BaseException, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    start_worker: Callable[..., EngineWorker],
) -> None:  # fmt: skip
    """The real engine: whatever it moved or lent before the allocator failed is whole again."""
    engine, short = with_words(tiny_engine(context=1024)), GenerationConfig(method="autoregressive", max_new_tokens=12)
    worker = start_worker(engine, conversations=Conversations(folder))
    reader = Reader(worker, cast(Any, engine), worker.sessions.enter(""), tmp_path)
    session = reader.session
    reader.opens()
    whole = reader.asks("First?", config=short)
    worker.clear(session.id)
    calls, attend = [0], engine._levels.full.attend

    def fails(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] > 60:
            raise fault
        return attend(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(engine._levels.full, "attend", fails)
        with pytest.raises(CoreError, match=r"memory was not enough|ran out of memory"):
            reader.asks("First?", config=GenerationConfig(method="autoregressive", max_new_tokens=500))
    (broken,) = session.exchanges
    assert broken.finished.stop_reason == "cancelled" and broken.finished.token_ids
    worker.clear(session.id)
    assert reader.asks("First?", config=short).token_ids == whole.token_ids
    assert on_disk(worker, folder) == ["First?"] * 3


class Clock(datetime):
    """The wall clock, wherever a test has set it."""

    shift = timedelta()

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime.now(tz) + cls.shift


@pytest.mark.parametrize("years", [-30, 30])
def test_a_clock_that_jumps_loses_and_hides_nothing(
    years: int, reader: Reader, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = reader.worker
    monkeypatch.setattr(dialogue_module, "datetime", Clock)
    monkeypatch.setattr(Clock, "shift", timedelta())
    reader.asks("Before?")
    worker.clear(reader.session.id)
    Clock.shift = timedelta(days=365 * years)
    reader.asks("After?")
    Clock.shift = timedelta()
    reader.asks("And back?")
    assert on_disk(worker, folder) == ["After?", "And back?", "Before?"]
    listing = worker.conversations.listing()
    assert [one.title for one in listing.summaries] == ["After?", "Before?"], "the newest change is first"
    for when in (datetime.now(UTC), datetime.now(UTC) + timedelta(days=365 * years)):
        shown = conversation_list(listing, Session("x"), when)
        assert "Before?" in shown and "After?" in shown
    Conversing(worker).arrive(worker.sessions.enter(""))
