import io
import zipfile
from pathlib import Path

import pytest

from app.documents.bundle import read_documents
from app.documents.errors import DamagedDocument, UnsupportedFormat
from app.documents.sniff import Other, names_in, sniff

pytestmark = pytest.mark.usefixtures("in_this_process")

OPEN_HEAD = b"PK\x03\x04" + bytes(26) + b"mimetypeapplication/vnd.oasis.opendocument."
EPUB_HEAD = b"PK\x03\x04" + bytes(26) + b"mimetypeapplication/epub+zip"


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
        (OPEN_HEAD + b"spreadsheet", "an OpenDocument spreadsheet"),
        (OPEN_HEAD + b"presentation", "an OpenDocument presentation"),
        (OPEN_HEAD + b"graphics", "an OpenDocument drawing"),
        (b"\x89PNG\r\n\x1a\n", "an image"),
        (b"\x7fELF\x02\x01", "a program"),
    ],
)
def test_other_formats_are_named(head: bytes, what: str) -> None:
    kind = sniff(head)
    assert isinstance(kind, Other) and kind.what == what


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
        (EPUB_HEAD, "epub"),
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
            archive.writestr(name, EPUB_HEAD + b"META-INF/container.xml")
    assert names_in(file) == names
    assert sniff(file.getvalue()[:4096], names_in(file)) == kind
    assert names_in(io.BytesIO(b"junk before it" + file.getvalue())) == names
    assert names_in(io.BytesIO(long_record(file.getvalue()))) == names
    assert names_in(io.BytesIO(file.getvalue()[:-30])) is None


def long_record(archive: bytes) -> bytes:
    """An archive whose list is described by a record for more than 4 GiB (ZIP64)."""
    end = archive.rindex(b"PK\x05\x06")
    size = archive[end + 12 : end + 16] + bytes(4)
    record = b"PK\x06\x06" + (44).to_bytes(8, "little") + bytes(28) + size + bytes(8)
    locator = b"PK\x06\x07" + bytes(16)
    return archive[:end] + record + locator + archive[end : end + 12] + b"\xff" * 8 + bytes(2)


@pytest.mark.parametrize("name", ["a.docx", "a.zip", "a.epub"])
def test_an_archive_without_its_list_is_cut_off_whatever_it_is(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("word/document.xml", "<document/>")
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-40])
    with pytest.raises(DamagedDocument, match="is cut off or damaged: the list of its files is missing"):
        read_documents(tmp_path / name)


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (["[Content_Types].xml", "visio/document.xml"], "a Visio drawing"),
        (["[Content_Types].xml", "xl/workbook.xml"], "an Excel workbook"),
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
