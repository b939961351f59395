"""A PDF as PDFium reads it: what it says of itself, and its printed lines with where they stand on the paper."""

import ctypes
import math
import re
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import BinaryIO

import pypdfium2
import pypdfium2.raw as raw

from app.documents.layout import page_text
from app.documents.messages import MAX_ENTRIES, MAX_ENTRY, Opened, OutlineEntry
from app.documents.metadata import authors_in
from app.documents.printed import Place, PrintedLine
from app.documents.quality import num_letters

PdfiumError = pypdfium2.PdfiumError
HYPHEN = "\ufffe"  # what PDFium writes for a hyphen at the end of a line; the next line follows at once
CONTROL_HYPHEN = re.compile(r"(?<=\w)\x02(?=(?:\r?\n)?[^\W\d_])")  # the same, as PDFium names it elsewhere
SPACE = re.compile(r"(?<=\S) +(?=\S)")
GAP = 0.9  # of the size of a line's letters: spaces are narrower
LETTER = 0.5  # of the size: what is wider than its letters and a gap may have a gap
SAMPLED, NEAR = 5, 4  # lines of which one is looked at in any case, lines from a gap
FULL_PAGE = 1_000  # letters, far more than `quality.py` asks of a page that is no picture
RAISED, SMALLER = 0.2, 0.85  # of the size of a line's letters: how far above it powers stand, and how small they are
DIGITS = re.compile(r"\d+")  # a power ends with some
MOST_NESTED = 3  # forms in which a picture is looked for
MAX_LABEL, MAX_LANGUAGE = 20, 300  # characters
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

    @property
    def is_encrypted(self) -> bool:
        """Whether it is, even if it opens without a password."""
        return int(raw.FPDF_GetSecurityHandlerRevision(self._document)) != -1

    def opened(self) -> Opened:
        """What the file says of itself: plain numbers for pages without names, the bookmarks that lead to a page."""
        document, tag = self._document, (ctypes.c_ushort * MAX_LANGUAGE)()
        raw.FPDFCatalog_GetLanguage(document, tag, ctypes.sizeof(tag))
        return Opened(
            kind="opened",
            title=str(document.get_metadata_value("Title")),
            labels=[document.get_page_label(index)[:MAX_LABEL] or str(index + 1) for index in range(len(self))],
            outline=[
                OutlineEntry(title=" ".join(mark.get_title().split())[:MAX_ENTRY], level=mark.level + 1, page=page)
                for mark in islice(document.get_toc(), MAX_ENTRIES)
                if (target := mark.get_dest()) and (page := target.get_index()) is not None and page >= 0
            ],
            authors=authors_in(str(document.get_metadata_value("Author"))),
            language="".join(map(chr, tag)).rstrip("\0"),
        )

    def page(self, index: int) -> tuple[str, bool]:
        """The text of a page, a line for each printed line, blank ones between paragraphs; and whether it has pictures.

        Pictures are not looked for on a page that is full of text, which would take as long as to read it.

        Raises:
            PdfiumError: the page cannot be read.
        """
        page = self._document[index]
        try:
            letters = page.get_textpage()
            try:
                text = page_text(printed_lines(letters))
            finally:
                letters.close()
            is_full = num_letters([text]) >= FULL_PAGE
            return text, not is_full and any(page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE], max_depth=MOST_NESTED))
        finally:
            page.close()


def printed_lines(page: pypdfium2.PdfTextPage) -> list[PrintedLine]:
    """The lines of a page in the order in which the file draws them; in pieces where there are gaps as of a table.

    Gaps are looked for, which takes long, where a line is wide for its letters, in each line of a few, and near gaps.
    """
    text = CONTROL_HYPHEN.sub(HYPHEN, page.get_text_range(errors="surrogatepass"))
    letters = Letters(page, text)
    printed: list[PrintedLine] = []
    near = 0
    for number, line in enumerate(LINE.finditer(text)):
        first, last, is_known = letters.ends(line)
        start, end, size = letters.place(first), letters.place(last), letters.size(first)
        whole = PrintedLine(line[0].replace(HYPHEN, "-"), start, end, size)
        length = line.end() - line.start()
        is_wide = end.x - start.x > (LETTER * length + GAP) * size
        parts = [whole]
        powers = powers_in(letters, whole, first) if is_known else []
        if is_known and end.x > start.x and (is_wide or number < near or number % SAMPLED == 0):
            parts = list(pieces(letters, whole, first, powers))
            near = number + NEAR if len(parts) > 1 else near
        elif powers:
            whole.text = with_powers(whole.text, powers)
        printed += parts
    return printed


