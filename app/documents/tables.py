"""Rows of tables: the cells of a row on one line, with borders between them.

A wrong border is worse than none: only rows whose cells stand in the same columns, with an empty strip between any two,
are a table, and not if they look like a list of contents, an index, code or a formula.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from app.documents.printed import Lines, PrintedLine, is_level, rows_of
from app.documents.prose import CELL_BORDER

ALIGNED = 3.0  # points: cells of one column begin, end or have their middles nearer to each other
STRIP = 0.8  # times the size: at least as wide is what parts two columns all the way down
MIN_ROWS = 3  # that have a cell in each column
MOST_WRAPPED = 3  # rows to the next one of those: between are the further lines of some cells
MOST_COMPARED = 10  # of the full rows above: a new one is aligned with one of them
MOST_TRIED_AGAIN = 30  # rows: what is no table and no longer may hold one that begins later
ROW_STEP = 4.0  # times the size: the next row of a table is nearer
LEADERS = re.compile(r"([.·] ?){3}")  # of a list of contents
ROMAN = re.compile("[ivxlc]{1,6}|[IVXLC]{1,6}")
NUMBER = re.compile(r"[($€£+\u2212–-]?\d[\d.,:/]*( ?(%|\w{1,2}))?\)?")
WORD = re.compile(r"[^\W\d_]{3}|[\u3040-\u9fff\uac00-\ud7a3]")
# A part of a formula, or of code.
FORMULA = re.compile(r"[=×·∇∂∑∏∫<>≤≥≈∈+\u2212⎛-⎳].*|.*[=+\u2212×·∇∂∑∏∫<>≤≥≈∈({;]|(/[*/]|[%#]).*")
MIN_CLEAR = 0.6  # of the cells: words or numbers


class Column(NamedTuple):
    """From where to where the cells of a column reach, in points."""

    left: float
    right: float


def joined(lines: Sequence[PrintedLine]) -> Iterator[PrintedLine]:
    """The lines; pieces that follow each other at one height are one, the cells of a table with borders."""
    rows = [pieces for row in rows_of(lines) for pieces in to_the_right(row)]
    of_table = dict(tables(rows))
    for number, row in enumerate(rows):
        if len(row) == 1:
            yield row[0]
            continue
        texts = of_table.get(number)
        text = CELL_BORDER.join(texts) if texts else " ".join(piece.text.strip() for piece in row)
        yield replace(row[0], text=text, end=row[-1].end)


def to_the_right(row: Lines) -> Iterator[list[PrintedLine]]:
    """The pieces at one height, as far as each is drawn to the right of the one before."""
    held: list[PrintedLine] = []
    for line in row:
        if held and not (is_level(held[-1], line) and line.start.x > held[-1].end.x):
            yield held
            held = []
        held.append(line)
    yield held


def tables(rows: Sequence[Lines]) -> Iterator[tuple[int, list[str]]]:
    """The numbers of the rows of tables, and the texts of their cells; "" where a cell is empty."""
    begun = 0
    while begun < len(rows):
        end = begun + 1
        if len(rows[begun]) > 1:
            table = Table(rows, begun)
            is_sure = table.is_sure()
            if is_sure:
                yield from table.texts()
            if is_sure or table.end - begun > MOST_TRIED_AGAIN:  # or a long page would take its length squared
                end = table.end
        begun = end


class Table:
    """The rows that stand in the columns of a first one."""

    def __init__(self, rows: Sequence[Lines], begun: int) -> None:
        """Find them. `begun`: the number of the first row, whose pieces are cells."""
        self._columns = [Column(piece.left, piece.right) for piece in rows[begun]]
        self._rows = {begun: [[piece] for piece in rows[begun]]}  # by the row's number: the pieces of each cell
        self._full = [begun]
        for number in range(begun + 1, len(rows)):
            if number - self._full[-1] > MOST_WRAPPED or not self._take(number, rows[number - 1], rows[number]):
                break
        self.end = self._full[-1] + 1

    def _take(self, number: int, above: Lines, row: Lines) -> bool:
        """Add a row if it stands close below the last one, in the columns."""
        size = max(above[0].size, row[0].size)
        if not 0 < above[0].start.y - row[0].start.y < ROW_STEP * size:
            return False
        cells: list[list[PrintedLine]] = [[] for _ in self._columns]
        columns = list(self._columns)
        for piece in row:
            at = len(columns) - 1
            while at and piece.left <= columns[at].left - ALIGNED:
                at -= 1
            cells[at].append(piece)
            left, right = columns[at]
            if piece.left < left or piece.right > right:
                columns[at] = Column(min(left, piece.left), max(right, piece.right))
        if any(after.left - column.right < STRIP * size for column, after in pairwise(columns)):
            return False
        if all(cells):
            others = [self._rows[full] for full in self._full[-MOST_COMPARED:]]
            if not all(any(are_aligned(cell, other[at]) for other in others) for at, cell in enumerate(cells)):
                return False
            self._full.append(number)
        self._columns, self._rows[number] = columns, cells
        return True

    def texts(self) -> Iterator[tuple[int, list[str]]]:
        """The rows up to the last that has a cell in each column."""
        for number, cells in self._rows.items():
            if number < self.end and sum(map(bool, cells)) > 1:
                last = max(at for at, cell in enumerate(cells) if cell)
                yield number, [text_of(cell) for cell in cells[: last + 1]]

    def is_sure(self) -> bool:
        """Whether this is a table, without a doubt."""
        rows = [self._rows[number] for number in self._full]
        texts = [[text_of(cell) for cell in row] for row in rows]
        cells = [text for row in texts for text in row]
        if len(rows) < MIN_ROWS or any(map(LEADERS.search, cells)):
            return False
        clear = sum(bool(WORD.search(text) or NUMBER.fullmatch(text)) for text in cells)
        parted = sum(any(FORMULA.fullmatch(text) and not NUMBER.fullmatch(text) for text in row) for row in texts)
        return clear >= MIN_CLEAR * len(cells) and 3 * parted <= len(rows) and not is_list([row[-1] for row in texts])


def text_of(cell: Lines) -> str:
    """The text of a cell's pieces."""
    return " ".join(piece.text.strip() for piece in cell)


def is_list(last: Sequence[str]) -> bool:
    """Whether a last column has the pages of an index or of contents, or numbers of lines: numbers that rise."""
    numbers = [int(text) for text in last if text.isdecimal() and text.isascii()]
    roman = sum(ROMAN.fullmatch(text) is not None for text in last)
    return len(numbers) + roman > len(last) / 2 and numbers == sorted(numbers)


def are_aligned(one: Lines, other: Lines) -> bool:
    """Whether two cells begin or end at one edge, or have their middles there."""
    lefts, rights = one[0].left - other[0].left, one[-1].right - other[-1].right
    return min(abs(lefts), abs(rights), abs(lefts + rights) / 2) < ALIGNED
