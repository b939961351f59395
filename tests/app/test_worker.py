"""The worker: one thread, one queue, errors as values, nothing half-done."""

import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from app.documents.errors import EmptyDocument
from app.pace import Pause
from app.sessions import NoBook, SessionGone
from app.worker import (
    AnswerBegun,
    BookOpened,
    EngineFault,
    EngineWorker,
    LoadFailed,
    Loading,
    ReadingEnded,
    Ready,
    Waiting,
    WorkerEvent,
)
from core.config import GenerationConfig, SamplingParams
from core.errors import ContextTooSmall, CoreError, EmptyQuestion, UnknownModel
from core.events import Finished, PrefillProgress, RoundDone
from tests.app.fakes import MACHINE, SECONDS, FakeEngine, opened, write_book

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


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.005)


def test_an_answer_streams_and_is_recorded(worker: EngineWorker, engine: FakeEngine, tmp_path: Path) -> None:
    session_id = opened(worker, write_book(tmp_path))
    engine.enqueue("The night was stormy.")
    events = list(without_pauses(worker.answer(session_id, "How was the night?", PLAIN)))
    assert isinstance(events[0], AnswerBegun) and isinstance(events[-1], Finished)
    assert "".join(event.text for event in events if isinstance(event, RoundDone)).strip() == "The night was stormy."
    (exchange,) = worker.sessions.get(session_id).exchanges
    assert exchange.question == "How was the night?" and exchange.finished.text.strip() == "The night was stormy."


def test_the_engine_is_touched_by_its_own_thread_only(worker: EngineWorker, engine: FakeEngine, tmp_path: Path) -> None:
    session_id = opened(worker, write_book(tmp_path))
    list(worker.answer(session_id, "Why?", PLAIN))
    assert engine.threads == {"engine"}


def test_a_second_question_reads_no_book_token_again(worker: EngineWorker, engine: FakeEngine, tmp_path: Path) -> None:
    session_id = opened(worker, write_book(tmp_path))
    for question in ("One?", "Two?"):
        begun, first, *_ = without_pauses(worker.answer(session_id, question, PLAIN))
        assert isinstance(begun, AnswerBegun) and isinstance(first, PrefillProgress)
        assert first.reused_tokens >= min(begun.num_read_before, begun.num_book) == begun.num_book


def test_every_answer_is_drawn_with_a_seed_of_its_own(
    engine: FakeEngine, start_worker: Callable[..., EngineWorker], tmp_path: Path
) -> None:
    worker = start_worker(engine, seed=40)
    session_id = opened(worker, write_book(tmp_path))
    for question in ("One?", "Two?"):
        list(worker.answer(session_id, question, PLAIN))
    list(worker.regenerate(session_id, PLAIN))
    assert [config.seed for config in engine.configs] == [40, 41, 42]


def test_stop_ends_the_answer_and_keeps_what_was_written(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path
) -> None:
    session_id = opened(worker, write_book(tmp_path))
    engine.enqueue("One two | three")
    stream = worker.answer(session_id, "Go on?", PLAIN)
    until(RoundDone, stream)
    worker.stop_answer(session_id)
    last = until(Finished, stream)
    assert isinstance(last, Finished) and last.stop_reason == "cancelled" and last.text
    assert worker.sessions.get(session_id).exchanges[0].finished is last


def test_an_answer_stopped_before_its_first_token_leaves_no_trace(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path
) -> None:
    session_id = opened(worker, write_book(tmp_path))
    engine.writing.clear()
    stream = worker.answer(session_id, "Never mind", PLAIN)
    until(PrefillProgress, stream)
    worker.stop_answer(session_id)
    assert isinstance(until(Finished, stream), Finished)
    session = worker.sessions.get(session_id)
    assert session.exchanges == () and session.conversation is not None and session.conversation.turns == ()


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


def test_after_another_page_the_book_is_read_again_and_the_events_say_how_much(
    worker: EngineWorker, tmp_path: Path
) -> None:
    first = opened(worker, write_book(tmp_path))
    opened(worker, write_book(tmp_path, "Another book. " * 20, "other.txt"))
    begun, progress, *_ = without_pauses(worker.answer(first, "Again?", PLAIN))
    assert isinstance(begun, AnswerBegun) and isinstance(progress, PrefillProgress)
    assert begun.num_read_before - progress.reused_tokens > 0.9 * begun.num_book


