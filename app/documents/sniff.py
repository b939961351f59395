"""The format of a file by its content; names and extensions are only hints.

How to add a format: assets/docs/architecture.md.
"""

import re
import struct
from collections.abc import Sequence
from itertools import chain
from typing import BinaryIO, Literal

Kind = Literal["pdf", "epub", "docx", "odt", "rtf", "pptx", "fb2", "html", "zip", "csv", "plain"]

HEAD_BYTES = 4096  # enough for every signature below
PDF_WITHIN = 1024  # bytes of junk before %PDF- that viewers accept (ISO 32000-1, annex H.3.4.1)
# The mimetype comes first and uncompressed (OCF 3.3, section 4.3). Archives packed by hand often ignore this, but
# name the container file that every EPUB has.
EPUB = re.compile(rb"PK\x03\x04.*(?:mimetype.{0,64}application/epub\+zip|META-INF/container\.xml)", re.DOTALL)
EPUB_FIRST = re.compile(rb"PK\x03\x04.{26}mimetype.{0,64}application/epub\+zip", re.DOTALL)

# First entries of an archive written by Word; those of other Office programs do not match.
OFFICE = re.compile(rb"PK\x03\x04.{26}(?:\[Content_Types\]\.xml|_rels/|docProps/|word/)", re.DOTALL)
OFFICE_LIST = "[Content_Types].xml"  # in every Office archive
# Folders of an Office archive by program, of whose names one is in the archive's list.
PROGRAMS: tuple[tuple[str, Kind], ...] = (("word/", "docx"), ("ppt/", "pptx"))
ARCHIVE = re.compile(rb"PK(?:\x03\x04|\x05\x06)")
LIST_END, LIST_ENTRY = b"PK\x05\x06", b"PK\x01\x02"
MOST_LISTED = 1 << 20  # bytes of an archive's list that are looked at
# Its first entry, uncompressed (OpenDocument 1.3, part 2, 3.3); also its templates and master documents.
OPEN_TEXT = re.compile(rb"PK\x03\x04.{26}mimetype.{0,64}application/vnd\.oasis\.opendocument\.text", re.DOTALL)
SLIDES = re.compile(rb"PK\x03\x04.*PK\x03\x04.{26}ppt/", re.DOTALL)
FICTION = re.compile(r"<(?:\w{1,20}:)?FictionBook[\s>]")
COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
WEB_PAGE = re.compile(
    # each part ends in one way only, so a hundred "<!-- -->" take linear time
    r"(?:<\?xml[^>]{0,200}+>)?(?:\s++|<!--[^-]*+(?:-(?!->)[^-]*+)*-->)*"
    r"<(?:!doctype\s+html|html[\s>]|head[\s>]|body[\s>])",
    re.IGNORECASE | re.DOTALL,
)

WORKBOOK, OPEN_TABLE, OPEN_SLIDES = "an Excel workbook", "an OpenDocument spreadsheet", "an OpenDocument presentation"
OFFICE_OTHERS = (("xl/", WORKBOOK), ("visio/", "a Visio drawing"))
IWORK = "a Pages, Keynote or Numbers file"
XPS = "an XPS document"
# By a name in the archive's list, of archives that are no documents of ours; the first match wins.
PACKED: tuple[tuple[str, re.Pattern[str]], ...] = (
    (IWORK, re.compile(r"Index/[^/]+\.iwa")),
    (XPS, re.compile(r"[^/]+\.fdseq")),
    (
        "a package of another program",
        re.compile(
            r"AndroidManifest\.xml|META-INF/MANIFEST\.MF|Payload/[^/]+\.app/Info\.plist|[^/]+\.dist-info/WHEEL"
            r"|\[Content_Types\]\.xml"
        ),
    ),
)
# Recognised only to name the format in the error message; the first match wins.
UNSUPPORTED: tuple[tuple[str, re.Pattern[bytes]], ...] = (
    (WORKBOOK, re.compile(rb"PK\x03\x04.*PK\x03\x04.{26}xl/", re.DOTALL)),
    (OPEN_TABLE, re.compile(rb"PK\x03\x04.{26}mimetype.{0,64}application/vnd\.oasis\.opendocument\.sp", re.DOTALL)),
    (OPEN_SLIDES, re.compile(rb"PK\x03\x04.{26}mimetype.{0,64}application/vnd\.oasis\.opendocument\.p", re.DOTALL)),
    ("an OpenDocument drawing", re.compile(rb"PK\x03\x04.{26}mimetype.{0,64}application/vnd\.oasis", re.DOTALL)),
    ("a compressed archive", re.compile(rb"\x1f\x8b|BZh|7z\xbc\xaf|\xfd7zXZ|Rar!")),
    ("a Kindle book", re.compile(rb".{60}BOOKMOBI", re.DOTALL)),
    ("a DjVu document", re.compile(rb"AT&TFORM")),
    ("a PostScript file", re.compile(rb"%!PS")),
    ("an image", re.compile(rb"\x89PNG|\xff\xd8\xff|GIF8|II\*\x00|MM\x00\*|RIFF.{4}WEBP|BM.{4}\x00{4}", re.DOTALL)),
    ("a program", re.compile(rb"\x7fELF|MZ.{60}|\xcf\xfa\xed\xfe|\xca\xfe\xba\xbe", re.DOTALL)),
)


