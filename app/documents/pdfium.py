"""The printed lines of a PDF's pages as PDFium finds them, with where they stand on the paper."""

import ctypes
import math
import re
from collections.abc import Iterator
from typing import BinaryIO

import pypdfium2
import pypdfium2.raw as raw

from app.documents.layout import page_text
from app.documents.printed import Place, PrintedLine

PdfiumError = pypdfium2.PdfiumError
HYPHEN = "\ufffe"  # what PDFium writes for a hyphen at the end of a line; the next line follows at once
CONTROL_HYPHEN = re.compile(r"(?<=\w)\x02(?=(?:\r?\n)?[^\W\d_])")  # the same, as PDFium names it elsewhere
SPACE = re.compile(r"(?<=\S) +(?=\S)")
GAP = 0.9  # of the size of a line's letters: spaces are narrower
LETTER = 0.5  # of the size: what is wider than its letters and a gap may have a gap
SAMPLED, NEAR = 5, 4  # lines of which one is looked at in any case, lines from a gap
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

    def bookmarks(self) -> Iterator[tuple[str, int, int | None]]:
        """Of each bookmark the title, the depth from 0 on, and the index of its page."""
        for mark in self._document.get_toc():
            target = mark.get_dest()
            yield mark.get_title(), mark.level, target.get_index() if target else None

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
    """The lines of a page in the order in which the file draws them; in pieces where there are gaps as of a table.

    Gaps are looked for, which takes long, where a line is wide for its letters, in each line of a few, and near gaps.
    """
    text = CONTROL_HYPHEN.sub(HYPHEN, letters.get_text_range(errors="surrogatepass"))
    printed: list[PrintedLine] = []
    units, before, near = 0, 0, 0  # PDFium counts UTF-16
    for number, line in enumerate(LINE.finditer(text)):
        units += num_units(text[before : line.start()])
        before = line.end()
        length = num_units(line[0])
        first = raw.FPDFText_GetCharIndexFromTextIndex(letters, units)
        last = raw.FPDFText_GetCharIndexFromTextIndex(letters, units + length - 1)
        units += length
        start, end, size = place_of(letters, first), place_of(letters, last), size_of(letters, first)
        whole = PrintedLine(line[0].replace(HYPHEN, "-"), start, end, size)
        is_known = (
            end.x > start.x and last - first == length - 1 == len(line[0]) - 1
        )  # where each of its letters stands
        is_wide = end.x - start.x > (LETTER * length + GAP) * size
        if is_known and (is_wide or number < near or number % SAMPLED == 0):
            parts = list(pieces(letters, whole, first))
            near = number + NEAR if len(parts) > 1 else near
            printed += parts
        else:
            printed.append(whole)
    return printed


def pieces(letters: pypdfium2.PdfTextPage, line: PrintedLine, first: int) -> Iterator[PrintedLine]:
    """A line that runs to the right, parted at its gaps.

    Args:
        first: the number that PDFium gives its first letter.
    """
    page, x, y = letters.raw, ctypes.c_double(), ctypes.c_double()
    begun, start, word, word_x = 0, line.start, 0, line.start.x
    for space in SPACE.finditer(line.text):
        before, after = space.start() - 1, space.end()
        raw.FPDFText_GetCharOrigin(page, first + after, x, y)  # one call for each word: calls take long
        is_wide = x.value - word_x > (LETTER * (before + 1 - word) + GAP) * line.size
        if is_wide and gap(letters, first + before, first + after) > GAP * line.size:
            yield PrintedLine(line.text[begun : before + 1], start, place_of(letters, first + before), line.size)
            begun, start = after, Place(x.value, y.value)
        word, word_x = after, x.value
    yield PrintedLine(line.text[begun:], start, line.end, line.size) if begun else line


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
