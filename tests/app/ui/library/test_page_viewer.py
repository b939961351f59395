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
from tests.app.documents.conftest import MakePdf
from tests.app.fakes import document_of

FIRST = ["It began at noon, as it had to.", "The carved teapot was lost", "in the great spring tide of May."]
SECOND = ["Nobody in the harbour <b>ever</b> asked", "for it again, not even once."]


def opened(document: Document, file: Path | None = None) -> tuple[Session, str]:
    """A session with a document, and its key."""
    session = Session("x")
    session.uploads.add(document, file)
    return session, session.uploads.library.books[0].key


@pytest.fixture
def pdf(make_pdf: MakePdf) -> Path:
    return make_pdf(FIRST, SECOND)


def rectangles(html: str) -> list[str]:
    return re.findall(r'<i class="quoted" style="([^"]*)"', html)


def test_a_page_of_a_pdf_is_its_image_with_the_mark_and_its_text_with_the_mark(pdf: Path) -> None:
    document = read_document(pdf)
    session, key = opened(document, pdf)

    def marked(page: int, first: str, last: str) -> str:
        return preview(session, Wanted(key, page, (document.text.index(first), document.text.index(last) + len(last))))

    html = marked(1, "carved teapot", "spring tide")
    assert re.search(r'src="data:image/webp;base64,[A-Za-z0-9+/=]{500,}"', html)
    assert len(rectangles(html)) == 2 and "not certain" not in html
    assert '<mark class="quoted">carved teapot was lost\nin the great spring tide</mark>' in html
    assert re.search(f'data-act="preview:{key}:2:[0-9]+-[0-9]+"', html), "the next page keeps the mark"
    both = [marked(number, "great spring", "</b> ") for number in (1, 2)]
    assert [len(rectangles(html)) for html in both] == [1, 1]
    assert "&lt;b&gt;ever&lt;/b&gt; </mark>" in both[1] and "<b>" not in both[1]
    elsewhere = marked(1, "asked", "once.")
    assert not rectangles(elsewhere) and "<mark" not in elsewhere and NOT_PLACED not in elsewhere


def test_what_is_missing_is_said_and_the_text_is_there_with_its_mark(pdf: Path, tmp_path: Path) -> None:
    document, damaged = read_document(pdf), tmp_path / "damaged.pdf"
    damaged.write_bytes(b"%PDF-1.7 nothing")
    for file, told in ((tmp_path / "gone.pdf", "no longer kept"), (damaged, "damaged there. Its text is shown.")):
        session, key = opened(document, file)
        html = preview(session, Wanted(key, 1, (0, 8)))
        assert told in html and "<img" not in html and '<mark class="quoted">It began</mark>' in html
    first, second, rest = document.text.replace("carved", "curved").partition("Nobody")
    session, key = opened(document_of(first, second + rest, format="pdf"), pdf)
    html = preview(session, Wanted(key, 1, (first.index("curved"), first.index("teapot"))))
    assert "<img" in html and not rectangles(html) and NOT_PLACED in html and '<mark class="quoted">curved' in html
    session, key = opened(document_of("One. ", "Two <b>teapots</b>. ", has_own_pages=False))
    html = preview(session, Wanted(key, 2, (9, 17)))
    assert "<img" not in html and "data-zoom" not in html and "&lt;b&gt;" in html and "<mark" in html
    for number, shown in ((99, 2), (-4, 1)):
        assert f'value="{shown}"' in preview(session, Wanted(key, number)), "the last and the first"


def test_a_long_page_is_cut_around_its_mark_and_says_so() -> None:
    session, key = opened(document_of("x" * 80_000 + "the place" + "y" * 80_000))
    html = preview(session, Wanted(key, 1, (80_000, 80_009)))
    assert '<mark class="quoted">the place</mark>' in html and len(html) < PREVIEW_CHARS + 4_000
    assert "20,000 characters are shown" in html


def test_the_open_book_is_shown_even_where_the_library_has_changed() -> None:
    document = document_of("A page of words.")
    session, key = opened(document)
    library, session.uploads.library = session.uploads.library, Library()
    assert preview(session, Wanted(key, 1)) == NO_PAGE
    session.book = Book(document, 9, 9, library=library)
    assert "A page of words." in preview(session, Wanted(key, 1))


@pytest.mark.parametrize(
    ("detail", "wanted"),
    [
        ("k:7", ("k", 7, None)),
        ("k:7:3-9", ("k", 7, (3, 9))),
        ("k:7:9-3", ("k", 7, None)),
        ("k:7:3-3", ("k", 7, None)),
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

    for draw, shown in ((slow, {"read": "the second"}), (lambda: "the third", {"read": "the third"}), (closed, {})):
        newest(session, "read", draw)
        assert session.leaves == shown
