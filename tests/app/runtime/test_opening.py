"""Questions about a book whose text is still being taken from its file: they wait for it, and nothing for them."""

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from app.context.uploads import Interrupted, Upload
from app.documents.document import Document, Extracting
from app.documents.ocr import Ocr
from app.runtime import context_loader, reading_job
from app.runtime.events import AnswerBegun, BookOpened, RaceBegun, Waiting, WorkerEvent
from app.runtime.extracting import extract_one
from app.runtime.jobs import LOOK_SECONDS
from app.runtime.sessions import NoBook
from app.runtime.worker import EngineWorker
from core.config import GenerationConfig
from core.errors import ContextTooSmall, CoreError, UnknownModel
from core.generation.events import Finished
from tests.app.fakes import SECONDS, FakeEngine, opened, write_book
from tests.app.runtime.test_worker import in_thread, wait_for, without_pauses

PLAIN = GenerationConfig()
WAITS = Waiting("opening", 0)


@pytest.fixture
def extraction(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Files are not extracted before this is set."""
    held = threading.Event()

    def slowly(
        upload: Upload, file: Path, insert: Callable[[Upload, Sequence[Document]], None], ocr: Ocr
    ) -> Iterator[Extracting]:
        upload.stage = "extracting"
        while not held.wait(0.01) and not upload.stop.is_set():
            yield Extracting(num_done=0, num_pages=None)
        yield from extract_one(upload, file, insert, ocr)

    monkeypatch.setattr(reading_job, "extract_one", slowly)
    yield held
    held.set()


def test_a_question_waits_for_the_text_and_is_answered_from_the_whole_book(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path, extraction: threading.Event
) -> None:
    session = worker.sessions.enter("")
    engine.enqueue("The night was stormy.")
    opening, seen = in_thread(worker.open_book(session.id, write_book(tmp_path)))
    wait_for(lambda: session.uploads.extracting)
    asking, events = in_thread(worker.answer(session.id, "How was the night?", PLAIN))
    wait_for(lambda: events)
    assert events == [WAITS]
    extraction.set()
    asking.join(SECONDS)
    opening.join(SECONDS)
    assert isinstance(events[-1], Finished) and events[-1].text.strip() == "The night was stormy."
    begun = next(event for event in events if isinstance(event, AnswerBegun))
    assert session.book is not None and begun.num_book == session.book.num_tokens
    assert sum(isinstance(event, BookOpened) for event in seen) == 1, "the card's own stream tells that it is open"
    assert [one.question for one in session.exchanges] == ["How was the night?"]


def test_a_question_about_the_open_book_does_not_wait_for_a_further_file(
    worker: EngineWorker, tmp_path: Path, extraction: threading.Event
) -> None:
    extraction.set()
    session = worker.sessions.get(opened(worker, write_book(tmp_path)))
    extraction.clear()
    in_thread(worker.open_book(session.id, write_book(tmp_path, "Another. " * 9, "b.txt")))
    wait_for(lambda: session.uploads.extracting)
    asking, events = in_thread(worker.answer(session.id, "The open one?", PLAIN))
    asking.join(SECONDS)
    assert events and isinstance(events[-1], Finished)


def test_a_waiting_question_does_not_keep_another_page_waiting(worker: EngineWorker, tmp_path: Path) -> None:
    reader = opened(worker, write_book(tmp_path))
    session = worker.sessions.enter("")
    upload = session.uploads.expect(["slow.pdf"])[0]
    upload.stage = "extracting"
    asking, events = in_thread(worker.answer(session.id, "Mine?", PLAIN))
    wait_for(lambda: events)
    answers = list(without_pauses(worker.answer(reader, "Yours?", PLAIN)))
    assert isinstance(answers[-1], Finished) and not any(isinstance(one, Waiting) for one in answers)
    assert events == [WAITS] and worker.has_answer(session.id)
    worker.stop_answer(session.id)
    asking.join(SECONDS)


def test_a_question_waits_for_recognition_but_not_for_that_of_an_open_book(
    worker: EngineWorker, tmp_path: Path
) -> None:
    session = worker.sessions.enter("")
    upload = session.uploads.expect(["scan.pdf"])[0]
    upload.stage = "recognising"
    assert not session.can_ask
    upload.replaces = "the key of an open book"
    assert session.can_ask and not session.uploads.coming
    session = worker.sessions.get(opened(worker, write_book(tmp_path)))
    session.uploads.expect(["scan.pdf"])[0].stage = "recognising"
    assert session.can_ask


def test_a_question_about_a_file_that_cannot_be_read_is_told_so(worker: EngineWorker) -> None:
    session = worker.sessions.enter("")
    upload = session.uploads.expect(["bad.pdf"])[0]
    stream = worker.answer(session.id, "What?", PLAIN)
    assert next(without_pauses(stream)) == WAITS
    upload.fail(CoreError("bad.pdf is damaged.", hint="Choose another file."))
    with pytest.raises(NoBook, match="no book yet"):
        list(stream)


def test_a_question_about_a_book_that_is_too_long_is_told_so(
    worker: EngineWorker, tmp_path: Path, extraction: threading.Event
) -> None:
    session = worker.sessions.enter("")
    opening, _ = in_thread(worker.open_book(session.id, write_book(tmp_path, "A long text. " * 2000, "long.txt")))
    wait_for(lambda: session.uploads.extracting)
    stream = worker.answer(session.id, "What?", PLAIN)
    assert next(without_pauses(stream)) == WAITS
    extraction.set()
    with pytest.raises((ContextTooSmall, NoBook)):
        list(stream)
    opening.join(SECONDS)
    assert session.uploads.too_long
    with pytest.raises(NoBook, match="too long"):
        worker.answer(session.id, "What?", PLAIN)


@pytest.mark.parametrize("stop", ["stop_answer", "stop_reading"])
def test_stop_withdraws_a_question_that_waits_for_a_text(
    stop: str, worker: EngineWorker, tmp_path: Path, extraction: threading.Event
) -> None:
    session = worker.sessions.enter("")
    opening, _ = in_thread(worker.open_book(session.id, write_book(tmp_path)))
    wait_for(lambda: session.uploads.extracting)
    asking, events = in_thread(worker.answer(session.id, "Never mind", PLAIN))
    wait_for(lambda: events)
    getattr(worker, stop)(session.id)
    asking.join(SECONDS)
    assert not asking.is_alive() and events == [WAITS] and not worker.has_answer(session.id)
    extraction.set()
    opening.join(SECONDS)
    assert session.exchanges == () and (session.book is None) == (stop == "stop_reading")


def test_a_race_waits_for_the_text_too(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path, extraction: threading.Event
) -> None:
    session = worker.sessions.enter("")
    in_thread(worker.open_book(session.id, write_book(tmp_path)))
    wait_for(lambda: session.uploads.extracting)
    configs = [GenerationConfig(method=method) for method in ("autoregressive", "triforce")]
    racing, events = in_thread(worker.race(session.id, "Who wins?", configs))
    wait_for(lambda: events)
    assert events == [WAITS]
    extraction.set()
    racing.join(SECONDS)
    assert any(isinstance(event, RaceBegun) for event in events)


def test_without_a_model_the_question_fails_with_its_error(tmp_path: Path, extraction: threading.Event) -> None:
    def fails() -> NoReturn:
        raise UnknownModel("There is no such model.", hint="Choose another.")

    worker = EngineWorker(fails)
    worker.start()
    session = worker.sessions.enter("")
    in_thread(worker.open_book(session.id, write_book(tmp_path)))
    wait_for(lambda: session.uploads.extracting)
    told: list[CoreError] = []

    def ask() -> None:
        try:
            list(worker.answer(session.id, "What?", PLAIN))
        except CoreError as error:
            told.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(SECONDS)
    worker.close()
    assert [type(error) for error in told] == [UnknownModel]


def test_the_book_of_an_old_conversation_comes_before_its_next_question(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path, extraction: threading.Event
) -> None:
    extraction.set()
    file = write_book(tmp_path)
    session = worker.sessions.get(opened(worker, file))
    list(worker.answer(session.id, "One?", PLAIN))
    dialogue = session.dialogue
    list(worker.arrange(session.id, lambda library: library.remove(0)))
    with session.lock:
        session.dialogue = dialogue
    extraction.clear()
    opening, seen = in_thread(worker.open_book(session.id, file))
    wait_for(lambda: session.uploads.extracting)
    asking, events = in_thread(worker.answer(session.id, "Two?", PLAIN))
    wait_for(lambda: events)
    assert events == [WAITS]
    extraction.set()
    asking.join(SECONDS)
    opening.join(SECONDS)
    assert isinstance(events[-1], Finished) and [one.question for one in session.exchanges] == ["One?", "Two?"]
    assert any(isinstance(event, BookOpened) for event in seen) and session.is_read


def test_a_question_while_tokens_are_counted_waits_too(
    worker: EngineWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, begun, put = threading.Event(), threading.Event(), context_loader._put

    def slowly(*arguments: Any) -> None:
        begun.set()
        held.wait(SECONDS)
        put(*arguments)

    monkeypatch.setattr(context_loader, "_put", slowly)
    session = worker.sessions.enter("")
    opening, _ = in_thread(worker.open_book(session.id, write_book(tmp_path)))
    assert begun.wait(SECONDS)
    assert session.book is None and not session.uploads.extracting and session.uploads.coming
    asking, events = in_thread(worker.answer(session.id, "Already?", PLAIN))
    wait_for(lambda: events)
    held.set()
    asking.join(SECONDS)
    opening.join(SECONDS)
    assert events[0] == Waiting("own job", 0, "counting") and isinstance(events[-1], Finished)


def test_beside_an_old_conversation_the_question_is_about_the_book_that_comes(
    worker: EngineWorker, tmp_path: Path, extraction: threading.Event
) -> None:
    extraction.set()
    session = worker.sessions.get(opened(worker, write_book(tmp_path)))
    list(worker.answer(session.id, "One?", PLAIN))
    dialogue = session.dialogue
    list(worker.arrange(session.id, lambda library: library.remove(0)))
    with session.lock:
        session.dialogue = dialogue
    extraction.clear()
    opening, _ = in_thread(worker.open_book(session.id, write_book(tmp_path, "Quite another book. " * 9, "new.txt")))
    wait_for(lambda: session.uploads.extracting)
    asking, events = in_thread(worker.answer(session.id, "And this one?", PLAIN))
    wait_for(lambda: events)
    extraction.set()
    asking.join(SECONDS)
    opening.join(SECONDS)
    assert isinstance(events[-1], Finished) and [one.question for one in session.exchanges] == ["And this one?"]
    assert session.dialogue is not None and dialogue is not None and session.dialogue.id != dialogue.id


def test_a_stream_that_is_closed_before_its_first_event_leaves_no_upload_on_the_way(
    worker: EngineWorker, tmp_path: Path
) -> None:
    session = worker.sessions.enter("")
    stream = worker.open_book(session.id, write_book(tmp_path))
    assert session.uploads.extracting
    cast(Generator[WorkerEvent], stream).close()
    assert not session.uploads.extracting and isinstance(session.uploads.pending[0].error, Interrupted)


def test_a_job_that_is_stopped_before_its_turn_does_not_run(worker: EngineWorker, engine: FakeEngine) -> None:
    session = worker.sessions.enter("")
    session.uploads.expect(["slow.pdf"])
    configs = [GenerationConfig(method=method) for method in ("autoregressive", "triforce")]
    stream = worker.race(session.id, "Who wins?", configs)
    assert next(without_pauses(stream)) == WAITS
    worker.stop_race(session.id)
    time.sleep(3 * LOOK_SECONDS)  # the engine's thread takes it, not the one that follows
    assert list(without_pauses(stream)) == [] and engine.configs == []


def test_a_text_that_cannot_be_counted_does_not_stay_on_the_way(
    worker: EngineWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panics(*_: Any) -> None:
        raise MemoryError

    session = worker.sessions.enter("")
    with monkeypatch.context() as patch:
        patch.setattr(context_loader, "_put", panics)
        with pytest.raises(CoreError):
            list(worker.open_book(session.id, write_book(tmp_path)))
    assert not session.uploads.coming and session.uploads.pending[0].stage == "failed"
    list(worker.open_book(session.id, write_book(tmp_path, "Another book. " * 9, "b.txt")))
    assert session.book is not None and session.is_read


def test_a_question_about_a_changed_library_that_nobody_has_counted_opens_it(
    worker: EngineWorker, tmp_path: Path
) -> None:
    session = worker.sessions.enter("")
    list(worker.open_book(session.id, write_book(tmp_path, "A long text. " * 2000, "long.txt")))
    assert session.uploads.too_long and session.book is None
    (book,) = session.uploads.library.books
    choice = session.uploads.fit.offers[0].choice if session.uploads.fit else None
    assert choice is not None and book is not None
    session.uploads.change(lambda library: library.choose(0, choice))  # Stop came before its counting
    assert isinstance(list(worker.answer(session.id, "What?", PLAIN))[-1], Finished)