def sniff(head: bytes, names: Sequence[str] = ()) -> Kind | Literal["old office"] | None:
    """The kind according to the first HEAD_BYTES; "plain": perhaps text; None: a format that `describe` names.

    Args:
        names: those in the archive, if it is one (`names_in`); without them its first bytes decide.
    """
    if ARCHIVE.match(head):
        return archive_kind(head, names)
    if head.startswith(COMPOUND):
        return "old office"
    if b"%PDF-" in head[:PDF_WITHIN]:
        return "pdf"
    if head.lstrip().startswith(b"{\\rtf"):
        return "rtf"
    text = as_text(head)
    if WEB_PAGE.match(text):
        return "html"
    if text.lstrip().startswith("<") and FICTION.search(text):
        return "fb2"
    return None if describe(head) else "plain"


def archive_kind(head: bytes, names: Sequence[str]) -> Kind | None:
    """The kind of a ZIP archive: of what program, or of several documents."""
    if OPEN_TEXT.match(head):
        return "odt"
    if OFFICE_LIST in names:
        return next((kind for folder, kind in PROGRAMS if any(name.startswith(folder) for name in names)), None)
    if EPUB.match(head) if not names else "META-INF/container.xml" in names or EPUB_FIRST.match(head):
        return "epub"
    if describe(head, names):
        return None
    if not names and OFFICE.match(head):
        return "pptx" if SLIDES.match(head) else "docx"
    return "zip"


def names_in(stream: BinaryIO) -> list[str]:
    """The names in the list of a ZIP archive, as far as it is whole; MOST_LISTED bytes of the list are looked at."""
    stream.seek(0, 2)
    size = stream.tell()
    stream.seek(max(0, size - 22 - 0xFFFF))
    tail = stream.read()
    end = tail.rfind(LIST_END)
    if end < 0 or len(tail) < end + 22:
        return []
    length = int.from_bytes(tail[end + 12 : end + 16], "little")
    stream.seek(max(0, size - len(tail) + end - length))
    listed, at, names = stream.read(min(length, MOST_LISTED)), 0, list[str]()
    while listed.startswith(LIST_ENTRY, at) and at + 46 <= len(listed):
        sizes = struct.unpack_from("<HHH", listed, at + 28)
        names.append(listed[at + 46 : at + 46 + sizes[0]].decode("utf-8", "replace"))
        at += 46 + sum(sizes)
    return names


def as_text(head: bytes) -> str:
    """The head as text in which tags can be recognised, also with a byte order mark or in UTF-16."""
    wide = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    return head.decode("utf-16" if wide else "utf-8-sig", errors="replace").lstrip("\ufeff")


def describe(head: bytes, names: Sequence[str] = ()) -> str | None:
    """The name, with an article, of the unsupported format that begins with `head`, or whose archive lists `names`."""
    others = OFFICE_OTHERS if OFFICE_LIST in names else ()
    listed = (what for folder, what in others if any(name.startswith(folder) for name in names))
    packed = (what for what, entry in PACKED if any(map(entry.fullmatch, names)))
    begun = (what for what, signature in UNSUPPORTED if signature.match(head))
    return next(chain(listed, packed, begun), None)