def test_stop_while_waiting_withdraws_the_question(worker: EngineWorker, engine: FakeEngine, tmp_path: Path) -> None:
    first = opened(worker, write_book(tmp_path))
    second = opened(worker, write_book(tmp_path))
    engine.writing.clear()
    in_thread(worker.answer(first, "Long?", PLAIN))
    wait_for(lambda: len(engine.configs) == 1)
    thread, events = in_thread(worker.answer(second, "Short?", PLAIN))
    wait_for(lambda: events)
    worker.stop_answer(second)
    thread.join(SECONDS)
    assert not thread.is_alive() and all(isinstance(event, Waiting) for event in events)
    assert worker.sessions.get(second).exchanges == ()


def test_reading_can_be_stopped_and_goes_on_with_the_next_question(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path
) -> None:
    session_id = worker.sessions.enter("").id
    engine.reading.clear()
    stream = worker.open_book(session_id, write_book(tmp_path))
    until(PrefillProgress, stream)
    worker.stop_reading(session_id)
    ended = until(ReadingEnded, stream)
    assert isinstance(ended, ReadingEnded) and not ended.complete and not worker.sessions.get(session_id).is_read
    engine.reading.set()
    assert isinstance(list(worker.answer(session_id, "And?", PLAIN))[-1], Finished)
    assert worker.sessions.get(session_id).is_read
    assert list(worker.read_book(session_id)) == []


def test_a_question_during_the_reading_is_answered_after_it(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path
) -> None:
    session_id = worker.sessions.enter("").id
    engine.reading.clear()
    stream = worker.open_book(session_id, write_book(tmp_path))
    until(PrefillProgress, stream)
    thread, events = in_thread(worker.answer(session_id, "Already?", PLAIN))
    wait_for(lambda: events)
    assert events == [Waiting("own job", 0)]
    engine.reading.set()
    assert isinstance(list(stream)[-1], ReadingEnded)
    thread.join(SECONDS)
    assert isinstance(events[-1], Finished)


def test_another_file_takes_over_from_the_one_that_is_being_read(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path
) -> None:
    session_id = worker.sessions.enter("").id
    engine.reading.clear()
    slow = worker.open_book(session_id, write_book(tmp_path))
    until(PrefillProgress, slow)
    fast = worker.open_book(session_id, write_book(tmp_path, "The better book. " * 9, "better.txt"))
    engine.reading.set()
    assert list(slow) == []
    assert isinstance(list(fast)[-1], ReadingEnded)
    book = worker.sessions.get(session_id).book
    assert book is not None and book.document.name == "better.txt"


@pytest.mark.parametrize("bad", ["empty", "long"])
def test_a_file_that_cannot_be_used_leaves_the_book_that_is_open(
    bad: str, worker: EngineWorker, tmp_path: Path
) -> None:
    session_id = opened(worker, write_book(tmp_path))
    list(worker.answer(session_id, "One?", PLAIN))
    before = worker.sessions.get(session_id)
    book, exchanges = before.book, before.exchanges
    text, error = {"empty": ("", EmptyDocument), "long": ("A long text. " * 2000, ContextTooSmall)}[bad]
    with pytest.raises(error):
        list(worker.open_book(session_id, write_book(tmp_path, text, "bad.txt")))
    after = worker.sessions.get(session_id)
    assert after.book is book and after.exchanges == exchanges and len(exchanges) == 1
    assert isinstance(list(worker.answer(session_id, "Two?", PLAIN))[-1], Finished)


@pytest.mark.parametrize(
    ("error", "raised"),
    [(ContextTooSmall(9, 8, possible=16), ContextTooSmall), (RuntimeError("out of luck"), EngineFault)],
)
def test_errors_cross_the_threads_and_the_worker_lives_on(
    error: Exception, raised: type[CoreError], worker: EngineWorker, engine: FakeEngine, tmp_path: Path
) -> None:
    session_id = opened(worker, write_book(tmp_path))
    engine.enqueue(error)
    with pytest.raises(raised):
        list(worker.answer(session_id, "Boom?", PLAIN))
    (exchange,) = worker.sessions.get(session_id).exchanges
    assert exchange.finished.text == "Half " and exchange.finished.stop_reason == "cancelled", "nothing is lost"
    assert isinstance(list(worker.answer(session_id, "Still there?", PLAIN))[-1], Finished)


