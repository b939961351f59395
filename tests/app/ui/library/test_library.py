"""The library: what a click changes, files on their way, tokens of its books, and Find without any model."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from app.context.context_documents import Library, Pages
from app.context.token_costs import Meter
from app.documents.document import Document
from app.documents.ocr import Ocr
from app.documents.readers import extract_document
from app.runtime.context_loader import _book
from app.runtime.sessions import Session
from app.runtime.worker import EngineWorker
from app.ui.library.acts import changes, search
from app.ui.library.page_viewer import Wanted, preview
from app.ui.library.view import MOST_HITS, STEP, hits, incoming
from app.ui.reading.book_view import book_card
from app.ui.reading.checklist_view import checklist
from core.errors import InvalidSetting
from core.generation.text import ChatText
from core.models.hub import catalog
from core.models.loader import load_tokenizer
from tests.app.fakes import FakeEngine, document_of, library_of, write_book


def a_document(text: str, title: str = "The Pilot", pages: int = 1) -> Document:
    bounds = pairwise(number * len(text) // pages for number in range(pages + 1))
    return document_of(*(text[start:end] for start, end in bounds), title=title, name="pilot.txt")


def a_session(*documents: Document) -> Session:
    session = Session("x")
    for document in documents:
        session.uploads.add(document)
    return session


# -------------------- clicks


def test_a_click_means_a_change_of_the_shelf() -> None:
    library = library_of(*(a_document("A page of some words. " * number, pages=number) for number in (3, 4, 5)))
    one, two, three = keys = [book.key for book in library.books]

    def after(verb: str, key: str, detail: str = "") -> list[str] | None:
        change = changes(library, verb, key, detail)
        return [book.key for book in change(library).books] if change else None

    for click, found in {
        ("up", three): [one, three, two],
        ("down", one): [two, one, three],
        ("up", two): [two, one, three],
        ("up", one): None,  # it is there already
        ("down", three): None,
        ("remove", two): [one, three],
        ("remove", "gone"): None,
        ("start-over", ""): [],
        ("choose", two, "2-3"): keys,
        ("parts", "_", f"{two}=#2-#3"): [two],
        ("parts", "_", ""): None,
        ("parts", "_", "gone=all"): None,
        ("parts", "_", "nonsense"): None,
    }.items():
        assert after(*click) == found, click
    for click in (("choose", two, "2-3"), ("parts", "_", f"{two}=#2-#3")):
        change = changes(library, *click)
        assert change and change(library).book(two).choice == Pages(2, 3)  # type: ignore[union-attr]
    assert change and change(Library()).books == (), "the library was emptied meanwhile"
    for wrong in (("parts", "_", f"{one}=all;{two}=c1"), ("choose", two, "chapter 1")):
        with pytest.raises(InvalidSetting, match="has no part"):
            changes(library, *wrong)


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
    assert {one.stage for one in session.uploads.pending} <= {"failed", "extracted"} and not session.is_reading
    assert all("other.txt was not opened" in html for html in (book_card(session), incoming(session)))


@pytest.mark.parametrize(
    ("titles", "shown"),
    [
        (["Preface", "1. Overview", "2. Setup"], ["Preface", "1. Overview", "2. Setup"]),
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
    assert "data-whole" not in checklist(session), "all ticks are not all of it: that never fits"
    list(worker.open_books(session.id, [write_book(tmp_path)]))
    assert checklist(session).count("data-whole") == 1


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
        assert two.text[start:].lstrip().startswith(text.decode([token]).strip())


# -------------------- Find


def searched(session: Session, words: str) -> str:
    """The hits of `NUMBER:OPTIONS:WORDS`."""
    search(cast(Any, None), session, words, {})
    return hits(session)


def acts(html: str) -> list[str]:
    return re.findall('data-act="([^"]*)"', html)


def test_hits_name_their_place_and_open_it() -> None:
    session = a_session(a_document("A gull. " * 3 + "A GULL. "), a_document("no bird", "Second"))
    html, book = searched(session, "100::gull"), session.uploads.library.books[0]
    assert acts(html) == [f"preview:{book.key}:1:{start}-{start + 4}" for start in (2, 10, 18, 26)]
    assert "4 hits in 1 document<" in html and "The Pilot <small>4</small>" in html and "Second" not in html
    session.uploads.library = Library()
    assert "No document is open" in hits(session), "they are those of what is open now"
    session = a_session(a_document("A gull. " * 3 + "A GULL. "))
    assert "page 1, line 1<" in html and searched(session, "100:exact:GULL").count("<mark>") == 1
    assert searched(session, "100:exact,whole:gul") != "" and "<mark>" not in searched(session, "9:whole:gul")


def test_many_hits_come_in_steps_and_those_outside_of_the_choice_say_so() -> None:
    session = a_session(a_document("gull " * 5000))
    html = searched(session, f"{STEP}::gull")
    assert html.count('class="hit"') == STEP and "5,000 hits, the first 100 below" in html
    assert acts(html)[-1] == f"find:{2 * STEP}::gull", "whatever stands in the field by now"
    most = searched(session, f"{'9' * 5000}::gull")
    assert most.count('class="hit"') == MOST_HITS and "More words narrow" in most and "find:" not in most
    session = a_session(a_document("gull, " * 10, pages=2))
    session.uploads.library = session.uploads.library.choose(0, Pages(2, 2))
    html = searched(session, "100::gull")
    assert html.count("not in the context") == 5 and html.count('class="hit"') == 10


def test_what_is_no_search_shows_nothing() -> None:
    session = a_session(a_document("gull: 3"))
    for words in ("100::", "100:: \n", "100:", "", "find", "x::gull", "-1::gull"):
        with contextlib.suppress(ValueError):  # the page says that it sent something unknown
            assert searched(session, words) == "", words
    assert "Nothing found in the open document." in searched(session, "100::teapot")
    assert "No document is open" in searched(Session("y"), "100::gull")
    assert "<mark>gull: 3</mark>" in searched(session, "100::gull: 3"), "colons belong to the words"


def test_texts_that_wait_for_a_model_are_found() -> None:
    session, document = Session("x"), a_document("A gull.")
    uploads = session.uploads
    (upload, waiting) = uploads.expect(["pilot.txt", "b.txt"])
    assert "No document" in searched(session, "100::gull")
    upload.document, upload.stage = document, "extracted"
    (act,) = acts(searched(session, "100::gull"))
    assert ">gull</mark>" in preview(session, Wanted(act.split(":")[1], 1, (2, 6)))
    uploads.add(document)  # it is in both for a moment
    waiting.document, waiting.stage = replace(document, text="A gull!"), "failed"
    assert uploads.open_books == uploads.library.books
    uploads.leave(upload)
    assert acts(searched(session, "100::gull")) == [act], "the same place as before"