def powers_in(letters: "Letters", line: PrintedLine, first: int) -> list[int]:
    """Where small digits stand above the line, directly behind a letter: the beginnings of powers and calls of notes.

    Args:
        first: the number that PDFium gives its first letter.
    """
    powers, done = list[int](), 0
    for number in DIGITS.finditer(line.text):
        at = number.end()
        while (is_raised := letters.is_raised(first + at - 1, line)) and at > max(done, 1):
            at -= 1
        if at < number.end() and not is_raised and (line.text[at - 1].isalnum() or line.text[at - 1] == ")"):
            powers.append(at)
        done = number.end()
    return powers


def with_powers(text: str, powers: Sequence[int], start: int = 0, end: int | None = None) -> str:
    """A part of a line's text, with "^" before its powers: 10^6."""
    inside = [at for at in powers if start <= at and (end is None or at < end)]
    return "^".join(text[one:other] for one, other in pairwise([start, *inside, end]))


def pieces(letters: "Letters", line: PrintedLine, first: int, powers: Sequence[int]) -> Iterator[PrintedLine]:
    """A line that runs to the right, parted at its gaps.

    Args:
        first: the number that PDFium gives its first letter.
        powers: see `powers_in`.
    """
    size, x_of = line.size, letters.x
    begun, start, word, word_x = 0, line.start, 0, line.start.x
    for space in SPACE.finditer(line.text):
        end, after = space.span()
        x = x_of(first + after)  # one call for each word: calls take long
        if (
            x - word_x > (LETTER * (end - word) + GAP) * size
            and letters.gap(first + end - 1, first + after) > GAP * size
        ):
            yield PrintedLine(with_powers(line.text, powers, begun, end), start, letters.place(first + end - 1), size)
            begun, start = after, letters.place(first + after)
        word, word_x = after, x
    yield PrintedLine(with_powers(line.text, powers, begun), start, line.end, size)


class Letters:
    """Where the letters of a page stand, by the numbers that PDFium gives them."""

    def __init__(self, page: pypdfium2.PdfTextPage, text: str) -> None:
        self._page = page.raw
        self._text = text
        self._x, self._y, self._matrix = ctypes.c_double(), ctypes.c_double(), raw.FS_MATRIX()
        self._units = self._before = 0  # of the text that `ends` has passed

    def ends(self, line: re.Match[str]) -> tuple[int, int, bool]:
        """The numbers of the first and the last letter of the next line, and whether all between are the line's."""
        self._units += num_units(self._text[self._before : line.start()])
        self._before = line.end()
        length = num_units(line[0])
        first, last = self._number(self._units), self._number(self._units + length - 1)
        self._units += length
        return first, last, last - first == length - 1 == len(line[0]) - 1

    def _number(self, unit: int) -> int:
        return int(raw.FPDFText_GetCharIndexFromTextIndex(self._page, unit))

    def x(self, number: int) -> float:
        """Where a letter begins on its line, from the left, in points."""
        raw.FPDFText_GetCharOrigin(self._page, number, self._x, self._y)
        return self._x.value

    def place(self, number: int) -> Place:
        """Where a letter begins on its line, in points."""
        raw.FPDFText_GetCharOrigin(self._page, number, self._x, self._y)
        return Place(self._x.value, self._y.value)

    def is_raised(self, number: int, line: PrintedLine) -> bool:
        """Whether a letter is smaller than the first of its line and stands above it."""
        raw.FPDFText_GetCharOrigin(self._page, number, self._x, self._y)
        return self._y.value - line.start.y > RAISED * line.size and self.size(number) < SMALLER * line.size

    def size(self, number: int) -> float:
        """The size of a letter as it is printed, in points."""
        matrix = self._matrix
        raw.FPDFText_GetMatrix(self._page, number, matrix)
        return float(raw.FPDFText_GetFontSize(self._page, number) * math.hypot(matrix.c, matrix.d))

    def gap(self, before: int, after: int) -> float:
        """The room between two letters on a line, in points."""
        one, other = self._edges(before), self._edges(after)
        return max(one[0], other[0]) - min(one[1], other[1])

    def _edges(self, number: int) -> tuple[float, float]:
        left, right, bottom, top = (ctypes.c_double() for _ in range(4))
        raw.FPDFText_GetCharBox(self._page, number, left, right, bottom, top)
        return left.value, right.value


def num_units(text: str) -> int:
    """The length of a text in UTF-16."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
