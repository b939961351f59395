"""Questions about a book whose text is still being taken from its file wait for it; and the files themselves go."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.context.context_documents import Pages
from app.context.upload_files import FOLDER, claim
from app.context.uploads import Upload
from app.documents.document import Extracting
from app.runtime import reading_job
from app.runtime.events import Begun, BookOpened, Waiting, WorkerEvent
from app.runtime.reopening import extract_one
from app.runtime.sessions import MOST_SESSIONS, NoBook, Session
from app.runtime.worker import EngineWorker
from core.errors import CoreError, UnknownModel
from core.generation.events import Finished
from tests.app.documents.conftest import MakePdf
from tests.app.fakes import SECONDS, FakeEngine, FakeText, Reader, in_thread, until, wait_for, write_book

WAITS = Waiting("opening", 0)


@pytest.fixture
def extraction(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Files are not extracted while this is clear, as it is at first but for a `reader`, whose book is open."""
    held = threading.Event()

    def slowly(upload: Upload, *rest: Any) -> Iterator[Extracting]:
        upload.stage = "extracting"
        while not held.wait(0.02) and not upload.stop.is_set():
            yield Extracting(num_done=0, num_pages=None)
        yield from extract_one(upload, *rest)

    monkeypatch.setattr(reading_job, "extract_one", slowly)
    yield held
    held.set()


class Early:
    """A question asked while the text of a file is being extracted: events of the book and of the answer."""

    def __init__(self, reader: Reader, question: str) -> None:
        self._opening, self.seen = in_thread(reader.begins_to_open())
        wait_for(lambda: reader.session.uploads.extracting)
        self.asking, self.events = in_thread(reader.begins(question))
        wait_for(lambda: self.events)
        assert self.events == [WAITS]

    def end(self) -> WorkerEvent:
        """The last event of the answer, after both streams have ended."""
        for thread in (self.asking, self._opening):
            thread.join(SECONDS)
            assert not thread.is_alive()
        return self.events[-1]


@pytest.fixture
def empty(worker: EngineWorker, engine: FakeEngine, tmp_path: Path) -> Reader:
    """A page without a book."""
    return Reader(worker, engine, worker.sessions.enter(""), tmp_path)


