"""Text as it is put together from marked-up pieces: words, borders, list items, table rows, and where headings stand.

Knows nothing of the markup: `xhtml.py` and `word.py` say what begins and ends, this says how it looks as lines.
"""

import re
from typing import NamedTuple

from app.documents.messages import Heading
from app.documents.plain import NO_CONTROLS
from app.documents.prose import LETTER_TABLE, SOFT_HYPHEN, composed

CELL_BORDER = " | "
# Around headings until the text is clean, as cleaning moves characters. Noncharacters: they never occur in a text.
BEGIN, END = "\ufdd0", "\ufdd1"
NO_MARKS = {ord(BEGIN): None, ord(END): None}
MARK = re.compile(f"[{BEGIN}{END}]")


class Marked(NamedTuple):
    """A text, and its headings in order."""

    text: str
    headings: list[Heading]


class Lines:
    """Words with one space between, and borders of one or two line ends."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._gap = 0  # line ends before the next word
        self._space = False  # a space before the next word
        self._prefix = ""  # what begins the next line or cell
        self._joined = False  # the next word stands beside the prefix, whatever begins in between
        self._mark = ""  # what stands before the next word of a heading that begins
        self._in_heading = False
        self._levels: list[int] = []  # of the headings so far

    def marked(self) -> Marked:
        """All of it in plain letters, with its headings."""
        self.end_of_heading()
        text, starts, ends = unmark(clean("".join(self._pieces)))
        headings = [
            Heading(title=" ".join(text[start:end].split()), level=level, char_start=start, char_end=end)
            for level, start, end in zip(self._levels, starts, ends, strict=True)
        ]
        return Marked(text, [heading for heading in headings if heading["title"]])

    def border(self, num_lines: int) -> None:
        """A block begins or ends here."""
        if not self._joined:
            self._gap, self._space = max(self._gap, num_lines), False

    def line_break(self) -> None:
        """A line ends; two of them make an empty line."""
        if not self._joined:
            self._gap, self._space = min(2, self._gap + 1), False

    def row(self, num_lines: int) -> None:
        """A row of a table begins."""
        self._gap, self._space, self._prefix, self._joined = num_lines, False, "", True

    def cell(self) -> None:
        """Another cell of the row begins, on the row's line."""
        begins_line = self._joined and self._gap > 0  # the cells before it are empty
        if not begins_line:
            self._gap = 0
        self._prefix += CELL_BORDER if self._prefix or not begins_line else CELL_BORDER.lstrip()
        self._space, self._joined = False, True

    def item(self, marker: str) -> None:
        """An item of a list begins."""
        self.border(1)
        self._prefix, self._joined = marker, True

    def end_of_prefixed(self) -> None:
        """What the prefix was meant for ends, perhaps without a word."""
        self._prefix, self._joined = "", False

    def heading(self, level: int) -> None:
        """A heading begins. One that is open ends: headings do not nest."""
        self.end_of_heading()
        self._mark, self._in_heading = BEGIN, True
        self._levels.append(level)

    def end_of_heading(self) -> None:
        """The heading ends, if there is one; without a word it was none."""
        if not self._in_heading:
            return
        if self._mark:
            self._levels.pop()
        else:
            self._pieces[-1] += END
        self._mark, self._in_heading = "", False

    def words(self, text: str) -> None:
        """Running text: any white space is one space."""
        words = " ".join(text.translate(NO_MARKS).split())
        if words:
            self._space |= text[0].isspace()
            self._put(words)
        if text and text[-1].isspace():
            self._space = True

    def verbatim(self, text: str) -> None:
        """Text whose line ends and spaces mean something."""
        if text:
            self._put(text.translate(NO_MARKS))

    def _put(self, text: str) -> None:
        while self._gap and self._pieces and not self._pieces[-1].rstrip():
            self._pieces.pop()
        if self._gap and self._pieces:
            self._pieces += [self._pieces.pop().rstrip(), "\n" * self._gap]
        elif self._space and self._pieces and not self._prefix:
            self._pieces.append(" ")
        self._pieces += [self._prefix, self._mark + text]
        self._gap, self._space, self._prefix, self._joined, self._mark = 0, False, "", False, ""


class Unmarked(NamedTuple):
    """A text without marks, and the offsets in it at which they stood."""

    text: str
    starts: list[int]
    ends: list[int]


def unmark(text: str) -> Unmarked:
    """Take the marks around headings out."""
    places: dict[str, list[int]] = {BEGIN: [], END: []}
    for number, mark in enumerate(MARK.finditer(text)):
        places[mark.group()].append(mark.start() - number)
    return Unmarked(MARK.sub("", text), places[BEGIN], places[END])


def clean(text: str) -> str:
    """Plain letters: no ligatures, no invisible hyphens, no control characters."""
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    letters = text.translate(LETTER_TABLE).replace(SOFT_HYPHEN, "").translate(NO_CONTROLS)
    return composed(letters).strip("\n")
