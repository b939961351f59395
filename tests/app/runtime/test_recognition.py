"""Text on pictures becomes text of the library: offered, recognised, stopped, forgotten; no file stays."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pypdf import PdfWriter

from app.context.context_documents import Library, Pages
from app.context.upload_files import FOLDER, claim, forget
from app.documents import ocr
from app.documents.document import Extracting
from app.documents.errors import ScannedDocument
from app.documents.recognised import RecognisedPages
from app.runtime.context_loader import SAME_CONVERSATION
from app.runtime.data_folder import data_dir
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.ui.library.acts import once_extracted
from app.ui.library.view import listing
from app.ui.reading.book_view import book_card
from app.ui.reading.parts import flags
from app.ui.site import Site
from tests.app.documents import fake_ocr
from tests.app.documents.conftest import MakePdf
from tests.app.documents.fake_ocr import GATE, WAITS, write_scan
from tests.app.documents.test_pdf import PAGE, add_image
from tests.app.fakes import ANSWER, FakeEngine, write_book


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ocr.use(monkeypatch)
    monkeypatch.setattr(ocr, "PACE", ocr.Pace(3.0))


@pytest.fixture
def worker(engine: FakeEngine, tmp_path: Path, start_worker: Callable[..., EngineWorker]) -> EngineWorker:
    engine.context = 100_000
    return start_worker(engine, recognised=RecognisedPages(tmp_path / "kept"))


@pytest.fixture
def session(worker: EngineWorker) -> Session:
    return worker.sessions.enter("")


Drop = Callable[[Path], str]


@pytest.fixture
def drop(worker: EngineWorker, session: Session, tmp_path: Path) -> Drop:
    """Drop a file on the page; returns the number of what could not be read of it."""

    def drop_it(file: Path) -> str:
        stored = data_dir(tmp_path) / FOLDER / "digest" / file.name
        stored.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, stored)
        copy = claim(stored, stored.parent.parent)
        list(once_extracted(worker.open_books(session.id, [copy.own]), lambda: forget([copy], session.files.holds)))
        forget([copy], session.files.holds)
        return str(session.uploads.pending[0].number) if session.uploads.pending else ""

    return drop_it


def uploads_left(tmp_path: Path) -> list[Path]:
    return [file for file in (tmp_path / FOLDER).rglob("*") if file.is_file()]


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """While this file is there, recognition stands still at a page of the shade WAITS."""
    (gate := tmp_path / "gate").touch()
    monkeypatch.setenv(GATE, str(gate))
    return gate


def until_page(events: Iterator[Any], number: int) -> None:
    next(event for event in events if isinstance(event, Extracting) and event.recognising and event.num_done == number)


def test_a_book_is_replaced_where_it_stands_and_chosen_pages_stay_chosen(
    worker: EngineWorker, session: Session, drop: Drop, make_pdf: MakePdf, writer: PdfWriter, tmp_path: Path
) -> None:
    mixed = make_pdf(PAGE, [], PAGE, name="<b>mixed.pdf")  # the second page is a picture
    add_image(writer, 1)
    writer.write(mixed)
    drop(mixed), drop(write_book(tmp_path, name="other.txt"))
    list(worker.arrange(session.id, lambda now: now.choose(0, Pages(1, 2))))
    key = session.uploads.library.books[0].key
    assert "&lt;b&gt;mixed: 1 of 3 pages is a picture." in book_card(session)
    for html in (book_card(session), listing(session)):
        assert f'data-act="recognise:{key}"' in html
    list(worker.reading.recognise(session, key))
    first, second = session.uploads.library.books
    before, picture, after = (first.document.page_text(page).split() for page in first.document.pages)
    assert before == after and picture[:3] == ["A", "page", "of"] and first.document.recognised_pages == (2,)
    assert first.choice == Pages(1, 2)
    assert second.document.name == "other.txt" and session.uploads.pending == ()
    assert f"forget-recognised:{first.key}" in listing(session)
    list(worker.arrange(session.id, lambda now: now.remove(0)))
    assert uploads_left(tmp_path) == []


def test_a_scan_is_refused_and_offered_stop_uses_the_pages_until_then_and_offers_the_rest(
    worker: EngineWorker, session: Session, drop: Drop, gate: Path, tmp_path: Path
) -> None:
    number = drop(write_scan(tmp_path / "scan.pdf", 60, 70, WAITS))
    assert isinstance(session.uploads.pending[0].error, ScannedDocument) and not session.uploads.library.books
    html = book_card(session)
    assert "3 of 3 pages are pictures." in html and f'data-act="recognise:{number}"' in html
    events = worker.reading.recognise(session, number)
    until_page(events, 2)
    html = book_card(session)
    assert "page 3 of 3" in html and "left" in html and f'data-act="stop-recognising:{number}"' in html
    assert list(worker.reading.recognise(session, number)) == [], "once at a time"
    assert "reading" in flags(Site(worker), session), "a tab that nobody sees stays connected meanwhile"
    session.uploads.stop(int(number))
    list(events)
    (book,) = session.uploads.library.books
    assert book.document.recognised_pages == (1, 2) and book.document.picture_pages == (3,)
    assert "1 of 3 pages is a picture." in book_card(session)
    gate.unlink()
    list(worker.answer(session.id, "What is there?", ANSWER))
    list(worker.reading.recognise(session, book.key))
    assert len(session.exchanges) == 1 and session.uploads.note == SAME_CONVERSATION
    assert session.uploads.library.books[0].document.recognised_pages == (1, 2, 3) and session.is_read
    assert 'data-act="recognise' not in book_card(session) and "OCR" in book_card(session)
    assert len(uploads_left(tmp_path)) == 1 and session.uploads.pending == ()
    list(worker.arrange(session.id, lambda _: Library()))
    assert uploads_left(tmp_path) == []


@pytest.mark.parametrize("how", ["closed", "removed"])
def test_a_page_that_is_closed_or_a_book_that_is_removed_ends_it(
    how: str, worker: EngineWorker, session: Session, drop: Drop, gate: Path, tmp_path: Path
) -> None:
    before = psutil.Process().children()  # of other tests in this process
    events: Any = worker.reading.recognise(session, drop(write_scan(tmp_path / "scan.pdf", 60, WAITS)))
    until_page(events, 1)
    if how == "removed":
        session.uploads.stop()
        list(events)
        events = worker.reading.recognise(session, session.uploads.library.books[0].key)
        next(event for event in events if isinstance(event, Extracting) and event.recognising)
        session.uploads.change(lambda _: Library())
        list(events)
        assert session.uploads.library.books == session.uploads.pending == ()
    else:
        events.close()
        (upload,) = session.uploads.pending
        assert upload.stage == "failed" and "stopped on the way" in str(upload.error)
        session.uploads.dismiss(upload.number)
        session.drop_files()
    assert uploads_left(tmp_path) == [] and set(psutil.Process().children()) <= set(before)
