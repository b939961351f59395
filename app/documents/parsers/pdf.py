"""PDF files. PDFium reads them; pypdf reads a file or a page that PDFium cannot.

A page on which PDFium finds neither text nor a picture is read by pypdf, too, which tells a blank page from a damaged
one.
"""

import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, BinaryIO

from pypdfium2.raw import FPDF_ERR_SECURITY

from app.documents.archive import Refused
from app.documents.messages import Message, PageRead, page_read
from app.documents.pdfium import Pdfium, PdfiumError

if TYPE_CHECKING:
    from app.documents.pypdf_reader import Pypdf

END_WITHIN = 65_536  # bytes at the end of a file that must hold its end marker; viewers want it in the last 1,024
MOST_CHECKED = 1 << 26  # bytes of a file, and of what a stream in it unpacks to, in which damage is looked for
STREAM = re.compile(rb"stream\r?\n(?=x[\x01\x5e\x9c\xda])")
DAMAGE = "Parts of the file are damaged, so that text may be missing."
MAX_PAGE = 2_000_000  # characters of a page; a book has fewer


def read(stream: BinaryIO, by: str = "pdfium") -> Iterator[Message]:
    """The messages of a file, the pages as they are read.

    Args:
        by: "pypdf" reads the file with pypdf alone.
    Raises:
        Refused: it is cut off, or opens only with a password or in the software of a shop.
    """
    if is_cut_off(stream):
        raise Refused("cut off")

    @cache
    def pypdf() -> "Pypdf":
        from app.documents.pypdf_reader import Pypdf  # which takes longer than PDFium, and is hardly ever needed

        return Pypdf(stream)

    pdfium = None
    if by == "pdfium":
        try:
            pdfium = Pdfium(stream)
        except PdfiumError as error:
            if error.err_code == FPDF_ERR_SECURITY:
                raise Refused("protected") from error
    first = pdfium or pypdf()
    damaged = pdfium and not pdfium.is_encrypted and has_damage(stream)
    yield {**first.opened(), "warning": DAMAGE if damaged else ""}
    for index in range(len(first)):
        yield read_page(pdfium, pypdf, index)


def is_cut_off(stream: BinaryIO) -> bool:
    """Whether the end of the file is missing: no end marker, or shorter than a linearised file declares."""
    size = stream.seek(0, 2)
    stream.seek(max(0, size - END_WITHIN))
    tail = stream.read()
    stream.seek(0)
    head = stream.read(1024)
    stream.seek(0)
    if not (b"startxref" in tail or b"%%EOF" in tail):
        return True
    parameters = head.partition(b"/Linearized")[2].partition(b">>")[0]
    declared = parameters.partition(b"/L ")[2].split(maxsplit=1)
    return bool(declared) and declared[0].isdigit() and int(declared[0]) > size


def has_damage(stream: BinaryIO) -> bool:
    """Whether a packed stream does not unpack to its end, of which PDFium says nothing. Not for encrypted files."""
    stream.seek(0)
    file = stream.read(MOST_CHECKED)
    for found in STREAM.finditer(file):
        end = file.find(b"endstream", found.end())
        unpacking = zlib.decompressobj()
        try:
            unpacked = unpacking.decompress(memoryview(file)[found.end() : end], MOST_CHECKED)
        except zlib.error:
            return end > 0
        if end > 0 and not unpacking.eof and len(unpacked) < MOST_CHECKED:
            return True
    return False


def read_page(pdfium: Pdfium | None, pypdf: "Callable[[], Pypdf]", index: int) -> PageRead:
    """A page; where PDFium cannot read it or finds nothing on it, by pypdf; where that cannot either, damaged."""
    with suppress(PdfiumError):
        text, has_image = pdfium.page(index) if pdfium else ("", False)
        if has_image or text.strip():
            return cut(text, has_image=has_image)
    try:
        text, has_image, is_whole = pypdf().page(index)
    except MemoryError:
        raise
    except Exception:  # whatever it lets escape on malformed input
        return page_read("", damaged=True)
    return {**cut(text, has_image=has_image, damaged=not is_whole), "by_pypdf": True}


def cut(text: str, *, has_image: bool, damaged: bool = False) -> PageRead:
    """A page; what is too long to be one is cut, and damaged."""
    return page_read(text[:MAX_PAGE], has_image=has_image, damaged=damaged or len(text) > MAX_PAGE)
