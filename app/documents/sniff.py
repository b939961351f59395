"""The format of a file by its content; names and extensions are only hints.

To add a format: give it a signature here and a reader in `readers.py`.
"""

import re
from typing import Literal

Kind = Literal["pdf", "epub", "docx", "html", "old office", "plain"]

HEAD_BYTES = 4096  # enough for every signature below
PDF_WITHIN = 1024  # bytes of junk before %PDF- that viewers accept (ISO 32000-1, annex H.3.4.1)
# The mimetype comes first and uncompressed (OCF 3.3, section 4.3). Archives packed by hand often ignore this, but
# name the container file that every EPUB has.
EPUB = re.compile(rb"PK\x03\x04.*(?:mimetype.{0,64}application/epub\+zip|META-INF/container\.xml)", re.DOTALL)

# First entries of an archive written by Word; those of other Office programs do not match.
OFFICE = re.compile(rb"PK\x03\x04.{26}(?:\[Content_Types\]\.xml|_rels/|docProps/|word/)", re.DOTALL)
COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
WEB_PAGE = re.compile(
    # possessive: reads nothing twice, so a hundred "<!-- -->" take linear time
    r"(?:<\?xml[^>]{0,200}+>)?+(?:\s++|<!--(?:(?!-->).)*+-->)*+"
    r"<(?:!doctype\s+html|html[\s>]|head[\s>]|body[\s>])",
    re.IGNORECASE | re.DOTALL,
)

# Recognised only to name the format in the error message; the first match wins.
UNSUPPORTED: tuple[tuple[str, re.Pattern[bytes]], ...] = (
    ("an Excel workbook", re.compile(rb"PK\x03\x04.*PK\x03\x04.{26}xl/", re.DOTALL)),
    ("a PowerPoint presentation", re.compile(rb"PK\x03\x04.*PK\x03\x04.{26}ppt/", re.DOTALL)),
    ("an OpenDocument file", re.compile(rb"PK\x03\x04.{26}mimetype.{0,64}application/vnd\.oasis", re.DOTALL)),
    ("a ZIP archive", re.compile(rb"PK(?:\x03\x04|\x05\x06)")),
    ("a compressed archive", re.compile(rb"\x1f\x8b|BZh|7z\xbc\xaf|\xfd7zXZ|Rar!")),
    ("a Kindle book", re.compile(rb".{60}BOOKMOBI", re.DOTALL)),
    ("a DjVu document", re.compile(rb"AT&TFORM")),
    ("a PostScript file", re.compile(rb"%!PS")),
    ("an RTF document", re.compile(rb"\{\\rtf")),
    ("an image", re.compile(rb"\x89PNG|\xff\xd8\xff|GIF8|II\*\x00|MM\x00\*|RIFF.{4}WEBP|BM.{4}\x00{4}", re.DOTALL)),
    ("a program", re.compile(rb"\x7fELF|MZ.{60}|\xcf\xfa\xed\xfe|\xca\xfe\xba\xbe", re.DOTALL)),
)


def sniff(head: bytes) -> Kind | None:
    """The kind according to the first HEAD_BYTES; "plain": perhaps text; None: a format that `describe` names."""
    if EPUB.match(head):
        return "epub"
    if head.startswith(COMPOUND):
        return "old office"
    if b"%PDF-" in head[:PDF_WITHIN]:
        return "pdf"
    if OFFICE.match(head) and not is_sister(head):
        return "docx"
    if WEB_PAGE.match(as_text(head)):
        return "html"
    return None if describe(head) else "plain"


def is_sister(head: bytes) -> bool:
    """Whether an Office archive belongs to another program than Word."""
    return describe(head) != "a ZIP archive"


def as_text(head: bytes) -> str:
    """The head as text in which tags can be recognised, also with a byte order mark or in UTF-16."""
    wide = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    return head.decode("utf-16" if wide else "utf-8-sig", errors="replace").lstrip("\ufeff")


def describe(head: bytes) -> str | None:
    """The name, with an article, of the unsupported format that begins with `head`."""
    return next((what for what, signature in UNSUPPORTED if signature.match(head)), None)
