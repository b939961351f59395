"""Find on the page: hits as HTML, without any model, while one is loading, and while a book is read."""

import contextlib
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

from app.context.context_documents import Library, Pages
from app.documents.document import Document
from app.runtime.sessions import Session
from app.ui.library.acts import search
from app.ui.library.page_viewer import Wanted, preview
from app.ui.library.view import MOST_HITS, STEP, listing
from app.ui.reading.book_view import book_card
from tests.app.fakes import document_of
from tests.app.ui.pages import EVIL


def a_document(text: str, title: str = "The Pilot", pages: int = 1) -> Document:
    bounds = pairwise(number * len(text) // pages for number in range(pages + 1))
    return document_of(*(text[start:end] for start, end in bounds), title=title, name="pilot.txt")


def a_session(*documents: Document) -> Session:
    session, library = Session("x"), Library()
    for document in documents:
        library = library.add(document)
    session.uploads.library = library
    return session


def searched(session: Session, words: str) -> str:
    """The hits of `NUMBER:OPTIONS:WORDS`."""
    search(cast(Any, None), session, words, {})
    return session.hits


def acts(html: str) -> list[str]:
    return re.findall('data-act="([^"]*)"', html)


def test_hits_name_their_place_and_open_it() -> None:
    session = a_session(a_document("A gull. " * 3 + "A GULL. "), a_document("no bird", "Second"))
    html, book = searched(session, "100::gull"), session.uploads.library.books[0]
    assert acts(html) == [f"preview:{book.key}:1:{start}-{start + 4}" for start in (2, 10, 18, 26)]
    assert "4 hits in 1 document<" in html and html.count("<mark>gull</mark>") == 3
    assert "page 1, line 1<" in html and "The Pilot <small>4</small>" in html and "Second" not in html
    assert searched(session, "100:exact:GULL").count("<mark>") == 1
    assert searched(session, "100:exact,whole:gul") != "" and "<mark>" not in searched(session, "9:whole:gul")
    shown = preview(session, Wanted(book.key, 1, (26, 30)))
    assert shown.count("<mark") == 1 and ">GULL</mark>" in shown
    for marked in ((0, 0), (30, 26), (900, 9000)):
        text = preview(session, Wanted.parse(f"{book.key}:1:{marked[0]}-{marked[1]}"))
        assert "<mark" not in text and text.count("gull") == 3, "nothing is marked, and nothing is shown twice"


def test_nothing_of_a_book_or_a_search_is_markup() -> None:
    session = a_session(a_document(f"{EVIL} gull {EVIL}", title=EVIL), a_document("gull"))
    for words in ("gull", EVIL, "onerror"):
        html = searched(session, f"100::{words}")
        assert "<img" not in html and "<mark>" in html
    assert "<img" not in searched(session, f"100::none {EVIL}")


def test_hits_outside_of_the_choice_say_so() -> None:
    session = a_session(a_document("gull, " * 10, pages=2))
    session.uploads.library = session.uploads.library.choose(0, Pages(2, 2))
    html = searched(session, "100::gull")
    assert html.count("not in the context") == 5 and html.count('class="hit"') == 10


def test_many_hits_come_in_steps() -> None:
    session = a_session(a_document("gull " * 5000))
    html = searched(session, f"{STEP}::gull")
    assert html.count('class="hit"') == STEP and "5,000 hits, the first 100 below" in html
    assert f'data-find-more="{2 * STEP}"' in html
    most = searched(session, f"{'9' * 5000}::gull")
    assert most.count('class="hit"') == MOST_HITS and "More words narrow" in most and "find-more" not in most


def test_what_is_no_search_shows_nothing() -> None:
    session = a_session(a_document("gull: 3"))
    for words in ("100::", "100:: \n", "100:"):
        assert searched(session, words) == "", words
    for words in ("", "find", "x::gull", "-1::gull"):
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
    key = act.split(":")[1]
    assert ">gull</mark>" in preview(session, Wanted(key, 1, (2, 6)))
    upload.stage = "counting"
    uploads.add(document)  # it is in both for a moment
    assert len(uploads.open_books) == 1 and uploads.open_book(key) == uploads.library.books[0]
    uploads.leave(upload)
    assert acts(searched(session, "100::gull")) == [act], "the same place as before"
    waiting.document, waiting.stage = replace(document, text="A gull!"), "failed"
    assert len(uploads.open_books) == 1


def test_what_a_file_says_of_itself_is_escaped_and_its_text_has_language_and_direction() -> None:
    document = replace(
        a_document("שלום", title=EVIL),
        authors=(EVIL, "B", "C"),
        language='x" onload="',
        direction="rtl",
        cover='"><b id=x>',
    )
    session = a_session(document)
    key = session.uploads.library.books[0].key
    row, card, page = listing(session), book_card(session), preview(session, Wanted(key, 1))
    for html in (row, card, page):
        assert "<img src=x" not in html and 'onload="' not in html and "<b id=x" not in html
    assert "by &lt;img" in row and "by &lt;img" in card and "and 1 more" in row
    assert 'dir="rtl"' in page and "lang=" in page
