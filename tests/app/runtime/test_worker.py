"""The worker: one thread, one queue, errors as values, nothing half-done; and it lives on whatever the engine does."""

from collections.abc import Callable
from typing import cast

import pytest

from app.context.context_documents import Library, Pages
from app.runtime.error_text import EngineFault
from app.runtime.events import Changed, LoadFailed, Ready, Waiting
from app.runtime.sessions import NoBook
from app.runtime.worker import EngineWorker
from core.config import MOST_WHOLE, GenerationConfig, seed_at
from core.errors import ContextTooSmall, CoreError, EmptyQuestion, UnknownModel
from core.generation.events import PrefillProgress, RoundDone
from tests.app.fakes import ANSWER, MACHINE, SECONDS, FakeEngine, Reader, in_thread, settled, until, wait_for


class Panic(BaseException):
    """What a library written in Rust raises: no Exception."""


FAULTS = (Panic("poisoned"), SystemExit(1), MemoryError(), RuntimeError("/home/me/secret"))
OTHER = "Another book. " * 20


# -------------------- turns


def test_every_answer_is_drawn_with_a_seed_of_its_own(
    reader: Reader, start_worker: Callable[..., EngineWorker]
) -> None:
    reader.worker = start_worker(reader.engine, seed=40)
    reader.session = reader.worker.sessions.enter("")
    reader.opens(), reader.asks("One?"), reader.asks("Two?")
    list(reader.worker.regenerate(reader.session.id, ANSWER))
    assert [config.seed for config in reader.engine.configs] == [40, 41, 42]
    assert [seed_at(MOST_WHOLE, number) for number in (0, 1)] == [MOST_WHOLE, -MOST_WHOLE]


def test_a_second_page_waits_is_told_so_may_withdraw_and_gets_its_answer(reader: Reader) -> None:
    second, engine = reader.beside(OTHER), reader.engine
    engine.writing.clear()
    running, _ = in_thread(reader.begins("Long?"))
    wait_for(lambda: len(engine.configs) == 1)
    for withdrawn in (True, False):
        thread, events = in_thread(second.begins("Short?", GenerationConfig(max_new_tokens=2)))
        wait_for(lambda seen=events: seen)
        assert events == [Waiting("another page", 1)]
        reader.worker.jobs.cancel(second.session.id, "answer") if withdrawn else engine.writing.set()
        thread.join(SECONDS)
        assert not thread.is_alive() and len(second.session.exchanges) == (not withdrawn)
    running.join(SECONDS)
    assert second.exchange.finished.stop_reason == "end_of_text" and len(engine.configs) == 2


def test_reading_can_be_stopped_goes_on_with_a_question_and_a_question_waits_for_it(reader: Reader) -> None:
    reader, engine = reader.beside(), reader.engine
    engine.reading.clear()
    stream = reader.begins_to_open("A book that nobody has read. " * 9)
    until(PrefillProgress, stream)
    reader.worker.stop_reading(reader.session.id)
    list(stream)
    assert not reader.session.is_read
    engine.reading.set()
    reader.asks("And?")
    assert reader.session.is_read and list(reader.worker.reading.catch_up(reader.session)) == []
    engine.reading.clear()
    stream = reader.begins_to_open(OTHER, "other.txt")
    until(PrefillProgress, stream)
    thread, events = in_thread(reader.begins("Already?"))
    wait_for(lambda: events)
    assert events == [Waiting("own job", 0)]
    engine.reading.set()
    assert isinstance(list(stream)[-1], Changed)
    thread.join(SECONDS)
    assert reader.questions == ["And?", "Already?"]


def test_questions_that_cannot_be_asked(reader: Reader) -> None:
    with pytest.raises(NoBook):
        reader.beside().begins("What?")
    with pytest.raises(EmptyQuestion):
        reader.begins("  \n")
    with pytest.raises(CoreError, match="older than the running reader"):
        reader.worker.answer("made up", "What?", ANSWER)


# -------------------- the library


