"""The worker: one thread, one queue, errors as values, nothing half-done."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.context.context_documents import Library, Pages
from app.runtime.error_text import EngineFault
from app.runtime.events import Changed, LoadFailed, Loading, Pause, Ready, Waiting, WorkerEvent
from app.runtime.sessions import NoBook
from app.runtime.worker import EngineWorker
from core.config import GenerationConfig
from core.errors import CoreError, EmptyQuestion, UnknownModel
from core.generation.events import Finished, PrefillProgress, RoundDone
from tests.app.fakes import SECONDS, FakeEngine, opened, wait_for, worker_held, write_book

PLAIN = GenerationConfig()


def until(kind: type, stream: Iterator[WorkerEvent]) -> WorkerEvent:
    """The next event of a kind."""
    return next(event for event in stream if isinstance(event, kind))


def in_thread(stream: Iterator[WorkerEvent]) -> tuple[threading.Thread, list[WorkerEvent]]:
    """Drain a stream as a handler would, in a thread of its own."""
    events: list[WorkerEvent] = []
    thread = threading.Thread(target=lambda: events.extend(without_pauses(stream)), daemon=True)
    thread.start()
    return thread, events


def without_pauses(stream: Iterator[WorkerEvent]) -> Iterator[WorkerEvent]:
    return (event for event in stream if not isinstance(event, Pause))


def test_every_answer_is_drawn_with_a_seed_of_its_own(
    engine: FakeEngine, start_worker: Callable[..., EngineWorker], tmp_path: Path
) -> None:
    worker = start_worker(engine, seed=40)
    session_id = opened(worker, write_book(tmp_path))
    for question in ("One?", "Two?"):
        list(worker.answer(session_id, question, PLAIN))
    list(worker.regenerate(session_id, PLAIN))
    assert [config.seed for config in engine.configs] == [40, 41, 42]


def test_a_closed_stream_cancels_its_work(worker: EngineWorker, engine: FakeEngine, tmp_path: Path) -> None:
    session_id = opened(worker, write_book(tmp_path))
    engine.enqueue("One two | three")
    stream = worker.answer(session_id, "A tab that is closed", PLAIN)
    until(RoundDone, stream)
    stream.close()  # type: ignore[attr-defined]
    wait_for(lambda: worker.sessions.get(session_id).exchanges)
    assert worker.sessions.get(session_id).exchanges[0].finished.stop_reason == "cancelled"


def test_a_second_page_waits_is_told_so_and_then_gets_its_answer(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path
) -> None:
    first = opened(worker, write_book(tmp_path))
    second = opened(worker, write_book(tmp_path, "Another book. " * 20, "other.txt"))
    engine.writing.clear()
    running, _ = in_thread(worker.answer(first, "Long?", PLAIN))
    wait_for(lambda: len(engine.configs) == 1)
    thread, events = in_thread(worker.answer(second, "Short?", GenerationConfig(max_new_tokens=2)))
    wait_for(lambda: events)
    assert events == [Waiting("another page", 1)]
    engine.writing.set()
    for one in (running, thread):
        one.join(SECONDS)
    assert isinstance(events[-1], Finished) and events[-1].stop_reason == "end_of_text"


def test_stop_while_waiting_withdraws_the_question(worker: EngineWorker, engine: FakeEngine, tmp_path: Path) -> None:
    first = opened(worker, write_book(tmp_path))
    second = opened(worker, write_book(tmp_path))
    engine.writing.clear()
    in_thread(worker.answer(first, "Long?", PLAIN))
    wait_for(lambda: len(engine.configs) == 1)
    thread, events = in_thread(worker.answer(second, "Short?", PLAIN))
    wait_for(lambda: events)
    worker.jobs.cancel(second, "answer")
    thread.join(SECONDS)
    assert not thread.is_alive() and all(isinstance(event, Waiting) for event in events)
    assert worker.sessions.get(second).exchanges == ()


def test_reading_can_be_stopped_and_goes_on_with_the_next_question(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path
) -> None:
    session_id = worker.sessions.enter("").id
    engine.reading.clear()
    stream = worker.open_books(session_id, [write_book(tmp_path)])
    until(PrefillProgress, stream)
    worker.stop_reading(session_id)
    list(stream)
    assert not worker.sessions.get(session_id).is_read
    engine.reading.set()
    assert isinstance(list(worker.answer(session_id, "And?", PLAIN))[-1], Finished)
    assert worker.sessions.get(session_id).is_read
    assert list(worker.reading.catch_up(worker.sessions.get(session_id))) == []


def test_a_question_during_the_reading_is_answered_after_it(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path
) -> None:
    session_id = worker.sessions.enter("").id
    engine.reading.clear()
    stream = worker.open_books(session_id, [write_book(tmp_path)])
    until(PrefillProgress, stream)
    thread, events = in_thread(worker.answer(session_id, "Already?", PLAIN))
    wait_for(lambda: events)
    assert events == [Waiting("own job", 0)]
    engine.reading.set()
    assert isinstance(list(stream)[-1], Changed)
    thread.join(SECONDS)
    assert isinstance(events[-1], Finished)


def test_a_file_that_comes_while_another_is_read_is_added_and_nothing_is_read_twice(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path
) -> None:
    session_id = worker.sessions.enter("").id
    first = "It was a dark and stormy night. " * 8
    list(worker.open_books(session_id, [write_book(tmp_path, first)]))
    events = list(worker.open_books(session_id, [write_book(tmp_path, "The other book. " * 9, "other.txt")]))
    book = worker.sessions.get(session_id).book
    assert book is not None and book.names == ("book.txt", "other.txt")
    progress = next(event for event in events if isinstance(event, PrefillProgress))
    assert progress.reused_tokens >= len(first) and isinstance(events[-1], Changed)


def test_a_shelf_that_is_too_long_waits_for_a_choice_and_leaves_what_is_open(
    worker: EngineWorker, tmp_path: Path
) -> None:
    session_id = opened(worker, write_book(tmp_path))
    list(worker.answer(session_id, "One?", PLAIN))
    session = worker.sessions.get(session_id)
    book, exchanges = session.book, session.exchanges
    list(worker.open_books(session_id, [write_book(tmp_path, "A long text. " * 2000, "long.txt")]))
    fit = session.uploads.fit
    assert session.book is book and session.exchanges == exchanges and session.uploads.too_long
    assert fit is not None and fit.needed > fit.context
    assert isinstance(list(worker.answer(session_id, "Two?", PLAIN))[-1], Finished)
    events = list(worker.arrange(session_id, lambda library: library.choose(1, Pages(1, 1))))
    assert session.book is not None and session.book is not book and session.is_read
    assert session.uploads.fit is not None and session.uploads.fit.needed <= 4096
    assert [one.question for one in session.exchanges] == ["One?", "Two?"], "the conversation goes on"
    progress = next(event for event in events if isinstance(event, PrefillProgress))
    assert book is not None and progress.reused_tokens >= book.num_tokens


def test_the_last_book_that_goes_takes_the_conversation_along_and_says_so(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path
) -> None:
    session_id = opened(worker, write_book(tmp_path))
    list(worker.answer(session_id, "One?", PLAIN))
    session = worker.sessions.get(session_id)
    list(worker.open_books(session_id, [write_book(tmp_path, "Another book. " * 9, "other.txt")]))
    assert len(session.exchanges) == 1 and "goes on" in session.uploads.note
    list(worker.arrange(session_id, lambda library: library.remove(0)))
    assert len(session.exchanges) == 1, "the other book was there when it was answered"
    engine.enqueue("One two | three")
    stream = worker.answer(session_id, "Long?", PLAIN)
    until(RoundDone, stream)
    list(worker.arrange(session_id, lambda _: Library()))
    list(stream)
    assert session.book is None and session.dialogue is None and session.uploads.library.books == ()
    assert worker.conversations.listing().summaries[0].num_exchanges == 2, "what was said stays in the list"
    with pytest.raises(NoBook):
        worker.answer(session_id, "Two?", PLAIN)


# -------------------- where in the book


def test_what_is_loaded_is_told_while_an_answer_is_written(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path
) -> None:
    session_id = opened(worker, write_book(tmp_path))
    engine.weights = [0.5, 0.0, 0.25]
    engine.enqueue("One | two.")
    session = worker.sessions.get(session_id)
    answer = worker.answer(session_id, "Where?", PLAIN)
    until(Changed, answer)
    assert session.where and list(session.where.weights) == [0.5, 0, 0.25]
    engine.writing.set()
    list(answer)
    assert session.where.num_seen >= 2
    list(worker.answer(session_id, "And now?", GenerationConfig(method="autoregressive")))
    assert not session.where.retrieves and session.where.num_seen == 0


def test_questions_that_cannot_be_asked(worker: EngineWorker, tmp_path: Path) -> None:
    with pytest.raises(NoBook):
        worker.answer(worker.sessions.enter("").id, "What?", PLAIN)
    with pytest.raises(EmptyQuestion):
        worker.answer(opened(worker, write_book(tmp_path)), "  \n", PLAIN)
    with pytest.raises(CoreError, match="older than the running reader"):
        worker.answer("made up", "What?", PLAIN)


def test_the_page_is_told_when_the_model_is_loaded(engine: FakeEngine, tmp_path: Path) -> None:
    worker, release = worker_held(engine)
    try:
        states = worker.states()
        assert isinstance(next(states), Loading)
        session_id = worker.sessions.enter("").id
        thread, events = in_thread(worker.open_books(session_id, [write_book(tmp_path)]))
        wait_for(lambda: Waiting("loading", 0) in events)
        release.set()
        assert isinstance(next(states), Ready)
        thread.join(SECONDS)
        assert isinstance(events[-1], Changed)
    finally:
        worker.close()


@pytest.mark.parametrize(
    ("error", "shown"),
    [(UnknownModel("There is no model 'x'.", hint="Use harbour."), UnknownModel), (OSError("disk"), EngineFault)],
)
def test_a_model_that_cannot_be_loaded_is_said_at_every_job(
    error: Exception, shown: type[CoreError], tmp_path: Path
) -> None:
    def load() -> tuple[FakeEngine, object]:
        raise error

    worker = EngineWorker(load)  # type: ignore[arg-type]
    worker.start()
    try:
        *_, state = worker.states()
        assert isinstance(state, LoadFailed) and isinstance(state.error, shown)
        with pytest.raises(shown):
            list(worker.open_books(worker.sessions.enter("").id, [write_book(tmp_path)]))
    finally:
        worker.close()