def test_questions_that_cannot_be_asked(worker: EngineWorker, tmp_path: Path) -> None:
    with pytest.raises(NoBook):
        worker.answer(worker.sessions.enter("").id, "What?", PLAIN)
    with pytest.raises(EmptyQuestion):
        worker.answer(opened(worker, write_book(tmp_path)), "  \n", PLAIN)
    with pytest.raises(SessionGone):
        worker.answer("made up", "What?", PLAIN)


def test_regenerate_replaces_the_last_answer_only(worker: EngineWorker, engine: FakeEngine, tmp_path: Path) -> None:
    session_id = opened(worker, write_book(tmp_path))
    for number, answer in zip(count(1), ("First.", "Second."), strict=False):
        engine.enqueue(answer)
        list(worker.answer(session_id, f"Question {number}", PLAIN))
    engine.enqueue("Another second.")
    list(worker.regenerate(session_id, GenerationConfig(sampling=SamplingParams(temperature=1.0))))
    exchanges = worker.sessions.get(session_id).exchanges
    assert [(one.question, one.finished.text.strip()) for one in exchanges] == [
        ("Question 1", "First."),
        ("Question 2", "Another second."),
    ]


def test_clear_begins_anew_and_keeps_the_book_read(worker: EngineWorker, tmp_path: Path) -> None:
    session_id = opened(worker, write_book(tmp_path))
    list(worker.answer(session_id, "One?", PLAIN))
    worker.clear(session_id)
    session = worker.sessions.get(session_id)
    assert session.exchanges == () and session.is_read
    begun, progress, *_ = without_pauses(worker.answer(session_id, "Two?", PLAIN))
    assert isinstance(begun, AnswerBegun) and isinstance(progress, PrefillProgress)
    assert progress.reused_tokens >= begun.num_book


def test_an_answer_that_was_cleared_away_is_not_recorded(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path
) -> None:
    session_id = opened(worker, write_book(tmp_path))
    engine.enqueue("One two | three")
    stream = worker.answer(session_id, "Long?", PLAIN)
    until(RoundDone, stream)
    worker.clear(session_id)
    list(stream)
    assert worker.sessions.get(session_id).exchanges == ()


def test_a_page_that_reloads_finds_its_session_again(worker: EngineWorker) -> None:
    first = worker.sessions.enter("")
    assert worker.sessions.enter(first.id) is first
    assert worker.sessions.enter("unknown").id not in ("unknown", first.id)


def test_a_page_may_bring_an_id_that_nobody_guesses(worker: EngineWorker) -> None:
    mine = "0123456789abcdef" * 2
    assert worker.sessions.enter(mine).id == mine


def test_the_page_is_told_when_the_model_is_loaded(engine: FakeEngine, tmp_path: Path) -> None:
    release = threading.Event()

    def load() -> tuple[FakeEngine, object]:
        assert release.wait(SECONDS)
        return engine, MACHINE

    worker = EngineWorker(load)  # type: ignore[arg-type]
    worker.start()
    try:
        states = worker.states()
        assert isinstance(next(states), Loading)
        session_id = worker.sessions.enter("").id
        thread, events = in_thread(worker.open_book(session_id, write_book(tmp_path)))
        wait_for(lambda: Waiting("loading", 0) in events)
        release.set()
        assert isinstance(next(states), Ready)
        thread.join(SECONDS)
        assert isinstance(events[-1], ReadingEnded)
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
            list(worker.open_book(worker.sessions.enter("").id, write_book(tmp_path)))
    finally:
        worker.close()


def test_book_opened_comes_before_anything_is_read(worker: EngineWorker, tmp_path: Path) -> None:
    events = list(worker.open_book(worker.sessions.enter("").id, write_book(tmp_path)))
    kinds = [type(event) for event in events]
    assert kinds.index(BookOpened) < kinds.index(PrefillProgress) and kinds[-1] is ReadingEnded
