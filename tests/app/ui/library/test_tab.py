"""The library at work: what a click changes, states of files, and documents of any size."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.context.context_documents import Library, Pages
from app.context.token_costs import Meter
from app.documents.document import Document
from app.documents.ocr import Ocr
from app.documents.readers import extract_document
from app.runtime.context_loader import _book
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.ui.library.acts import changes
from app.ui.library.page_viewer import Wanted, preview
from app.ui.library.view import incoming
from app.ui.reading.book_view import book_card
from app.ui.reading.checklist_view import checklist
from core.errors import InvalidSetting
from core.generation.text import ChatText
from core.models.hub import catalog
from core.models.loader import load_tokenizer
from tests.app.fakes import FakeEngine, document_of, write_book


def a_long_document(num_pages: int) -> Document:
    return document_of(*["A page of some words, one like the other. " * 40] * num_pages, title="Long")


# -------------------- clicks


def test_a_click_means_a_change_of_the_shelf() -> None:
    library = Library()
    for number in (3, 4, 5):
        library = library.add(a_long_document(number))
    keys = [book.key for book in library.books]

    def after(verb: str, key: str, detail: str = "") -> list[str]:
        change = changes(library, verb, key, detail)
        return [book.key for book in change(library).books] if change else []

    assert after("up", keys[2]) == [keys[0], keys[2], keys[1]]
    assert after("down", keys[0]) == [keys[1], keys[0], keys[2]]
    assert after("up", keys[0]) == after("down", keys[2]) == [], "already there"
    assert after("remove", keys[1]) == [keys[0], keys[2]]
    assert after("move", keys[2], "0") == [keys[2], *keys[:2]] and after("move", keys[2], "x") == []
    assert after("start-over", "") == []
    assert after("remove", "gone") == after("hack", keys[0]) == []
    change = changes(library, "choose", keys[1], "2-3")
    assert change and change(library).books[1].choice == Pages(2, 3)
    change = changes(library, "parts", "_", f"{keys[1]}=#2-#3")
    assert change and [(one.key, one.choice) for one in change(library).books] == [(keys[1], Pages(2, 3))]
    assert change(Library()).books == (), "the library was emptied meanwhile"
    for none in ("", "gone=all", "nonsense"):
        assert changes(library, "parts", "_", none) is None
    with pytest.raises(InvalidSetting, match="has no part"):
        changes(library, "parts", "_", f"{keys[0]}=all;{keys[1]}=c1")
    with pytest.raises(InvalidSetting, match="has no part"):
        changes(library, "choose", keys[1], "chapter 1")


# -------------------- files on their way


def test_every_file_has_a_state_of_its_own(worker: EngineWorker, tmp_path: Path, monkeypatch: Any) -> None:
    session = worker.sessions.enter("")
    files = [write_book(tmp_path, f"The book {name}. " * 40, f"{name}.txt") for name in "ab"]
    files.insert(1, write_book(tmp_path, "", "empty.txt"))
    seen: list[tuple[str, ...]] = []

    def noting(path: Path, *, ocr: Ocr) -> Iterator[Any]:
        seen.append(tuple(one.stage for one in session.uploads.pending))
        yield from extract_document(path, ocr=ocr)

    monkeypatch.setattr("app.runtime.reopening.extract_documents", noting)
    events = worker.open_books(session.id, files)
    assert [one.stage for one in session.uploads.pending] == ["waiting"] * 3, "at once, before anything is read"
    list(events)
    assert seen == [
        ("extracting", "waiting", "waiting"),
        ("extracted", "extracting", "waiting"),
        ("extracted", "failed", "extracting"),
    ]
    assert session.is_read and [one.name for one in session.uploads.pending] == ["empty.txt"]


def test_a_page_that_is_left_says_later_what_did_not_come(worker: EngineWorker, tmp_path: Path) -> None:
    session = worker.sessions.enter("")
    events = worker.open_books(session.id, [write_book(tmp_path), write_book(tmp_path, "Other. " * 30, "other.txt")])
    next(events)
    events.close()  # type: ignore[attr-defined]
    assert {one.stage for one in session.uploads.pending} <= {"failed", "extracted"}
    assert "other.txt was not opened" in book_card(session) and not session.is_reading
    assert "other.txt was not opened" in incoming(session)


@pytest.mark.parametrize(
    ("titles", "shown"),
    [
        (["Preface", "1. Overview", "2. Setup"], ["Preface", "1. Overview", "2. Setup"]),
        (["Preface", "Overview"], ["1. Preface", "2. Overview"]),
        (["Prologue", "Introduction", "1. Setup"], ["1. Prologue", "2. Introduction", "1. Setup"]),
    ],
)
def test_the_checklist_numbers_chapters_only_where_the_book_does_not(
    titles: list[str], shown: list[str], worker: EngineWorker, tmp_path: Path
) -> None:
    text = "".join(f"# {title}\n\n{'Words of it. ' * 200}\n\n" for title in titles)
    session = worker.sessions.enter("")
    list(worker.open_books(session.id, [write_book(tmp_path, text, "book.md")]))
    assert re.findall(r'<span dir="auto">([^<]*)</span>', checklist(session)) == shown


# -------------------- budget


def test_tokens_of_a_book_stay_what_they_are_when_another_follows() -> None:
    """Seen with the bundled tokenizer, whose pieces could join across the border: then all would be read again."""
    text = ChatText(load_tokenizer(catalog.find("harbour").target), frozenset())
    engine: Any = FakeEngine(context=9999)
    engine.text = text
    one = Library().add(document_of("The end of the first book"))
    two = one.add(document_of("s begin to sing.", title="Two"))
    (first, ids), (second, more) = (_book(library, Meter(len), engine) for library in (one, two))
    assert more[: len(ids)] == ids and len(more) > len(ids)
    assert list(second.starts[: len(first.starts)]) == list(first.starts)
    assert text.decode(more).split() == two.text.split()
    for start, token in list(zip(second.starts, more, strict=True))[1:]:
        piece = text.decode([token]).strip()
        assert two.text[start:].lstrip().startswith(piece)


# -------------------- any size


def test_a_page_beyond_the_last_is_the_last_and_an_unknown_book_none() -> None:
    session = Session("x")
    session.uploads.library = Library().add(a_long_document(3))
    key = session.uploads.library.books[0].key
    assert 'value="3"' in preview(session, Wanted(key, 99)) and 'value="1"' in preview(session, Wanted(key, -4))
    assert "Choose “Preview”" in preview(session, Wanted("gone", 1))
