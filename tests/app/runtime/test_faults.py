"""Faults of the engine's thread, and more work than there is time for: the page goes on, nothing waits for ever."""

from pathlib import Path

import pytest

from app.runtime.error_text import EngineFault
from app.runtime.events import LoadFailed, ModelState, Ready, Waiting
from app.runtime.jobs import MOST_WAITING
from app.runtime.worker import EngineWorker
from core.errors import ContextTooSmall, CoreError
from core.generation.events import Finished
from tests.app.fakes import MACHINE, SECONDS, FakeEngine, opened, wait_for, write_book
from tests.app.runtime.test_worker import PLAIN, in_thread


class Panic(BaseException):
    """What a library written in Rust raises: no Exception."""


FAULTS = (Panic("poisoned"), SystemExit(1), MemoryError(), RuntimeError("/home/me/secret"))


@pytest.mark.parametrize("fault", [*FAULTS, ContextTooSmall(9, 8, possible=16)])
def test_a_fault_during_an_answer_is_told_and_the_thread_lives_on(
    fault: BaseException, worker: EngineWorker, engine: FakeEngine, tmp_path: Path
) -> None:
    session_id = opened(worker, write_book(tmp_path))
    engine.enqueue(fault)
    with pytest.raises(EngineFault if fault in FAULTS else type(fault)) as told:
        list(worker.answer(session_id, "Boom?", PLAIN))
    if fault in FAULTS and str(fault):
        assert str(fault) not in str(told.value), "what a library says stays in the terminal"
    if isinstance(fault, MemoryError):
        assert "memory" in told.value.problem
    (exchange,) = worker.sessions.get(session_id).exchanges
    assert exchange.finished.text == "Half ", "what was written is kept"
    assert isinstance(list(worker.answer(session_id, "Still there?", PLAIN))[-1], Finished)


def test_a_panic_while_a_model_is_loaded_is_told_and_another_one_can_be_loaded(
    engine: FakeEngine, tmp_path: Path
) -> None:
    def panics() -> tuple[FakeEngine, object]:
        raise Panic("a header of 9 exabytes")

    worker = EngineWorker(panics)  # type: ignore[arg-type]
    worker.start()
    try:
        state = last_state(worker)
        assert isinstance(state, LoadFailed) and isinstance(state.error, EngineFault)
        worker.jobs.switch(lambda: (engine, MACHINE), "other")  # type: ignore[arg-type,return-value]
        assert isinstance(last_state(worker), Ready) and opened(worker, write_book(tmp_path))
    finally:
        worker.close()


def test_one_page_cannot_fill_the_queue(worker: EngineWorker, engine: FakeEngine, tmp_path: Path) -> None:
    one, two = opened(worker, write_book(tmp_path)), opened(worker, write_book(tmp_path))
    engine.enqueue("One two.")
    engine.writing.clear()
    first = in_thread(worker.answer(one, "First?", PLAIN))
    wait_for(lambda: worker.jobs.of(one, "answer"))
    waiting = [worker.answer(one, f"Number {number}?", PLAIN) for number in range(1, MOST_WAITING)]
    for stream in waiting:
        next(stream)
    with pytest.raises(CoreError, match="Too many"):
        next(worker.answer(one, "One too many?", PLAIN))
    other = worker.answer(two, "Somebody else?", PLAIN)
    assert isinstance(next(other), Waiting), "other pages are let in"
    for stream in (*waiting, other):
        stream.close()  # type: ignore[attr-defined]
    engine.writing.set()
    first[0].join(SECONDS)
    assert isinstance(list(worker.answer(one, "Now?", PLAIN))[-1], Finished)


def last_state(worker: EngineWorker) -> ModelState:
    *_, state = worker.states()
    return state
