"""The printed lines of a PDF's pages as PDFium finds them, with where they stand on the paper."""

import ctypes
import math
import re
from typing import BinaryIO

import pypdfium2
import pypdfium2.raw as raw

from app.documents.layout import Place, PrintedLine, page_text

PdfiumError = pypdfium2.PdfiumError
HYPHEN = "\ufffe"  # what PDFium writes for a hyphen at the end of a line; the next line follows at once
CONTROL_HYPHEN = re.compile(r"(?<=\w)\x02(?=(?:\r?\n)?[^\W\d_])")  # the same, as PDFium names it elsewhere
LINE = re.compile(rf"[^\r\n{HYPHEN}]+{HYPHEN}?|{HYPHEN}")


class Pdfium:
    """A PDF opened with PDFium."""

    def __init__(self, stream: BinaryIO) -> None:
        """Open it without a password.

        Raises:
            PdfiumError: PDFium cannot.
        """
        self._document = pypdfium2.PdfDocument(stream)

    def __len__(self) -> int:
        """The number of its pages."""
        return len(self._document)

    def text(self, index: int) -> str:
        """The text of a page, a line for each printed line, blank ones between paragraphs.

        Raises:
            PdfiumError: the page cannot be read.
        """
        page = self._document[index]
        try:
            letters = page.get_textpage()
            try:
                return page_text(printed_lines(letters))
            finally:
                letters.close()
        finally:
            page.close()


def printed_lines(letters: pypdfium2.PdfTextPage) -> list[PrintedLine]:
    """The lines of a page in the order in which the file draws them."""
    text = CONTROL_HYPHEN.sub(HYPHEN, letters.get_text_range(errors="surrogatepass"))
    lines = []
    units, before = 0, 0  # PDFium counts UTF-16
    for found in LINE.finditer(text):
        units += num_units(text[before : found.start()])
        before = found.end()
        length = num_units(found[0])
        first = raw.FPDFText_GetCharIndexFromTextIndex(letters, units)
        last = raw.FPDFText_GetCharIndexFromTextIndex(letters, units + length - 1)
        units += length
        start, size = place_of(letters, first), size_of(letters, first)
        lines.append(PrintedLine(found[0].replace(HYPHEN, "-"), start, place_of(letters, last), size))
    return lines


def num_units(text: str) -> int:
    """The length of a text in UTF-16."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def place_of(letters: pypdfium2.PdfTextPage, index: int) -> Place:
    """Where a letter begins on its line, in points."""
    x, y = ctypes.c_double(), ctypes.c_double()
    raw.FPDFText_GetCharOrigin(letters, index, x, y)
    return Place(x.value, y.value)


def size_of(letters: pypdfium2.PdfTextPage, index: int) -> float:
    """The size of a letter as it is printed, in points."""
    matrix = raw.FS_MATRIX()
    raw.FPDFText_GetMatrix(letters, index, matrix)
    return float(raw.FPDFText_GetFontSize(letters, index) * math.hypot(matrix.c, matrix.d))
