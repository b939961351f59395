"""Rows of tables: the cells of a row on one line, with borders between them.

A wrong border is worse than none: only rows whose cells stand in the same columns, with an empty strip between any two,
are a table, and not if they look like a list of contents, an index, code, a formula or texts side by side.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
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
MIN_FIXED = 6  # letters that show whether all are of one width
FIXED = 0.01  # of the size
LEADERS = re.compile(r"([.·] ?){3}")  # of a list of contents
PAGES = re.compile(r"[\divxlc]{1,6}([,–-]+ ?\d{1,5})*,?")  # as in an index
ROMAN = re.compile("[ivxlc]{1,6}|[IVXLC]{1,6}")
# Of an item of a list, or of a source.
LABEL = re.compile(r"[(\[]?(\d{1,4}|\w|[ivxlc]{1,5})[.):\]]?|[^\w\s]{1,2}|[\d.]+|[•–*-] .*|\[[^]]{1,20}\]")
NUMBER = re.compile(r"[($€£+\u2212–-]?\d[\d.,:/]*( ?(%|\w{1,2}))?\)?")
WORD = re.compile(r"[^\W\d_]{3}|[\u3040-\u9fff\uac00-\ud7a3]")
# A part of a formula, or of code.
FORMULA = re.compile(r"[=×·∇∂∑∏∫<>≤≥≈∈+\u2212⎛-⎳].*|.*[=+\u2212×·∇∂∑∏∫<>≤≥≈∈({;]|(/[*/]|[%#]).*")
MIN_CLEAR, MIN_WORDY = 0.6, 0.2  # of the cells: words or numbers, words
ITEM = re.compile(r"[•*]|\d{1,3}\.\s")
FULL, TEXT_WIDTH = 0.8, 15.0  # of its column, times the size: a line of text that goes on is longer than both
RUNNING = 0.2  # of the rows: as many begin in a sentence where text stands beside its labels
SENTENCE_ENDS = tuple(".!?:;")
LONG_TERM = 30  # letters, times one less than the columns: the first has shorter cells in most rows


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
    begun, edges = 0, sorted(row[0].left for row in rows if len(row) == 1)
    while begun < len(rows):
        end = begun + 1
        if len(rows[begun]) > 1:
            table = Table(rows, begun, edges)
            is_sure = table.is_sure()
            if is_sure:
                yield from table.texts()
            if is_sure or table.end - begun > MOST_TRIED_AGAIN:  # or a long page would take its length squared
                end = table.end
        begun = end


class Table:
    """The rows that stand in the columns of a first one."""

    def __init__(self, rows: Sequence[Lines], begun: int, edges: Sequence[float]) -> None:
        """Find them.

        Args:
            begun: the number of the first row, whose pieces are cells.
            edges: the left edges of the page's rows of one piece, in rising order.
        """
        self._page, self._edges = rows, edges
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
        wordy = sum(WORD.search(text) is not None for text in cells)
        clear = wordy + sum(NUMBER.fullmatch(text) is not None for text in cells)
        parted = sum(any(FORMULA.fullmatch(text) and not NUMBER.fullmatch(text) for text in row) for row in texts)
        if clear < MIN_CLEAR * len(cells) or wordy < MIN_WORDY * len(cells) or 3 * parted > len(rows):
            return False
        columns = list(zip(*texts, strict=True))
        if is_list(columns) or is_fixed([piece for row in rows for cell in row[1:] for piece in cell]):
            return False
        if median(map(len, columns[0])) >= LONG_TERM * (len(columns) - 1):
            return False
        return len(columns) > 2 or not self._stands_beside_text(columns)

    def _stands_beside_text(self, columns: Sequence[Sequence[str]]) -> bool:
        """Whether the second of two columns is the page's text, with labels in the margin where it speaks of them."""
        left, right = self._columns[1]
        named = sum(term in cell for term, cell in zip(*columns, strict=True))
        items = sum(ITEM.match(cell) is not None for cell in columns[1])
        if 3 * max(named, items) > len(self._full):
            return True
        inside = [self._page[number][0].left for number in self._rows if len(self._page[number]) == 1]
        beside = bisect_left(self._edges, left + ALIGNED) - bisect_right(self._edges, left - ALIGNED)
        beside -= sum(abs(edge - left) < ALIGNED for edge in inside)
        if beside > max(len(self._full), (len(self._edges) - len(inside)) / 2):
            return True
        lines = [(number, row[1]) for number, row in self._rows.items() if row[1] and number < self.end]
        width = max(FULL * (right - left), TEXT_WIDTH * lines[0][1][0].size)
        full = set(self._full)
        running = sum(
            bool(number in full and line[0].text.strip()[:1].islower())
            and above[-1].right - above[0].left > width
            and not above[-1].text.rstrip().endswith(SENTENCE_ENDS)
            for (_, above), (number, line) in pairwise(lines)
        )
        return running > RUNNING * len(self._full)


def text_of(cell: Lines) -> str:
    """The text of a cell's pieces."""
    return " ".join(piece.text.strip() for piece in cell)


def is_list(columns: Sequence[Sequence[str]]) -> bool:
    """Whether rows are the items of a list, of an index or of contents, or numbered lines."""
    first, last = columns[0], columns[-1]
    numbers = [int(text) for text in last if text.isdecimal() and text.isascii()]
    roman = sum(ROMAN.fullmatch(text) is not None for text in last)
    rises = len(numbers) + roman > len(last) / 2 and numbers == sorted(numbers)
    labels = sum(LABEL.fullmatch(text) is not None for text in first)
    pages = sum("," in text and PAGES.fullmatch(text) is not None for text in last)
    return rises or 2 * labels > len(first) or bool(pages)


def is_fixed(cells: Lines) -> bool:
    """Whether all letters are of one width, as in code."""
    widths = [
        (cell.end.x - cell.start.x) / (len(cell.text.strip()) - 1) / cell.size
        for cell in cells
        if sum(map(str.isalpha, cell.text)) >= MIN_FIXED and cell.size
    ]
    usual = median(widths or [0.0])
    return sum(abs(width - usual) < FIXED for width in widths) > max(1, len(widths) / 2)


def are_aligned(one: Lines, other: Lines) -> bool:
    """Whether two cells begin or end at one edge, or have their middles there."""
    lefts, rights = one[0].left - other[0].left, one[-1].right - other[-1].right
    return min(abs(lefts), abs(rights), abs(lefts + rights) / 2) < ALIGNED
