"""The printed lines of a PDF's pages as PDFium finds them, with where they stand on the paper."""

import ctypes
import math
import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import pypdfium2
import pypdfium2.raw as raw

from app.documents.layout import page_text
from app.documents.printed import Place, PrintedLine

PdfiumError = pypdfium2.PdfiumError
HYPHEN = "\ufffe"  # what PDFium writes for a hyphen at the end of a line; the next line follows at once
CONTROL_HYPHEN = re.compile(r"(?<=\w)\x02(?=(?:\r?\n)?[^\W\d_])")  # the same, as PDFium names it elsewhere
SPACE = re.compile(r"(?<=\S) +(?=\S)")
GAP = 0.9  # of the size of a line's letters: spaces are narrower
LETTER = 0.4  # of the size: a word that is wider than its letters and a gap may have a gap behind it
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
    """The lines of a page in the order in which the file draws them; in pieces where there are gaps as of a table."""
    text = CONTROL_HYPHEN.sub(HYPHEN, letters.get_text_range(errors="surrogatepass"))
    found: list[Stretch] = []
    units, before = 0, 0  # PDFium counts UTF-16
    for line in LINE.finditer(text):
        units += num_units(text[before : line.start()])
        before = line.end()
        length = num_units(line[0])
        first = raw.FPDFText_GetCharIndexFromTextIndex(letters, units)
        last = raw.FPDFText_GetCharIndexFromTextIndex(letters, units + length - 1)
        units += length
        found.append(Stretch(line[0], first, last))
    return [
        PrintedLine(
            one.text.replace(HYPHEN, "-"),
            place_of(letters, one.first),
            place_of(letters, one.last),
            size_of(letters, one.first),
        )
        for line in found
        for one in pieces(letters, line)
    ]


class Stretch(NamedTuple):
    """Letters of a page, and the numbers PDFium gives the first and the last."""

    text: str
    first: int
    last: int


def pieces(letters: pypdfium2.PdfTextPage, line: Stretch) -> Iterator[Stretch]:
    """A line, parted at its gaps; one without gaps as it is."""
    begun = 0
    if line.last - line.first == len(line.text) - 1 and " " in line.text:  # else its letters' numbers are not known
        page, x, y, size = letters.raw, ctypes.c_double(), ctypes.c_double(), size_of(letters, line.first)
        at, at_x, origin, place = 0, place_of(letters, line.first).x, raw.FPDFText_GetCharOrigin, ctypes.byref(x)
        other = ctypes.byref(y)
        for space in SPACE.finditer(line.text):  # one call for each word, for a call takes long
            end = space.end()
            origin(page, line.first + end, place, other)
            word, word_x = space.start() - at, x.value
            if abs(word_x - at_x) > (LETTER * word + GAP) * size:
                before = line.first + space.start() - 1
                if gap(letters, before, line.first + end) > GAP * size:
                    yield Stretch(line.text[begun : space.start()], line.first + begun, before)
                    begun = end
            at, at_x = end, word_x
    yield Stretch(line.text[begun:], line.first + begun, line.last) if begun else line


def gap(letters: pypdfium2.PdfTextPage, before: int, after: int) -> float:
    """The room between two letters on a line, in points."""
    one, other = box_of(letters, before), box_of(letters, after)
    return max(one[0], other[0]) - min(one[1], other[1])


def box_of(letters: pypdfium2.PdfTextPage, index: int) -> tuple[float, float]:
    """The left and the right edge of a letter, in points."""
    left, right, bottom, top = (ctypes.c_double() for _ in range(4))
    raw.FPDFText_GetCharBox(letters, index, left, right, bottom, top)
    return left.value, right.value


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
