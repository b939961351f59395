"""No room on the disk, no memory, a clock that jumps: all is told, the conversation is kept, the service goes on."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

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
from core.generation.events import Finished
from tests.app.conversations.on_disk import LIMIT, refuse
from tests.app.fakes import SECONDS, FakeEngine, opened, worker_of, write_book
from tests.app.runtime.test_worker import PLAIN
from tests.core.toys import tiny_engine, with_words


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "conversations"


@pytest.fixture
def keeping(engine: FakeEngine, folder: Path, start_worker: Callable[..., EngineWorker]) -> EngineWorker:
    """A worker that keeps its conversations on disk."""
    return start_worker(engine, conversations=Conversations(folder))


def on_disk(folder: Path) -> list[str]:
    """All questions that another program finds."""
    store = Conversations(folder)
    found = [store.open(one.id) for one in store.listing().summaries]
    store.close()
    return sorted(node.question for dialogue in found for node in dialogue.nodes)


def test_a_full_disk_costs_no_answer(keeping: EngineWorker, folder: Path, tmp_path: Path) -> None:
    session_id = opened(keeping, write_book(tmp_path))
    list(keeping.answer(session_id, "Before?", PLAIN))
    assert keeping.conversations.flush(SECONDS)

    refuse(keeping.conversations)
    *_, end = keeping.answer(session_id, "On a full disk?" * 230, PLAIN)
    assert isinstance(end, Finished) and keeping.conversations.flush(SECONDS)
    listing = keeping.conversations.listing()
    (notice,) = listing.notices
    assert "disk is full" in notice and "Make room" in notice
    assert notice in conversation_list(listing, keeping.sessions.get(session_id)), "the page says so"
    assert len(keeping.sessions.get(session_id).exchanges) == 2
    refuse(keeping.conversations, LIMIT)
    keeping.clear(session_id)
    list(keeping.answer(session_id, "With room again?", PLAIN))  # in another conversation: the first comes by itself
    assert keeping.conversations.flush(SECONDS) and keeping.conversations.listing().notices == ()
    assert on_disk(folder) == ["Before?", "On a full disk?" * 230, "With room again?"]


@pytest.mark.parametrize("fault", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory.")])
def test_an_engine_without_memory_amid_an_answer_keeps_it_and_answers_the_next(
    fault: BaseException, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real engine: whatever it moved or lent before the allocator failed is whole again."""
    engine, short = with_words(tiny_engine(context=1024)), GenerationConfig(method="autoregressive", max_new_tokens=12)
    worker = worker_of(engine, conversations=Conversations(folder))
    try:
        session_id = opened(worker, write_book(tmp_path))
        *_, whole = worker.answer(session_id, "First?", short)
        assert isinstance(whole, Finished)
        worker.clear(session_id)
        calls, attend = [0], engine._levels.full.attend

        def fails(*arguments: Any) -> Any:
            calls[0] += 1
            if calls[0] > 60:
                raise fault
            return attend(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(engine._levels.full, "attend", fails)
            with pytest.raises(CoreError, match=r"memory was not enough|ran out of memory"):
                list(worker.answer(session_id, "First?", GenerationConfig(method="autoregressive", max_new_tokens=500)))
        (broken,) = worker.sessions.get(session_id).exchanges
        assert broken.finished.stop_reason == "cancelled" and broken.finished.token_ids
        worker.clear(session_id)
        *_, again = worker.answer(session_id, "First?", short)
        assert isinstance(again, Finished) and again.token_ids == whole.token_ids
        assert worker.conversations.flush(SECONDS) and on_disk(folder) == ["First?"] * 3
    finally:
        worker.close()


class Clock(datetime):
    """The wall clock, wherever a test has set it."""

    shift = timedelta()

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime.now(tz) + cls.shift


@pytest.mark.parametrize("years", [-30, 30])
def test_a_clock_that_jumps_loses_and_hides_nothing(
    years: int, keeping: EngineWorker, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialogue_module, "datetime", Clock)
    monkeypatch.setattr(Clock, "shift", timedelta())
    session_id = opened(keeping, write_book(tmp_path))
    list(keeping.answer(session_id, "Before?", PLAIN))
    keeping.clear(session_id)
    Clock.shift = timedelta(days=365 * years)
    list(keeping.answer(session_id, "After?", PLAIN))
    Clock.shift = timedelta()
    list(keeping.answer(session_id, "And back?", PLAIN))
    assert keeping.conversations.flush(SECONDS)
    assert on_disk(folder) == ["After?", "And back?", "Before?"]
    store = Conversations(folder)
    assert [one.title for one in store.listing().summaries] == ["After?", "Before?"], "the newest change is first"
    for when in (datetime.now(UTC), datetime.now(UTC) + timedelta(days=365 * years)):
        shown = conversation_list(store.listing(), Session("x"), when)
        assert "Before?" in shown and "After?" in shown
    again = keeping.sessions.enter("")
    Conversing(keeping).arrive(again)
    store.close()