def test_there_is_no_moment_between_counting_and_reading(empty: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that nobody sees would leave then."""
    seen, whole = list[bool](), FakeText.offsets

    def offsets(text: FakeText, part: str) -> list[int]:
        seen.append(empty.session.is_reading)
        return whole(text, part)

    monkeypatch.setattr(FakeText, "offsets", offsets)
    empty.opens()
    assert seen and all(seen) and not empty.session.is_reading


@pytest.mark.parametrize("again", [False, True])
def test_a_question_waits_for_the_text_and_is_answered_from_the_whole_book(
    again: bool, empty: Reader, extraction: threading.Event
) -> None:
    """`again`: in a conversation whose book is not open."""
    session = empty.session
    if again:
        extraction.set()
        empty.opens(), empty.asks("One?")
        dialogue = session.dialogue
        empty.arranges(lambda library: library.remove(0))
        session.dialogue = dialogue  # as after a restart
        extraction.clear()
    empty.engine.enqueue("The night was stormy.")
    early = Early(empty, "How was the night?")
    extraction.set()
    last = early.end()
    assert isinstance(last, Finished) and last.text.strip() == "The night was stormy."
    begun = next(event for event in early.events if isinstance(event, Begun))
    assert session.book is not None and begun.record.num_book == session.book.num_tokens and session.is_read
    assert sum(isinstance(event, BookOpened) for event in early.seen) == 1, "the card's own stream tells it"
    assert empty.questions == ["One?"] * again + ["How was the night?"]


def test_a_question_about_the_open_book_does_not_wait_for_a_further_file(
    reader: Reader, extraction: threading.Event
) -> None:
    in_thread(reader.begins_to_open("Another. " * 9, "b.txt"))
    wait_for(lambda: reader.session.uploads.extracting)
    reader.asks("The open one?")


def test_a_question_about_a_file_that_cannot_be_read_is_told_so(empty: Reader) -> None:
    upload = empty.session.uploads.expect(["bad.pdf"])[0]
    stream = empty.begins("What?")
    assert until(Waiting, stream) == WAITS
    upload.fail(CoreError("bad.pdf is damaged.", hint="Choose another file."))
    with pytest.raises(NoBook, match="no book yet"):
        list(stream)


@pytest.mark.parametrize("stop", ["answer", "reading"])
def test_stop_withdraws_a_question_that_waits_for_a_text(stop: str, empty: Reader, extraction: threading.Event) -> None:
    worker, session = empty.worker, empty.session
    early = Early(empty, "Never mind")
    worker.jobs.cancel(session.id, "answer") if stop == "answer" else worker.stop_reading(session.id)
    early.asking.join(SECONDS)
    assert not early.asking.is_alive() and not worker.jobs.of(session.id, "answer")
    extraction.set()
    assert early.end() == WAITS
    assert session.exchanges == () and (session.book is None) == (stop == "reading")


def test_without_a_model_the_question_fails_with_its_error(
    empty: Reader, extraction: threading.Event, begin_worker: Callable[..., EngineWorker]
) -> None:
    def fails() -> object:
        raise UnknownModel("There is no such model.", hint="Choose another.")

    empty.worker = begin_worker(fails)
    page = empty.beside()

    def opens() -> None:
        with pytest.raises(UnknownModel):
            list(page.begins_to_open())

    opening = threading.Thread(target=opens)
    opening.start()
    wait_for(lambda: page.session.uploads.extracting)
    with pytest.raises(UnknownModel):
        list(page.begins("What?"))
    extraction.set()
    opening.join(SECONDS)
    assert page.session.uploads.extracted and not page.session.is_reading


def test_a_text_is_on_its_way_until_it_is_stopped(empty: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, catch_up = list[bool](), reading_job.Reading.catch_up

    def noting(reading: reading_job.Reading, session: Session) -> Iterator[WorkerEvent]:
        seen.append(session.is_reading)  # its text is extracted, and nothing waits yet for the engine's thread
        return catch_up(reading, session)

    monkeypatch.setattr(reading_job.Reading, "catch_up", noting)
    for event in empty.begins_to_open():
        assert empty.session.is_reading, event
    assert seen and all(seen) and not empty.session.is_reading
    (upload,) = empty.session.uploads.expect(["next.txt"])
    upload.stage = "extracted"
    assert empty.session.is_reading
    empty.worker.stop_reading(empty.session.id)
    assert not empty.session.is_reading


# -------------------- the copies of PDFs in a session


@pytest.mark.parametrize("end", ["removed", "forgotten", "closed"])
def test_the_copy_of_a_pdf_stays_as_long_as_its_document_and_no_refused_one_stays(
    end: str, worker: EngineWorker, tmp_path: Path, make_pdf: MakePdf
) -> None:
    pdf, session = make_pdf(["The only page of a book about a teapot."] * 3), worker.sessions.enter("")

    def dropped(place: str) -> Path:
        copy = tmp_path / FOLDER / place / pdf.name
        copy.parent.mkdir(parents=True)
        copy.write_bytes(pdf.read_bytes())
        return claim(copy, tmp_path / FOLDER).own

    own, again = dropped("digest"), dropped("again")
    list(worker.open_books(session.id, [own, write_book(tmp_path)]))
    assert [book.file for book in session.uploads.library.books] == [own, None], "only PDFs have images of pages"
    list(worker.open_books(session.id, [again]))
    assert "is already there" in str(session.uploads.pending[0].error) and not again.exists()
    list(worker.arrange(session.id, lambda library: library.move(0, 1).choose(1, Pages(1, 1))))
    assert session.uploads.library.books[1].file == own and own.exists()
    if end == "removed":
        list(worker.arrange(session.id, lambda library: library.remove(1)))
    elif end == "closed":
        worker.close()
    else:
        for _ in range(MOST_SESSIONS):
            worker.sessions.enter("")
        assert worker.sessions.find(session.id) is None
    assert not own.exists() and not worker.sessions.files.holds(own)
