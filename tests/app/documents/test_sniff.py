import pytest

from app.documents.sniff import describe, sniff

OFFICE_HEAD = b"PK\x03\x04" + bytes(26) + b"[Content_Types].xml" + bytes(40)


def test_a_pdf_is_known_by_its_header_even_after_some_junk() -> None:
    assert sniff(b"%PDF-1.7\n") == "pdf"
    assert sniff(b"\r\n\r\n%PDF-1.4\n") == "pdf"


@pytest.mark.parametrize(
    "entries",
    [
        b"mimetypeapplication/epub+zip",
        b"mimetype\x55\x54\x05\x00\x03extraapplication/epub+zip",
        b"mimetype" + bytes(20) + b"PK\x03\x04" + bytes(26) + b"META-INF/container.xml",
    ],
    ids=["as it should be", "extra field", "packed by hand"],
)
def test_an_epub_is_known_by_its_first_entries(entries: bytes) -> None:
    assert sniff(b"PK\x03\x04" + bytes(26) + entries) == "epub"


@pytest.mark.parametrize("name", [b"word/document.xml", b"docProps/app.xml", b"_rels/.rels"])
def test_a_word_document_is_known_by_its_first_entries(name: bytes) -> None:
    assert sniff(OFFICE_HEAD + b"PK\x03\x04" + bytes(26) + name) == "docx"
    assert sniff(b"PK\x03\x04" + bytes(26) + name) == "docx"


@pytest.mark.parametrize(
    "head",
    [
        "<!DOCTYPE html><html>",
        "\n  <html lang='en'>",
        "\ufeff<HEAD><title>A</title>",
        "<?xml version='1.0'?>\n<!-- saved -->\n<!-- twice -->\n<!doctype HTML public>",
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_web_page_is_known_by_its_first_tag(head: str, encoding: str) -> None:
    assert sniff(head.encode(encoding)) == "html"


def test_a_file_of_an_old_office_program_is_known_by_its_mark() -> None:
    assert sniff(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500)) == "old office"


def test_a_text_about_pdf_is_still_text() -> None:
    assert sniff(b"A file begins with the percent sign and PDF, then a number.") == "plain"


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (OFFICE_HEAD + b"PK\x03\x04" + bytes(26) + b"xl/workbook.xml", "an Excel workbook"),
        (OFFICE_HEAD + b"PK\x03\x04" + bytes(26) + b"ppt/slides/", "a PowerPoint presentation"),
        (b"PK\x03\x04" + bytes(26) + b"mimetypeapplication/vnd.oasis.opendocument.text", "an OpenDocument file"),
        (b"PK\x03\x04" + bytes(26) + b"notes.csv", "a ZIP archive"),
        (b"{\\rtf1\\ansi", "an RTF document"),
        (b"\x89PNG\r\n\x1a\n", "an image"),
        (b"\x7fELF\x02\x01", "a program"),
    ],
)
def test_other_formats_are_named(head: bytes, what: str) -> None:
    assert describe(head) == what
    assert sniff(head) is None


@pytest.mark.parametrize(
    "text", ["BM is a brand of cars.", "MZ was the motorcycle he rode.", "<p>Not a page</p>", "Rare"]
)
def test_ordinary_words_are_not_taken_for_signatures(text: str) -> None:
    assert sniff(text.encode()) == "plain"
