"""Every format gives the text back as it went in, and equal books give equal bytes."""

from pathlib import Path

import pytest

from app.documents.readers import read_document
from assets.tools.books.formats import FORMATS, as_read
from assets.tools.books.generated import Book, write_book

XHTML = "{http://www.w3.org/1999/xhtml}"


@pytest.fixture(scope="module")
def book() -> Book:
    return write_book(424_242, 3_000)


def written(book: Book, suffix: str, folder: Path) -> Path:
    path = folder / f"new{suffix}"
    path.write_bytes(FORMATS[suffix](book))
    return path


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_app_reads_back_what_was_written(book: Book, suffix: str, tmp_path: Path) -> None:
    document = read_document(written(book, suffix, tmp_path))
    assert document.text == as_read(book, suffix)
    assert document.warnings == ()
    assert document.title == ("new" if suffix == ".txt" else book.title)
