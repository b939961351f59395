"""The format of a file by its content; names and extensions are only hints.

How to add a format: assets/docs/architecture.md.
"""

import mmap
import os
import re
import stat
import struct
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from app.documents.errors import (
    SUPPORTED,
    AccessDenied,
    DamagedDocument,
    DocumentError,
    DocumentNotFound,
    EmptyDocument,
    PasswordProtected,
    UnsupportedFormat,
)

Kind = Literal["pdf", "epub", "docx", "odt", "rtf", "pptx", "fb2", "html", "zip", "csv", "plain"]


class Other(NamedTuple):
    """A format that is not read."""

    what: str  # with an article
    hint: str = ""


TABLE_SUFFIXES = {".csv", ".tsv", ".tab"}
HEAD_BYTES = 4096  # enough for every signature below
PDF_WITHIN = 1024  # bytes of junk before %PDF- that viewers accept (ISO 32000-1, annex H.3.4.1)
AS_CSV, AS_PPTX = "Save the sheets you need as CSV and use that.", "Save it as .pptx or PDF and use that."
WORKBOOK = Other("an Excel workbook", AS_CSV)
XPS = Other("an XPS document", "Print or save it as PDF and use that.")

ARCHIVE = re.compile(rb"PK(?:\x03\x04|\x05\x06)")
LIST_END, LIST_END_64, LIST_ENTRY = b"PK\x05\x06", b"PK\x06\x06", b"PK\x01\x02"
MOST_LISTED = 1 << 20  # bytes of an archive's list that are looked at
# By the first entry of an archive, uncompressed (OpenDocument 1.3, part 2, 3.3; OCF 3.3, 4.3); the first match wins.
MIMETYPES: tuple[tuple[bytes, Kind | Other], ...] = (
    (rb"vnd\.oasis\.opendocument\.text", "odt"),  # also its templates and master documents
    (rb"vnd\.oasis\.opendocument\.sp", Other("an OpenDocument spreadsheet", AS_CSV)),
    (rb"vnd\.oasis\.opendocument\.p", Other("an OpenDocument presentation", AS_PPTX)),
    (rb"vnd\.oasis", Other("an OpenDocument drawing")),
    (rb"epub\+zip", "epub"),
)
# By a name in an archive's list; the first match wins.
OFFICE_LIST = "[Content_Types].xml"  # in every Office archive
OFFICE: tuple[tuple[str, Kind | Other], ...] = (
    (r"word/.*", "docx"),
    (r"ppt/.*", "pptx"),
    (r"xl/.*", WORKBOOK),
    (r"visio/.*", Other("a Visio drawing")),
    (r"[^/]+\.fdseq", XPS),
    (r".*", Other("a package of another program")),
)
PACKED: tuple[tuple[str, Kind | Other], ...] = (
    (r"META-INF/container\.xml", "epub"),
    (r"content\.xml", "odt"),
    (r"Index/[^/]+\.iwa", Other("a Pages, Keynote or Numbers file", "Export it as PDF or Word and use that.")),
    (r"[^/]+\.fdseq", XPS),
    (
        r"AndroidManifest\.xml|META-INF/MANIFEST\.MF|Payload/[^/]+\.app/Info\.plist|[^/]+\.dist-info/WHEEL",
        Other("a package of another program"),
    ),
)
FICTION = re.compile(r"<(?:\w{1,20}:)?FictionBook[\s>]")
WEB_PAGE = re.compile(
    # each part ends in one way only, so a hundred "<!-- -->" take linear time
    r"(?:<\?xml[^>]{0,200}+>)?(?:\s++|<!--[^-]*+(?:-(?!->)[^-]*+)*-->)*"
    r"<(?:!doctype\s+html|html[\s>]|head[\s>]|body[\s>])",
    re.IGNORECASE | re.DOTALL,
)
COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
OLD_OFFICE = Other("a file of an old Office program")
ENCRYPTED = "EncryptedPackage"  # Word stores documents with a password in compound files, too (MS-OFFCRYPTO, 2.1)
OLD_FORMATS = {  # of compound files, by the name of the stream with the content
    "WordDocument": Other(
        "a Word document of the old kind (.doc)", "Open it in Word or LibreOffice, save it as .docx."
    ),
    "Workbook": WORKBOOK,
    "PowerPoint Document": Other("a PowerPoint presentation of the old kind (.ppt)", AS_PPTX),
}
# Recognised only to name the format in the error message; the first match wins.
UNSUPPORTED: tuple[tuple[bytes, str], ...] = (
    (rb"\x1f\x8b|BZh|7z\xbc\xaf|\xfd7zXZ|Rar!", "a compressed archive"),
    (rb".{60}BOOKMOBI", "a Kindle book"),
    (rb"AT&TFORM", "a DjVu document"),
    (rb"%!PS", "a PostScript file"),
    (rb"\x89PNG|\xff\xd8\xff|GIF8|II\*\x00|MM\x00\*|RIFF.{4}WEBP|BM.{4}\x00{4}", "an image"),
    (rb"\x7fELF|MZ.{60}|\xcf\xfa\xed\xfe|\xca\xfe\xba\xbe", "a program"),
)