def test_a_shelf_that_is_too_long_waits_for_a_choice_and_leaves_what_is_open(reader: Reader) -> None:
    session = reader.session
    reader.asks("One?")
    book, exchanges = session.book, session.exchanges
    reader.opens("A long text. " * 2000, "long.txt")
    fit = session.uploads.fit
    assert session.book is book is not None and session.exchanges == exchanges and session.uploads.too_long
    assert fit is not None and fit.needed > fit.context
    reader.asks("Two?")
    events = reader.arranges(lambda library: library.choose(1, Pages(1, 1)))
    assert session.book is not None and session.book is not book and session.is_read
    assert session.uploads.fit is not None and session.uploads.fit.needed <= 4096
    assert reader.questions == ["One?", "Two?"], "the conversation goes on"
    progress = cast(PrefillProgress, until(PrefillProgress, iter(events)))
    assert progress.reused_tokens >= book.num_tokens


def test_the_last_book_that_goes_takes_the_conversation_along_and_says_so(reader: Reader) -> None:
    session = reader.session
    reader.asks("One?")
    reader.opens(OTHER, "other.txt")
    assert len(session.exchanges) == 1 and "goes on" in session.uploads.note
    reader.arranges(lambda library: library.remove(0))
    assert len(session.exchanges) == 1, "the other book was there when it was answered"
    reader.engine.enqueue("One two | three")
    stream = reader.begins("Long?")
    until(RoundDone, stream)
    reader.arranges(lambda _: Library())
    list(stream)
    assert session.book is None and session.dialogue is None and session.uploads.library.books == ()
    (listed,) = reader.worker.conversations.listing().summaries
    assert len(reader.worker.conversations.open(listed.id).nodes) == 2, "what was said stays in the list"
    with pytest.raises(NoBook):
        reader.begins("Two?")


def test_what_is_loaded_is_told_while_an_answer_is_written(reader: Reader) -> None:
    session, engine = reader.session, reader.engine
    engine.weights = [0.5, 0.0, 0.25]
    engine.enqueue("One | two.")
    answer = reader.begins("Where?")
    until(Changed, answer)
    assert session.where and list(session.where.weights) == [0.5, 0, 0.25]
    engine.writing.set()
    list(answer)
    assert session.where.num_seen >= 2
    reader.asks("And now?", config=GenerationConfig(method="autoregressive"))
    assert not session.where.retrieves and session.where.num_seen == 0


# -------------------- the model, and what may go wrong in it


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (UnknownModel("There is no model 'x'.", hint="Use harbour."), UnknownModel),
        (OSError("disk"), EngineFault),
        (Panic("a header of 9 exabytes"), EngineFault),
    ],
)
def test_a_model_that_cannot_be_loaded_is_said_at_every_job_and_another_one_can_be(
    error: BaseException, shown: type[CoreError], reader: Reader, begin_worker: Callable[..., EngineWorker]
) -> None:
    def load() -> object:
        raise error

    worker = reader.worker = begin_worker(load)
    state = settled(worker)
    assert isinstance(state, LoadFailed) and isinstance(state.error, shown)
    with pytest.raises(shown):
        reader.beside("A book.")
    worker.jobs.switch(lambda: (FakeEngine(), MACHINE), "other")  # type: ignore[arg-type,return-value]
    state = settled(worker)
    assert isinstance(state, Ready) and reader.beside("A book.").session.is_read


@pytest.mark.parametrize("fault", [*FAULTS, ContextTooSmall(9, 8, possible=16)])
def test_a_fault_during_an_answer_is_told_and_the_thread_lives_on(fault: BaseException, reader: Reader) -> None:
    reader.engine.enqueue(fault)
    with pytest.raises(EngineFault if fault in FAULTS else type(fault)) as told:
        reader.asks("Boom?")
    if fault in FAULTS and str(fault):
        assert str(fault) not in str(told.value), "what a library says stays in the terminal"
    if isinstance(fault, MemoryError):
        assert "memory" in told.value.problem
    assert reader.exchange.finished.text == "Half ", "what was written is kept"
    reader.asks("Still there?")


def test_a_question_whose_prompt_cannot_be_made_leaves_nothing_behind(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> list[int]:
        raise CoreError("This model takes no such messages.", hint="Ask less.")

    with monkeypatch.context() as patch, pytest.raises(CoreError, match="no such messages"):
        patch.setattr(reader.engine.text, "prompt", refuse)
        reader.asks("Boom?")
    assert reader.questions == [] and reader.worker.conversations.listing().summaries == ()
