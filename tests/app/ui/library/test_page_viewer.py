"""A page as the browser gets it: image, text, marks, and what is said where one of them is missing."""

import re
from pathlib import Path

import pytest

from app.context.context_documents import PREVIEW_CHARS, Library
from app.context.open_book import Book
from app.documents.document import Document
from app.documents.readers import read_document
from app.runtime.sessions import Session
from app.ui.library.page_viewer import NO_PAGE, NOT_PLACED, Wanted, newest, preview
from tests.app.documents.conftest import MakePdf, make_pdf, writer  # noqa: F401
from tests.app.fakes import document_of

FIRST = ["It began at noon, as it had to.", "The carved teapot was lost", "in the great spring tide of May."]
SECOND = ["Nobody in the harbour <b>ever</b> asked", "for it again, not even once."]


def a_session(*documents: Document, file: Path | None = None) -> tuple[Session, list[str]]:
    session = Session("x")
    for document in documents:
        session.uploads.add(document, file)
    return session, [book.key for book in session.uploads.library.books]


def a_text(*pages: str) -> Document:
    return document_of(*pages, has_own_pages=False)


@pytest.fixture
def pdf(make_pdf: MakePdf) -> Path:  # noqa: F811
    return make_pdf(FIRST, SECOND)


def rectangles(html: str) -> list[str]:
    return re.findall(r'<i class="quoted" style="([^"]*)"', html)


def test_a_page_of_a_pdf_is_its_image_with_the_mark_and_its_text_with_the_mark(pdf: Path) -> None:
    document = read_document(pdf)
    session, (key,) = a_session(document, file=pdf)
    start = document.text.index("carved teapot")
    end = document.text.index("spring tide") + len("spring tide")
    html = preview(session, Wanted(key, 1, (start, end)))
    assert re.search(r'src="data:image/webp;base64,[A-Za-z0-9+/=]{500,}"', html)
    assert len(rectangles(html)) == 2 and "not certain" not in html
    assert '<mark class="quoted">carved teapot was lost\nin the great spring tide</mark>' in html
    assert f'data-act="preview:{key}:2:{start}-{end}"' in html, "the next page keeps the mark"


def test_a_mark_over_two_pages_is_on_both_and_one_elsewhere_on_neither(pdf: Path) -> None:
    document = read_document(pdf)
    session, (key,) = a_session(document, file=pdf)
    whole = (document.text.index("great spring"), document.text.index("asked"))
    marked = [preview(session, Wanted(key, number, whole)) for number in (1, 2)]
    assert [len(rectangles(html)) for html in marked] == [1, 1]
    assert "&lt;b&gt;ever&lt;/b&gt; </mark>" in marked[1] and "<b>" not in marked[1]
    first = preview(session, Wanted(key, 1, (document.text.index("asked"), len(document.text))))
    assert not rectangles(first) and "<mark" not in first and NOT_PLACED not in first


def test_where_the_words_are_not_on_the_image_for_certain_the_text_is_marked_and_it_says_so(pdf: Path) -> None:
    first, second, rest = read_document(pdf).text.replace("carved", "curved").partition("Nobody")
    session, (key,) = a_session(document_of(first, second + rest, format="pdf"), file=pdf)
    text = first + second + rest
    html = preview(session, Wanted(key, 1, (text.index("curved"), text.index("teapot"))))
    assert "<img" in html and not rectangles(html) and NOT_PLACED in html and '<mark class="quoted">curved' in html


def test_without_a_file_or_with_a_damaged_one_the_text_is_there(pdf: Path, tmp_path: Path) -> None:
    document = read_document(pdf)
    damaged = tmp_path / "damaged.pdf"
    damaged.write_bytes(b"%PDF-1.7 nothing")
    for file, told in ((tmp_path / "gone.pdf", "no longer kept"), (damaged, "damaged there. Its text is shown.")):
        session, (key,) = a_session(document, file=file)
        html = preview(session, Wanted(key, 1, (0, 8)))
        assert told in html and "<img" not in html and '<mark class="quoted">It began</mark>' in html
    session, (key,) = a_session(a_text("One. ", "Two <b>teapots</b>. "))
    html = preview(session, Wanted(key, 2, (9, 17)))
    assert "<img" not in html and "data-zoom" not in html and "&lt;b&gt;" in html and "<mark" in html


def test_a_long_page_is_cut_around_its_mark_and_says_so() -> None:
    session, (key,) = a_session(a_text("x" * 80_000 + "the place" + "y" * 80_000))
    html = preview(session, Wanted(key, 1, (80_000, 80_009)))
    assert '<mark class="quoted">the place</mark>' in html and len(html) < PREVIEW_CHARS + 4_000
    assert "20,000 characters are shown" in html


def test_the_open_book_is_shown_even_where_the_library_has_changed() -> None:
    document = a_text("A page of words.")
    session, (key,) = a_session(document)
    library = session.uploads.library
    session.uploads.library = Library()
    assert preview(session, Wanted(key, 1)) == NO_PAGE
    session.book = Book(document, 9, 9, 99, library=library)
    assert "A page of words." in preview(session, Wanted(key, 1))


@pytest.mark.parametrize(
    ("detail", "wanted"),
    [
        ("k:7", ("k", 7, None)),
        ("k:7:3-9", ("k", 7, (3, 9))),
        ("k:7:9-3", ("k", 7, None)),
        ("", ("", 1, None)),
        ("k:-4:9:x", ("k", 1, None)),
        ("k:\u0667:\u0663-\u0669", ("k", 1, None)),
        (f"k:{'9' * 5000}:{'9' * 5000}-1", ("k", 1, None)),
        ("k:7:3-9:more", ("k", 7, None)),
    ],
)
def test_what_a_browser_sends_is_read_with_care(detail: str, wanted: tuple[object, ...]) -> None:
    assert Wanted.parse(detail) == wanted
    assert Wanted.parse(Wanted.parse(detail).detail) == wanted


def test_of_two_pages_that_are_drawn_at_once_the_one_asked_for_last_is_shown() -> None:
    session = Session("x")

    def slow() -> str:
        newest(session, "read", lambda: "the second")
        return "the first"

    def closed() -> str:
        session.close("read")
        return "the fourth"

    newest(session, "read", slow)
    assert session.leaves == {"read": "the second"}
    newest(session, "read", lambda: "the third")
    assert session.leaves == {"read": "the third"}
    newest(session, "read", closed)
    assert session.leaves == {}, "closed while it was drawn"