def kind_of(file: Path, name: str) -> Kind:
    """The kind of a file by its content; of plain text the name tells tables.

    Raises:
        DocumentError: it cannot be opened, is empty, cut off or of an unsupported format.
    """
    head = read_head(file, name)
    names: list[str] | None = []
    if ARCHIVE.match(head):
        with file.open("rb") as stream:
            names = names_in(stream)
    if names is None:
        raise DamagedDocument(name, "is cut off or damaged: the list of its files is missing")
    kind = sniff(head, names)
    if kind is OLD_OFFICE:
        raise old_office(file, name)
    if isinstance(kind, Other):
        raise UnsupportedFormat(name, kind.what, hint=kind.hint)
    return "csv" if kind == "plain" and file.suffix.lower() in TABLE_SUFFIXES else kind


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


def sniff(head: bytes, names: Sequence[str] = ()) -> Kind | Other:
    """The kind according to the first HEAD_BYTES; "plain": perhaps text.

    Args:
        names: those in the archive, if it is one.
    """
    if ARCHIVE.match(head):
        declared = (kind for mimetype, kind in MIMETYPES if is_first_entry(mimetype, head))
        listed = (kind for name, kind in (OFFICE if OFFICE_LIST in names else PACKED) if is_listed(name, names))
        return next(chain(declared, listed), "zip")
    if head.startswith(COMPOUND):
        return OLD_OFFICE
    if b"%PDF-" in head[:PDF_WITHIN]:
        return "pdf"
    if head.lstrip().startswith(b"{\\rtf"):
        return "rtf"
    text = as_text(head)
    if WEB_PAGE.match(text):
        return "html"
    if text.lstrip().startswith("<") and FICTION.search(text):
        return "fb2"
    return next((Other(what) for begin, what in UNSUPPORTED if re.match(begin, head, re.DOTALL)), "plain")


def is_first_entry(mimetype: bytes, head: bytes) -> bool:
    """Whether an archive begins with the name of its media type."""
    return re.match(rb"PK\x03\x04.{26}mimetype.{0,64}application/" + mimetype, head, re.DOTALL) is not None


def is_listed(pattern: str, names: Sequence[str]) -> bool:
    """Whether an archive has a file of such a name."""
    return any(map(re.compile(pattern, re.DOTALL).fullmatch, names))


def names_in(stream: BinaryIO) -> list[str] | None:
    """The names in the list of a ZIP archive, of which MOST_LISTED bytes are looked at; None: there is none."""
    size = stream.seek(0, 2)
    stream.seek(max(0, size - 22 - 0xFFFF))
    tail = stream.read()
    end = tail.rfind(LIST_END)
    if end < 0 or len(tail) < end + 22:
        return None
    length = int.from_bytes(tail[end + 12 : end + 16], "little")
    if length == 0xFFFFFFFF:  # the size stands in a longer record before this one
        end = max(0, tail.rfind(LIST_END_64, 0, end))
        length = int.from_bytes(tail[end + 40 : end + 48], "little")
    stream.seek(max(0, size - len(tail) + end - length))
    listed, at, names = stream.read(min(length, MOST_LISTED)), 0, list[str]()
    while listed.startswith(LIST_ENTRY, at) and at + 46 <= len(listed):
        sizes = struct.unpack_from("<HHH", listed, at + 28)
        names.append(listed[at + 46 : at + 46 + sizes[0]].decode("utf-8", "replace"))
        at += 46 + sum(sizes)
    return names if names or not length else None


def as_text(head: bytes) -> str:
    """The head as text in which tags can be recognised, also with a byte order mark or in UTF-16."""
    wide = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    return head.decode("utf-16" if wide else "utf-8-sig", errors="replace").lstrip("\ufeff")


def old_office(file: Path, name: str) -> DocumentError:
    """The error for a file of the old Office format (a compound file), or for an encrypted one of the new."""
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:

        def has(stream_name: str) -> bool:
            return content.find(stream_name.encode("utf-16-le")) >= 0

        if has(ENCRYPTED):
            return PasswordProtected(name)
        what, hint = next((other for stream_name, other in OLD_FORMATS.items() if has(stream_name)), OLD_OFFICE)
        return UnsupportedFormat(name, what, hint=hint)
