"""Builds text from marked-up pieces: words, borders, list items, table rows and headings.

Independent of the markup: `xhtml.py` and `elements.py` say what begins and ends, this module turns it into lines.
"""

import re
from typing import NamedTuple

from app.documents.messages import Heading
from app.documents.prose import CELL_BORDER, LETTER_TABLE, NO_CONTROLS, SOFT_HYPHEN, composed

LONGEST_PREFIX = 3_000  # characters: a thousand empty cells in succession
DEEPEST = 9  # level of a list that is told by its indent
# Mark headings until the text is cleaned, which moves characters. Noncharacters, so they never occur in a text.
BEGIN, END = "\ufdd0", "\ufdd1"
NO_MARKS = {ord(BEGIN): None, ord(END): None}
INDENT = re.compile("[ \t\r\n]*([\xa0\u2002\u2003]{2,})")  # as programs and verse have it after a line break
MARK = re.compile(f"[{BEGIN}{END}]")
POWER = re.compile(r"[\d+\-\u2212–/]")  # in letters above the line: more than an ordinal (19th) or a sign of its own
PLAIN_POWER = re.compile(r"[+\-\u2212–]?\w+[+\-\u2212–]?|\(.*")


class Marked(NamedTuple):
    """A text, and its headings in order."""

    text: str
    headings: list[Heading]


class Lines:
    """Words separated by one space, and borders of one or two line ends."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._gap = 0  # number of line ends before the next word
        self._space = False  # whether a space precedes the next word
        self._prefix = ""  # begins the next line or cell
        self._joined = False  # the next word follows the prefix directly, whatever begins in between
        self._mark = ""  # precedes the first word of a heading
        self.in_heading = False
        self._levels: list[int] = []  # of the headings so far
        self._broken = False  # the next word follows a line break
        self._tables = [[0, 0]]  # of each open table: rows so far, cells of the row so far; the first is none

    def marked(self) -> Marked:
        """The whole text in plain letters, with its headings."""
        self.end_of_heading()
        text, starts, ends = unmark(clean("".join(self._pieces)))
        headings = [
            Heading(start, end, level, " ".join(text[start:end].split()))
            for level, start, end in zip(self._levels, starts, ends, strict=True)
        ]
        return Marked(text, [heading for heading in headings if heading.title])

    def border(self, num_lines: int) -> None:
        """A block begins or ends here."""
        if not self._joined:
            self._gap, self._space = max(self._gap, num_lines), False

    def line_break(self) -> None:
        """End a line; two line ends make an empty line."""
        if not self._joined:
            self._gap, self._space, self._broken = min(2, self._gap + 1), False, True

    def table(self) -> None:
        """Begin a table, which may stand in a cell of another."""
        self._tables.append([0, 0])

    def row(self) -> None:
        """Begin the next row of the table."""
        num_rows, _ = self._tables[-1]
        self._gap = 1 if num_rows and len(self._tables) > 1 else 2
        self._space, self._prefix, self._joined = False, "", True
        self._tables[-1] = [num_rows + 1, 0]

    def cell(self) -> None:
        """Begin the next cell, on the row's line."""
        self._tables[-1][1] += 1
        if self._tables[-1][1] == 1:
            return
        begins_line = self._joined and self._gap > 0  # the cells before are empty
        if not begins_line:
            self._gap = 0
        if len(self._prefix) < LONGEST_PREFIX:
            self._prefix += CELL_BORDER if self._prefix or not begins_line else CELL_BORDER.lstrip()
        self._space, self._joined = False, True

    def end_of_table(self) -> None:
        """End a table."""
        self.end_of_prefixed()
        del self._tables[max(1, len(self._tables) - 1) :]

    def item(self, level: int, marker: str) -> None:
        """Begin an item of a list, at a level from 0. One at the beginning of a cell stays behind the cell's border."""
        self.border(1)
        border = self._prefix if self._prefix.endswith(CELL_BORDER.lstrip()) else ""
        self._prefix, self._joined = border + "  " * min(level, DEEPEST) + (f"{marker} " if marker else ""), True

    def end_of_prefixed(self) -> None:
        """End what the prefix was meant for, even if it had no word."""
        self._prefix, self._joined = "", False

    def heading(self, level: int, number: str = "") -> None:
        """Begin a heading, and end an open one: headings do not nest."""
        self.end_of_heading()
        self._mark, self.in_heading = BEGIN, True
        self._levels.append(level)
        self.words(f"{number} " if number else "")

    def end_of_heading(self) -> None:
        """End the heading, if one is open; a heading without words is dropped."""
        if not self.in_heading:
            return
        if self._mark:
            self._levels.pop()
        else:
            self._pieces[-1] += END
        self._mark, self.in_heading = "", False

    def words(self, text: str) -> None:
        """Add running text: any white space becomes one space."""
        words = " ".join(text.translate(NO_MARKS).split())
        if words:
            indent = INDENT.match(text) if self._broken else None
            self._space |= text[0].isspace()
            self._put(" " * len(indent[1]) + words if indent else words)
        if text and text[-1].isspace():
            self._space = True

    def raised(self, text: str, *, in_link: bool = False) -> None:
        """Add letters above the line: a link to a note as [1], a power as ^6, others, as in 19th, as they are."""
        bare, inner = text.strip(), self._pieces and not (self._gap or self._space or self._prefix)
        before = self._pieces[-1][-1:] if inner and bare == text.lstrip() else ""
        if in_link and bare.isdecimal() and before != "[":
            text = text.replace(bare, f"[{bare}]")
        elif (before.isalnum() or before == ")") and POWER.search(bare):
            text = text.replace(bare, f"^{bare}" if PLAIN_POWER.fullmatch(bare) else f"^({bare})")
        self.words(text)

    def verbatim(self, text: str) -> None:
        """Add text whose line ends and spaces are significant."""
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
        self._broken = False


def unmark(text: str) -> tuple[str, list[int], list[int]]:
    """A text without the marks around headings, and the offsets where headings begin and end."""
    places: dict[str, list[int]] = {BEGIN: [], END: []}
    for number, mark in enumerate(MARK.finditer(text)):
        places[mark.group()].append(mark.start() - number)
    return MARK.sub("", text), places[BEGIN], places[END]


def clean(text: str) -> str:
    """Plain letters: no ligatures, no invisible hyphens, no control characters."""
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    letters = text.translate(LETTER_TABLE).replace(SOFT_HYPHEN, "").translate(NO_CONTROLS)
    return composed(letters).strip("\n")
