"""The format of a file by its content; names and extensions are only hints.

How to add a format: assets/docs/architecture.md.
"""

import io
import mmap
import os
import re
import stat
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from app.document_formats import ONE_OF
from app.documents.archive import MALFORMED
from app.documents.document import Format
from app.documents.errors import (
    AccessDenied,
    DamagedDocument,
    DocumentError,
    DocumentNotFound,
    EmptyDocument,
    PasswordProtected,
    UnsupportedFormat,
)

Kind = Literal[Format, "zip"]


class Other(NamedTuple):
    """A format that is not read."""

    what: str  # with an article
    hint: str = ""


BY_NAME: Mapping[str, Kind] = {  # of what is plain text, and of web pages that begin in an odd way
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    **dict.fromkeys((".csv", ".tsv", ".tab"), "csv"),
    **dict.fromkeys((".md", ".markdown", ".mdown", ".mkd"), "markdown"),
}
HEAD_BYTES = 4096  # enough for every signature below
AS_CSV, AS_PPTX = "Save the sheets you need as CSV and use that.", "Save it as .pptx or PDF and use that."
WORKBOOK = Other("an Excel workbook", AS_CSV)
WEB_ARCHIVE = Other("a web archive (MHTML)", "Save the page as HTML alone, or print it to PDF, and use that.")
E_MAIL = Other("an e-mail with packed parts", "Print it to PDF, or save its text, and use that.")
XPS = Other("an XPS document", "Print or save it as PDF and use that.")

ARCHIVE = re.compile(rb"PK(?:\x03\x04|\x05\x06)")
MEDIA_TYPE = re.compile(rb"PK\x03\x04.{26}mimetype.{0,64}(application/[\w.+-]+)", re.DOTALL)
MOST_LISTED = 1 << 22  # bytes at the end of an archive, in which the list of its files is
# By the media type in the first entry of an archive (OpenDocument 1.3, part 2, 3.3; OCF 3.3, 4.3), or by a name in its
# list; the first match wins.
Entries = tuple[tuple[str, Kind | Other], ...]
DECLARED: Entries = (
    (r"application/vnd\.oasis\.opendocument\.text.*", "odt"),  # also its templates and master documents
    (r"application/vnd\.oasis\.opendocument\.sp.*", Other("an OpenDocument spreadsheet", AS_CSV)),
    (r"application/vnd\.oasis\.opendocument\.p.*", Other("an OpenDocument presentation", AS_PPTX)),
    (r"application/vnd\.oasis.*", Other("an OpenDocument drawing")),
    (r"application/epub\+zip.*", "epub"),
)
OFFICE_LIST = "[Content_Types].xml"  # in every Office archive
OFFICE: Entries = (
    (r"word/.*", "docx"),
    (r"ppt/.*", "pptx"),
    (r"xl/.*", WORKBOOK),
    (r"visio/.*", Other("a Visio drawing")),
    (r"[^/]+\.fdseq", XPS),
    (r".*", Other("a package of another program")),
)
PACKED: Entries = (
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
OLD_OFFICE = Other("a file of an old Office program")
ENCRYPTED = "EncryptedPackage"  # Word stores documents with a password in compound files, too (MS-OFFCRYPTO, 2.1)
OLD_FORMATS = {  # of compound files, by the name of the stream with the content
    "WordDocument": Other(
        "a Word document of the old kind (.doc)", "Open it in Word or LibreOffice, save it as .docx."
    ),
    "Workbook": WORKBOOK,
    "PowerPoint Document": Other("a PowerPoint presentation of the old kind (.ppt)", AS_PPTX),
}
# By the first bytes; the first match wins.
HEADS: tuple[tuple[bytes, Kind | Other], ...] = (
    (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", OLD_OFFICE),
    (rb"(?:\s{0,1019}|.{0,1018}[^ -~])%PDF-\d", "pdf"),  # viewers accept so much before it (ISO 32000-1, annex H.3.4.1)
    (rb"\s*\{\\rtf", "rtf"),
    (rb"\x1f\x8b|BZh\d1AY&SY|7z\xbc\xaf|\xfd7zXZ|Rar!\x1a\x07", Other("a compressed archive")),
    (rb".{60}BOOKMOBI", Other("a Kindle book")),
    (rb"From: .?Saved by |MIME-Version: 1\.0\s+Content-Type: multipart/related", WEB_ARCHIVE),
    (
        rb"(?:From [^\n]*\n)?(?:[\w-]+:[^\n]*\n|[ \t][^\n]*\n)*?"
        rb"(?i:Content-(?:Type:\s*multipart/|Transfer-Encoding:\s*(?:base64|quoted-printable)))",
        E_MAIL,
    ),
    (rb"AT&TFORM", Other("a DjVu document")),
    (rb"%!PS", Other("a PostScript file")),
    (rb"\x89PNG|\xff\xd8\xff|GIF8[79]a|II\*\x00|MM\x00\*|RIFF.{4}WEBP|BM.{4}\x00{4}", Other("an image")),
    (rb"\x7fELF|MZ.{0,60}\x00|\xcf\xfa\xed\xfe|\xca\xfe\xba\xbe", Other("a program")),
)


def kind_of(file: Path, name: str) -> Kind:
    """The kind of a file by its content; of plain text by its name.

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
    return BY_NAME.get(file.suffix.lower(), kind) if kind == "text" else kind


def read_head(file: Path, name: str) -> bytes:
    """The first bytes of a regular, readable file that is not empty."""
    try:
        if not stat.S_ISREG(os.stat(file).st_mode):
            what = "a folder" if file.is_dir() else "not a regular file"
            raise DocumentNotFound(name, f"{name} is {what}", hint=f"Name the {ONE_OF} file itself.")
        with file.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a NUL in the name
        raise DocumentNotFound(name, f"There is no file {name}") from error
    except OSError as error:
        raise AccessDenied(name, error.strerror or type(error).__name__) from error
    if not head:
        raise EmptyDocument(name, "is empty")
    return head


def sniff(head: bytes, names: Sequence[str] = ()) -> Kind | Other:
    """The kind according to the first HEAD_BYTES; "text": perhaps some.

    Args:
        names: those in the archive, if it is one.
    """
    if ARCHIVE.match(head):
        declared = MEDIA_TYPE.match(head)
        entries = [declared[1].decode("ascii") if declared else "", *names]
        known = (*DECLARED, *(OFFICE if OFFICE_LIST in names else PACKED))
        return next((kind for entry, kind in known if any(map(re.compile(entry, re.DOTALL).fullmatch, entries))), "zip")
    kind = next((kind for begin, kind in HEADS if re.match(begin, head, re.DOTALL)), None)
    text = as_text(head) if kind in (None, "pdf") else ""
    if WEB_PAGE.match(text):
        return "html"
    if text.lstrip().startswith("<") and FICTION.search(text):
        return "fb2"
    return kind or "text"


def names_in(stream: BinaryIO) -> list[str] | None:
    """The names in the list of a ZIP archive; None: there is no such list."""
    stream.seek(max(0, stream.seek(0, 2) - MOST_LISTED))
    try:
        return zipfile.ZipFile(io.BytesIO(stream.read())).namelist()
    except MALFORMED:
        return None


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
