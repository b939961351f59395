"""Long PDFs are read by two processes, with the same result as by one."""

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.documents import Document, Extracting, extract_document, parsing, read_document
from app.documents.errors import DocumentTooLarge, ParsingLimitReached
from app.documents.messages import Opened, PageRead
from app.documents.parsing import Parser, ParsingLimits
from app.documents.pdf import extract_pdf
from tests.app.documents.conftest import MakePdf

NUM_PAGES = 12


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that are begun; all documents of some pages are long, and a core is free."""
    started: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen[bytes]):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[call-overload]
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    monkeypatch.setattr(parsing, "MANY_PAGES", NUM_PAGES - 1)
    monkeypatch.setattr(parsing, "has_free_core", lambda: True)
    return started


@pytest.fixture
def book(make_pdf: MakePdf) -> Path:
    return make_pdf(*[[f"This is what stands on page {number} of the book."] for number in range(NUM_PAGES)])


def is_whole(document: Document) -> bool:
    return [document.page_text(page).strip() for page in document.pages] == [
        f"This is what stands on page {number} of the book." for number in range(NUM_PAGES)
    ]


def test_a_long_book_is_read_by_two_processes_in_the_order_of_its_pages(
    book: Path, begun: list[subprocess.Popen[bytes]]
) -> None:
    *progress, document = extract_document(book)
    assert isinstance(document, Document) and is_whole(document)
    assert len(begun) == 2 and all(process.poll() is not None for process in begun)
    done = [event.num_done for event in progress if isinstance(event, Extracting)]
    assert done == sorted(done) and done[-1] == NUM_PAGES


def test_a_short_book_or_a_busy_machine_has_one_process(
    book: Path, begun: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsing, "has_free_core", lambda: False)
    assert is_whole(read_document(book)) and len(begun) == 1
    monkeypatch.setattr(parsing, "has_free_core", lambda: True)
    monkeypatch.setattr(parsing, "MANY_PAGES", NUM_PAGES + 1)
    assert is_whole(read_document(book)) and len(begun) == 2


def test_without_a_turn_for_a_second_process_the_first_reads_on(
    book: Path, begun: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsing, "_turns", threading.BoundedSemaphore(1))
    assert is_whole(read_document(book)) and len(begun) == 1


@pytest.mark.parametrize("num_good", [0, 1, 3])
def test_where_the_second_process_fails_the_first_reads_on(
    book: Path, begun: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, num_good: int
) -> None:
    messages = parsing.worker_messages

    def failing(
        parser: Parser, file: Path, name: str, limits: ParsingLimits, first: int = 0
    ) -> Iterator[Opened | PageRead | None]:
        num_pages = 0
        for message in messages(parser, file, name, limits, first):
            yield message
            num_pages += message is not None and message["kind"] == "page"
            if first and num_pages == num_good:
                raise ParsingLimitReached(name, "some pages")

    monkeypatch.setattr(parsing, "worker_messages", failing)
    assert is_whole(read_document(book))
    assert len(begun) == 2 and all(process.poll() is not None for process in begun)


def test_closing_ends_both_processes(book: Path, begun: list[subprocess.Popen[bytes]]) -> None:
    events = extract_document(book)
    while len(begun) < 2:
        next(events)
    events.close()
    assert all(process.poll() is not None for process in begun)


def test_too_much_text_is_refused_whoever_reads_it(book: Path, begun: list[subprocess.Popen[bytes]]) -> None:
    with pytest.raises(DocumentTooLarge, match="450 characters"):
        list(extract_pdf(book, "book.pdf", ParsingLimits(chars=450)))
    assert all(process.poll() is not None for process in begun)
