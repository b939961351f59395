"""The copies of PDFs in a session: from the drop to the moment when nothing needs them."""

from pathlib import Path

import pytest

from app.context.context_documents import Library, Pages
from app.context.upload_files import FOLDER, claim
from app.documents.readers import read_document
from app.runtime.sessions import MOST_SESSIONS, Session
from app.runtime.worker import EngineWorker
from app.ui.library.acts import once_extracted
from tests.app.documents.conftest import MakePdf, make_pdf, writer  # noqa: F401
from tests.app.fakes import write_book


@pytest.fixture
def pdf(make_pdf: MakePdf) -> Path:  # noqa: F811
    return make_pdf(["The only page of a book about a teapot."] * 3)


def dropped(folder: Path, file: Path, name: str = "digest") -> Path:
    """An upload's own copy of a file."""
    place = folder / FOLDER / name
    place.mkdir(parents=True)
    return claim(file.replace(place / file.name) if name == "digest" else copy(file, place / file.name)).own


def copy(file: Path, to: Path) -> Path:
    to.write_bytes(file.read_bytes())
    return to


def test_the_copy_of_a_pdf_stays_through_changes_and_goes_with_the_document(
    worker: EngineWorker, pdf: Path, tmp_path: Path
) -> None:
    own, session = dropped(tmp_path, pdf), worker.sessions.enter("")
    list(worker.open_books(session.id, [own, write_book(tmp_path)]))
    first, second = session.uploads.library.books
    assert (first.file, second.file) == (own, None), "only PDFs have images of pages"
    list(worker.arrange(session.id, lambda library: library.move(0, 1).choose(1, Pages(1, 1))))
    assert session.uploads.library.books[1].file == own and own.exists()
    list(worker.arrange(session.id, lambda library: library.remove(1)))
    assert session.book is not None and not own.exists() and not worker.sessions.files.holds(own)


def test_the_open_book_keeps_its_copy_until_another_is_open(worker: EngineWorker, pdf: Path, tmp_path: Path) -> None:
    own, session = dropped(tmp_path, pdf), worker.sessions.enter("")
    list(worker.open_books(session.id, [own]))
    events = worker.arrange(session.id, lambda _: Library())
    assert session.book is not None and own.exists(), "the chat still shows its pages"
    list(events)
    assert session.book is None and not own.exists()


def test_what_was_refused_or_stopped_leaves_no_copy(worker: EngineWorker, pdf: Path, tmp_path: Path) -> None:
    again = dropped(tmp_path, pdf, "again")
    own, session = dropped(tmp_path, pdf), worker.sessions.enter("")
    list(worker.open_books(session.id, [own]))
    list(worker.open_books(session.id, [again]))
    assert "is already there" in str(session.uploads.pending[0].error)
    assert own.exists() and not again.exists()


def test_a_session_that_is_forgotten_and_the_end_leave_no_copy(worker: EngineWorker, pdf: Path, tmp_path: Path) -> None:
    other = dropped(tmp_path, pdf, "other")
    own, session = dropped(tmp_path, pdf), worker.sessions.enter("")
    list(worker.open_books(session.id, [own]))
    for _ in range(MOST_SESSIONS):
        last = worker.sessions.enter("")
    assert worker.sessions.find(session.id) is None and not own.exists()
    list(worker.open_books(last.id, [other]))
    assert other.exists()
    worker.close()
    assert not other.exists()


def test_a_file_that_was_not_dropped_is_used_where_it_is(worker: EngineWorker, pdf: Path) -> None:
    session = worker.sessions.enter("")
    list(worker.open_books(session.id, [pdf]))
    assert session.uploads.library.books[0].file == pdf
    list(worker.arrange(session.id, lambda _: Library()))
    worker.close()
    assert pdf.exists()


def test_copies_are_looked_at_once_the_texts_are_there(worker: EngineWorker, pdf: Path) -> None:
    session, calls = worker.sessions.enter(""), []
    events = worker.open_books(session.id, [pdf])
    for event in once_extracted(events, lambda: calls.append(session.uploads.extracting)):
        assert event is not None
    assert calls and not any(calls)


def test_sessions_share_one_store_of_files(worker: EngineWorker) -> None:
    one, other = worker.sessions.enter(""), worker.sessions.enter("")
    assert one.files is other.files is worker.sessions.files is not Session("x").files


def test_a_copy_that_no_book_uses_goes_even_where_no_model_is_there(
    worker: EngineWorker, pdf: Path, tmp_path: Path
) -> None:
    own, session = dropped(tmp_path, pdf), worker.sessions.enter("")
    session.uploads.add(read_document(own), own)
    session.files.hold(session.id, own)
    worker.arrange(session.id, lambda _: Library())  # nobody follows it to the engine's thread
    assert not own.exists()
