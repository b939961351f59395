"""Questions about a book whose text is still being taken from its file: they wait for it, and nothing for them."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from app.runtime.events import Begun, BookOpened, Waiting, WorkerEvent
from app.runtime.sessions import NoBook, Session
from app.runtime.worker import EngineWorker
from core.config import GenerationConfig
from core.errors import CoreError, UnknownModel
from core.generation.events import Finished
from tests.app.fakes import SECONDS, FakeEngine, close_book, hold_extraction, opened, wait_for, write_book
from tests.app.runtime.test_worker import in_thread, without_pauses

PLAIN = GenerationConfig()
WAITS = Waiting("opening", 0)


@pytest.fixture
def extraction(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Files are not extracted before this is set."""
    yield from hold_extraction(monkeypatch)


class Early:
    """A question asked while the text of a file is being extracted: events of the book and of the answer."""

    def __init__(self, worker: EngineWorker, session: Session, file: Path, question: str) -> None:
        self._opening, self.seen = in_thread(worker.open_books(session.id, [file]))
        wait_for(lambda: session.uploads.extracting)
        self.asking, self.events = in_thread(worker.answer(session.id, question, PLAIN))
        wait_for(lambda: self.events)
        assert self.events == [WAITS]

    def end(self) -> WorkerEvent:
        """The last event of the answer, after both streams have ended."""
        for thread in (self.asking, self._opening):
            thread.join(SECONDS)
            assert not thread.is_alive()
        return self.events[-1]


def in_a_conversation(worker: EngineWorker, file: Path) -> Session:
    """A page that shows a conversation about a book which is not open."""
    session = worker.sessions.get(opened(worker, file))
    list(worker.answer(session.id, "One?", PLAIN))
    close_book(worker, session)
    return session


def test_a_question_waits_for_the_text_and_is_answered_from_the_whole_book(
    worker: EngineWorker, engine: FakeEngine, tmp_path: Path, extraction: threading.Event
) -> None:
    session = worker.sessions.enter("")
    engine.enqueue("The night was stormy.")
    early = Early(worker, session, write_book(tmp_path), "How was the night?")
    extraction.set()
    last = early.end()
    assert isinstance(last, Finished) and last.text.strip() == "The night was stormy."
    begun = next(event for event in early.events if isinstance(event, Begun))
    assert session.book is not None and begun.record.num_book == session.book.num_tokens
    assert sum(isinstance(event, BookOpened) for event in early.seen) == 1, "the card's own stream tells it"
    assert [one.question for one in session.exchanges] == ["How was the night?"]


def test_a_question_about_the_open_book_does_not_wait_for_a_further_file(
    worker: EngineWorker, tmp_path: Path, extraction: threading.Event
) -> None:
    extraction.set()
    session = worker.sessions.get(opened(worker, write_book(tmp_path)))
    extraction.clear()
    in_thread(worker.open_books(session.id, [write_book(tmp_path, "Another. " * 9, "b.txt")]))
    wait_for(lambda: session.uploads.extracting)
    asking, events = in_thread(worker.answer(session.id, "The open one?", PLAIN))
    asking.join(SECONDS)
    assert events and isinstance(events[-1], Finished)


def test_a_question_about_a_file_that_cannot_be_read_is_told_so(worker: EngineWorker) -> None:
    session = worker.sessions.enter("")
    upload = session.uploads.expect(["bad.pdf"])[0]
    stream = worker.answer(session.id, "What?", PLAIN)
    assert next(without_pauses(stream)) == WAITS
    upload.fail(CoreError("bad.pdf is damaged.", hint="Choose another file."))
    with pytest.raises(NoBook, match="no book yet"):
        list(stream)


@pytest.mark.parametrize("stop", ["answer", "reading"])
def test_stop_withdraws_a_question_that_waits_for_a_text(
    stop: str, worker: EngineWorker, tmp_path: Path, extraction: threading.Event
) -> None:
    session = worker.sessions.enter("")
    early = Early(worker, session, write_book(tmp_path), "Never mind")
    if stop == "answer":
        worker.jobs.cancel(session.id, "answer")
    else:
        worker.stop_reading(session.id)
    early.asking.join(SECONDS)
    assert not early.asking.is_alive() and not worker.jobs.of(session.id, "answer")
    extraction.set()
    assert early.end() == WAITS
    assert session.exchanges == () and (session.book is None) == (stop == "reading")


def test_without_a_model_the_question_fails_with_its_error(tmp_path: Path, extraction: threading.Event) -> None:
    def fails() -> NoReturn:
        raise UnknownModel("There is no such model.", hint="Choose another.")

    worker = EngineWorker(fails)
    worker.start()
    session = worker.sessions.enter("")
    in_thread(worker.open_books(session.id, [write_book(tmp_path)]))
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
    session = in_a_conversation(worker, file)
    extraction.clear()
    early = Early(worker, session, file, "Two?")
    extraction.set()
    assert isinstance(early.end(), Finished) and [one.question for one in session.exchanges] == ["One?", "Two?"]
    assert any(isinstance(event, BookOpened) for event in early.seen) and session.is_read
