"""The entry for all formats: detects the format, chooses the reader, converts errors of the file system."""

import mmap
import os
import stat
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.documents.document import Document, Extracting
from app.documents.errors import (
    SUPPORTED,
    AccessDenied,
    DocumentError,
    DocumentNotFound,
    EmptyDocument,
    PasswordProtected,
    UnsupportedFormat,
)
from app.documents.language import direction_of, language_of
from app.documents.sniff import (
    HEAD_BYTES,
    IWORK,
    OPEN_SLIDES,
    OPEN_TABLE,
    WORKBOOK,
    XPS,
    Kind,
    describe,
    names_in,
    sniff,
)

if TYPE_CHECKING:
    from app.documents.ocr import Ocr

TABLE_SUFFIXES = {".csv", ".tsv", ".tab"}
AS_CSV = "Save the sheets you need as CSV and use that."
ENCRYPTED = "EncryptedPackage"  # Word stores documents with a password in compound files, too (MS-OFFCRYPTO, 2.1)
OLD_FORMATS = {  # of compound files, by the name of the stream with the content
    "WordDocument": ("a Word document of the old kind (.doc)", "Open it in Word or LibreOffice, save it as .docx."),
    "Workbook": (WORKBOOK, AS_CSV),
    "PowerPoint Document": (
        "a PowerPoint presentation of the old kind (.ppt)",
        "Save it as .pptx or PDF and use that.",
    ),
}
HINTS = {
    WORKBOOK: AS_CSV,
    OPEN_TABLE: AS_CSV,
    IWORK: "Export it as PDF or Word and use that.",
    XPS: "Print or save it as PDF and use that.",
    OPEN_SLIDES: "Save it as .pptx or PDF and use that.",
}


def extract_document(
    path: str | Path, name: str | None = None, ocr: "Ocr | None" = None
) -> Generator[Extracting | Document]:
    """Read a file step by step: progress events, then exactly one Document.

    Closing the iterator stops the work at once and leaves nothing running.

    Args:
        name: what to call it; None: its file's name.
        ocr: for pages of a PDF that are only pictures; None: they have no text.
    Raises:
        DocumentError: with the problem and one action; see `app.documents.errors`.
    """
    file = Path(path)
    name = name or display_name(file)
    kind = kind_of(file, name)
    yield from map(with_language, _steps(kind, file.absolute(), name, ocr))


def _steps(kind: Kind, file: Path, name: str, ocr: "Ocr | None") -> Iterator[Extracting | Document]:
    """The reader of a kind at work; it alone is imported."""
    if kind == "zip":
        raise UnsupportedFormat(name, "a ZIP archive among other files", hint="Unpack it and use its files.")
    if kind == "plain":
        from app.documents.plain import extract_plain

        return extract_plain(file, name)
    from app.documents.parsed import extract_parsed

    return extract_parsed(kind, file, name, ocr=ocr)


def with_language(step: Extracting | Document) -> Extracting | Document:
    """A document with the language and the direction of its text; progress as it is."""
    if isinstance(step, Extracting):
        return step
    return replace(step, language=language_of(step.text, step.language), direction=direction_of(step.text))


def kind_of(file: Path, name: str) -> Kind:
    """The kind of a file by its content; of plain text the name tells tables.

    Raises:
        DocumentError: it cannot be opened, is empty or of an unsupported format.
    """
    head = read_head(file, name)
    with file.open("rb") as stream:
        names = names_in(stream) if head.startswith(b"PK") else ()
    kind = sniff(head, names)
    if kind == "old office":
        raise old_office(file, name)
    if kind is None:
        what = describe(head, names)
        assert what, "a kind that is not read has a name"
        raise UnsupportedFormat(name, what, hint=HINTS.get(what, ""))
    return "csv" if kind == "plain" and file.suffix.lower() in TABLE_SUFFIXES else kind


def old_office(file: Path, name: str) -> DocumentError:
    """The error for a file of the old Office format (a compound file), or for an encrypted one of the new."""
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content.find(ENCRYPTED.encode("utf-16-le")) >= 0:
            return PasswordProtected(name)
        for stream_name, (what, hint) in OLD_FORMATS.items():
            if content.find(stream_name.encode("utf-16-le")) >= 0:
                return UnsupportedFormat(name, what, hint=hint)
    return UnsupportedFormat(name, "a file of an old Office program")


def read_document(path: str | Path) -> Document:
    """Read a file in one call. Raises as `extract_document`."""
    *_, document = extract_document(path)
    assert isinstance(document, Document), f"the last event was {document}"
    return document


def display_name(file: Path) -> str:
    """The file's name on one line, without control characters for terminals."""
    return "".join(char if char.isprintable() else "�" for char in file.name) or str(file)


def read_head(file: Path, name: str) -> bytes:
    """The first bytes of a regular, readable file that is not empty."""
    try:
        if not stat.S_ISREG(os.stat(file).st_mode):
            what = "a folder" if file.is_dir() else "not a regular file"
            raise DocumentNotFound(f"{name} is {what}.", hint=f"Name the {SUPPORTED} file itself.")
        with file.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a NUL in the name
        raise DocumentNotFound(f"There is no file {name}.", hint="Check the name and the folder.") from error
    except OSError as error:
        raise AccessDenied(name, error.strerror or type(error).__name__) from error
    if not head:
        raise EmptyDocument(f"{name} is empty.", hint="Choose a file with text in it.")
    return head
