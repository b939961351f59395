"""The format of a file by its content, what is named and refused, and files that cannot be opened at all."""

import io
import os
import sys
import zipfile
from pathlib import Path

import pytest

from app.document_formats import ONE_OF
from app.documents.bundle import read_documents
from app.documents.errors import (
    AccessDenied,
    DamagedDocument,
    DocumentError,
    DocumentNotFound,
    UnsupportedFormat,
)
from app.documents.readers import display_name, read_document
from app.documents.sniff import MOST_LISTED, names_in, sniff

pytestmark = pytest.mark.usefixtures("in_this_process")

OPEN_HEAD = b"PK\x03\x04" + bytes(26) + b"mimetypeapplication/vnd.oasis.opendocument."
EPUB_HEAD = b"PK\x03\x04" + bytes(26) + b"mimetypeapplication/epub+zip"
PAGES = (
    "<!DOCTYPE html><html>", "\n  <html lang='en'>", "\ufeff<HEAD><title>A</title>",
    "<?xml version='1.0'?>\n<!-- saved -->\n<!-- twice -->\n<!doctype HTML public>",
)  # fmt: skip


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        *((page.encode(encoding), "html") for page in PAGES for encoding in ("utf-8", "utf-16")),
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
        *((words, "text") for words in (
            b"<FictionBooks>", b"rtf1 {\\rtf1", b"BM is a brand of cars.", b"MZ was the motorcycle he rode. " * 3,
            b"<p>Not a page</p>", b"Rar!e", b"BZh is a name", b"GIF8 is none", b"A PDF begins with %PDF- and more.",
            b"%%PDF-1.4 is a mark in C.", b"The first line: '%PDF-1.7'")),
        (b"HTTP/1.1 200 OK\r\n\r\n%PDF-1.4\n", "pdf"),
        (b"  %PDF-1.4\n", "pdf"),
        (b"<html><pre>\n%PDF-1.4\n1 0 obj", "html"),
        (OPEN_HEAD + b"graphics", "an OpenDocument drawing"),
        (b"\x89PNG\r\n\x1a\n", "an image"),
        (b"\x7fELF\x02\x01", "a program"),
        (bytes(60) + b"BOOKMOBI", "a Kindle book"),
        (b"From: <Saved by Blink>\r\nSubject: A page\r\n", "a web archive (MHTML)"),
        (b"MIME-Version: 1.0\nContent-Type: multipart/related;", "a web archive (MHTML)"),
        (b'From: "Saved by Windows"\r\nSubject: A page\r\n', "a web archive (MHTML)"),
        *((start + b"Received: from a\r\n\tby b\r\n" + part + b"\r\n\r\n", "an e-mail with packed parts")
          for start in (b"", b"From a@b Sat Nov 28\n") for part in (
              b"Content-Type: Multipart/alternative; boundary=x", b"Content-transfer-encoding: base64")),
        (b"Subject: words\nContent-Transfer-Encoding: 8bit\n\nContent-Type: multipart/mixed", "text"),
    ],
)  # fmt: skip
def test_formats_are_known_by_their_first_bytes(head: bytes, kind: str) -> None:
    found = sniff(head)
    assert (found if isinstance(found, str) else found.what) == kind


@pytest.mark.parametrize("name", ["a.html", "a.HTM", "a.xhtml"])
def test_a_web_page_that_begins_in_an_odd_way_is_known_by_its_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("<title>Log</title><meta charset=utf-8><p>A gull.")
    document = read_document(tmp_path / name)
    assert (document.format, document.title, document.text) == ("html", "Log", "A gull.")


def packed(*names: str, content: str | bytes = "<?xml version='1.0'?><a>words</a>") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            archive.writestr(name, content)
    return out.getvalue()


OFFICE, PACKAGE = "[Content_Types].xml", "a package of another program"


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("notes/a.txt", OFFICE, "word/document.xml"), "docx"),
        (("docProps/app.xml", OFFICE, "ppt/presentation.xml"), "pptx"),
        (("a.xhtml", "META-INF/container.xml"), "epub"),
        (("word/a.txt", "ppt/b.txt"), "zip"),
        (("notes/[Content_Types].xml", "x/a.xml"), "zip"),
    ],
)
def test_the_list_of_an_archive_decides_whatever_comes_first(names: tuple[str, ...], kind: str) -> None:
    content = packed(*names, content=EPUB_HEAD + b"META-INF/container.xml")
    for whole in (content, b"junk before it" + content, bytes(MOST_LISTED) + content):
        assert names_in(io.BytesIO(whole)) == list(names)
    assert sniff(content[:4096], names) == kind and names_in(io.BytesIO(content[:-30])) is None


@pytest.mark.parametrize(
    ("names", "what"),
    [
        ((OFFICE, "visio/document.xml"), "a Visio drawing"),
        (("Index/Document.iwa", "preview.jpg"), "a Pages, Keynote or Numbers file"),
        (("META-INF/MANIFEST.MF", "a/B.class"), PACKAGE),
        (("Payload/Reader.app/Info.plist",), PACKAGE),
        (("reader/a.py", "reader-1.0.dist-info/WHEEL"), PACKAGE),
        (("AndroidManifest.xml", "classes.dex"), PACKAGE),
        ((OFFICE, "FixedDocumentSequence.fdseq", "Documents/1/Pages/1.fpage"), "an XPS document"),
        ((OFFICE, "x/a.xml"), PACKAGE),
    ],
)
def test_other_archives_are_refused_by_name(names: tuple[str, ...], what: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(packed(*names))
    with pytest.raises(UnsupportedFormat, match=f"file is {what}, which is not supported") as caught:
        read_documents(tmp_path / "file")
    assert what != PACKAGE or (caught.value.hint == f"Use a {ONE_OF} file." and "Word" in ONE_OF)


@pytest.mark.parametrize("name", ["a.docx", "a.zip", "a.epub"])
def test_an_archive_without_its_list_is_cut_off_whatever_it_is(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(packed(OFFICE, "word/document.xml")[:-40])
    with pytest.raises(DamagedDocument, match="is cut off or damaged: the list of its files is missing"):
        read_documents(tmp_path / name)


# -------------------- files that cannot be opened


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DocumentNotFound, match="not a regular file"):
        read_document(tmp_path / "pipe")


def test_a_file_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "secret.txt").write_text("words")
    monkeypatch.setattr(Path, "open", refuse)  # and not chmod: the tests may run as root
    with pytest.raises(AccessDenied, match=r"secret\.txt cannot be opened \(Permission denied\)"):
        read_document(tmp_path / "secret.txt")


def test_a_name_is_shown_on_one_line(tmp_path: Path) -> None:
    assert display_name(Path("a\nb\x1b.pdf")) == "a�b�.pdf" and display_name(Path("Büch 1.pdf")) == "Büch 1.pdf"
    (tmp_path / "odd\nname\x1b[31m.txt").touch()
    with pytest.raises(DocumentError) as caught:
        read_document(tmp_path / "odd\nname\x1b[31m.txt")
    assert str(caught.value).isprintable() and caught.value.problem.endswith(".") and caught.value.hint.endswith(".")
