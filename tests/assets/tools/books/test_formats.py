"""Every format gives the text back as it went in, and equal books give equal bytes."""

import io
import time
import zipfile
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from app.documents import read_document
from assets.tools.books.epub import to_epub
from assets.tools.books.formats import FORMATS, as_read
from assets.tools.books.generated import Book, Chapter, write_book
from assets.tools.commands import BOOK_FORMATS

XHTML = "{http://www.w3.org/1999/xhtml}"
OPF = "{http://www.idpf.org/2007/opf}"
DC = "{http://purl.org/dc/elements/1.1/}"


@pytest.fixture(scope="module")
def book() -> Book:
    return write_book(424_242, 3_000)


def written(book: Book, suffix: str, folder: Path) -> Path:
    path = folder / f"new{suffix}"
    path.write_bytes(FORMATS[suffix](book))
    return path


def test_the_command_line_knows_the_formats() -> None:
    assert tuple(FORMATS) == BOOK_FORMATS


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_app_reads_back_what_was_written(book: Book, suffix: str, tmp_path: Path) -> None:
    document = read_document(written(book, suffix, tmp_path))
    assert document.text == as_read(book, suffix)
    assert document.warnings == ()
    assert document.title == ("new" if suffix == ".txt" else book.title)


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_chapter_is_read_as_its_recitation_has_it(book: Book, suffix: str, tmp_path: Path) -> None:
    text = read_document(written(book, suffix, tmp_path)).text
    places = [text.find(chapter.text) for chapter in book.chapters]
    assert places[0] > 0 and all(before < after for before, after in pairwise(places))


@pytest.mark.parametrize("suffix", FORMATS)
def test_equal_books_give_equal_bytes(book: Book, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = FORMATS[suffix](book)
    monkeypatch.setattr(time, "time", lambda: 2_000_000_000.0)
    assert FORMATS[suffix](write_book(424_242, 3_000)) == first
    assert FORMATS[suffix](write_book(424_243, 3_000)) != first


def test_markdown_has_the_title_and_the_chapters_as_headings(book: Book) -> None:
    lines = FORMATS[".md"](book).decode().splitlines()
    headings = [line for line in lines if line.startswith("#")]
    chapters = [f"## Chapter {chapter.number}: {chapter.title}" for chapter in book.chapters]
    assert headings == [f"# {book.title}", *chapters]


def opened(book: Book) -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(to_epub(book)))


def test_an_epub_begins_with_its_type_uncompressed(book: Book) -> None:
    assert to_epub(book)[30:58] == b"mimetypeapplication/epub+zip"
    assert opened(book).infolist()[0].compress_type == zipfile.ZIP_STORED


def test_an_epub_lists_each_of_its_files_once_and_reads_them_in_order(book: Book) -> None:
    archive = opened(book)
    root = ElementTree.fromstring(archive.read("EPUB/package.opf"))
    items = {item.get("id"): item.get("href") for item in root.iter(f"{OPF}item")}
    files = {name.removeprefix("EPUB/") for name in archive.namelist() if name.startswith("EPUB/")}
    assert set(items.values()) == files - {"package.opf"}
    order = [items[reference.get("idref")] for reference in root.iter(f"{OPF}itemref")]
    chapters = [f"chapter-{chapter.number:03}.xhtml" for chapter in book.chapters]
    assert order == ["title.xhtml", *chapters]
    navigation = ElementTree.fromstring(archive.read("EPUB/nav.xhtml"))
    assert [link.get("href") for link in navigation.iter(f"{XHTML}a")] == chapters


def test_an_epub_has_the_metadata_it_must_have(book: Book) -> None:
    root = ElementTree.fromstring(opened(book).read("EPUB/package.opf"))
    identifier = root.find(f".//{DC}identifier")
    assert identifier is not None and identifier.get("id") == root.get("unique-identifier")
    assert str(identifier.text).startswith("urn:uuid:")
    assert root.findtext(f".//{DC}title") == book.title and root.findtext(f".//{DC}language") == "en"
    assert [meta.text for meta in root.iter(f"{OPF}meta")] == ["1980-01-01T00:00:00Z"]
    assert [item.get("id") for item in root.iter(f"{OPF}item") if item.get("properties") == "nav"] == ["nav"]


def test_every_letter_survives_an_epub(tmp_path: Path) -> None:
    text = 'Chapter 1: Tea & <Salt>\n\n"Fish & chips," said Ann; 1 < 2 > 0 && x.'
    odd = Book("Tom & <Jerry>", f"Tom & <Jerry>\n\n{text}", (Chapter(1, "Tea & <Salt>", text),), (), ())
    document = read_document(written(odd, ".epub", tmp_path))
    assert (document.text, document.title) == (odd.text, odd.title)
