import io
import zipfile
from pathlib import Path

import pytest

from app.documents import read_documents
from app.documents.errors import UnsupportedFormat
from app.documents.sniff import describe, names_in, sniff

pytestmark = pytest.mark.usefixtures("in_this_process")

OPEN_HEAD = b"PK\x03\x04" + bytes(26) + b"mimetypeapplication/vnd.oasis.opendocument."
OFFICE_HEAD = b"PK\x03\x04" + bytes(26) + b"[Content_Types].xml" + bytes(40)


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


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (OFFICE_HEAD + b"PK\x03\x04" + bytes(26) + b"xl/workbook.xml", "an Excel workbook"),
        (OPEN_HEAD + b"spreadsheet", "an OpenDocument spreadsheet"),
        (OPEN_HEAD + b"presentation", "an OpenDocument presentation"),
        (OPEN_HEAD + b"graphics", "an OpenDocument drawing"),
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


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (OPEN_HEAD + b"text", "odt"),
        (OPEN_HEAD + b"text-template", "odt"),
        (OFFICE_HEAD + b"PK\x03\x04" + bytes(26) + b"ppt/slides/", "pptx"),
        (b"{\\rtf1\\ansi", "rtf"),
        (b"\n{\\rtf1", "rtf"),
        (b'<?xml version="1.0" encoding="windows-1251"?>\n<!-- a --><FictionBook xmlns="x">', "fb2"),
        (b"<FictionBook>", "fb2"),
        ("\ufeff<fb:FictionBook >".encode("utf-16"), "fb2"),
        (b"PK\x03\x04" + bytes(26) + b"notes.csv", "zip"),
        (b"PK\x05\x06" + bytes(18), "zip"),
        (b"<FictionBooks>", "plain"),
        (b"rtf1 {\\rtf1", "plain"),
    ],
)
def test_formats_are_known_by_their_first_bytes(head: bytes, kind: str) -> None:
    assert sniff(head) == kind


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["notes/a.txt", "[Content_Types].xml", "word/document.xml"], "docx"),
        (["docProps/app.xml", "[Content_Types].xml", "ppt/presentation.xml"], "pptx"),
        (["a.xhtml", "META-INF/container.xml"], "epub"),
        (["word/a.txt", "ppt/b.txt"], "zip"),
        (["notes/[Content_Types].xml", "x/a.xml"], "zip"),
    ],
)
def test_the_list_of_an_archive_decides_whatever_comes_first(names: list[str], kind: str) -> None:
    file = io.BytesIO(b"")
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, OFFICE_HEAD + b"META-INF/container.xml mimetypeapplication/epub+zip")
    assert names_in(file) == names
    assert sniff(file.getvalue()[:4096], names_in(file)) == kind
    assert names_in(io.BytesIO(b"junk before it" + file.getvalue())) == names


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (["[Content_Types].xml", "visio/document.xml"], "a Visio drawing"),
        (["Index/Document.iwa", "preview.jpg"], "a Pages, Keynote or Numbers file"),
        (["META-INF/MANIFEST.MF", "a/B.class"], "a package of another program"),
        (["Payload/Reader.app/Info.plist"], "a package of another program"),
        (["reader/a.py", "reader-1.0.dist-info/WHEEL"], "a package of another program"),
        (["AndroidManifest.xml", "classes.dex"], "a package of another program"),
        (["[Content_Types].xml", "FixedDocumentSequence.fdseq", "Documents/1/Pages/1.fpage"], "an XPS document"),
        (["[Content_Types].xml", "x/a.xml"], "a package of another program"),
    ],
)
def test_other_archives_are_refused_by_name(names: list[str], what: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "file", "w") as archive:
        for name in names:
            archive.writestr(name, "<?xml version='1.0'?><a>words</a>")
    with pytest.raises(UnsupportedFormat, match=f"file is {what}, which is not supported"):
        read_documents(tmp_path / "file")
