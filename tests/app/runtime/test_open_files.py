"""The copies of PDFs in a session: from the drop to the moment when nothing needs them."""

from pathlib import Path

import pytest

from app.context.context_documents import Pages
from app.context.upload_files import FOLDER, claim
from app.runtime.sessions import MOST_SESSIONS
from app.runtime.worker import EngineWorker
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
