"""Rows of tables: the cells of a row on one line, with borders between them."""

import re
from collections.abc import Iterator, Sequence
from statistics import median

from app.documents.printed import Lines, PrintedLine, is_level, left_edge, right_edge, rows_of
from app.documents.prose import CELL_BORDER

ALIGNED = 3.0  # points: cells of one column begin, end or have their middles nearer to each other
MIN_ROWS = 3
MOST_WRAPPED = 3  # rows to the next one of several cells: between are the further lines of one cell
ROW_STEP = 4.0  # times the size: the next row of a table is nearer
MIN_FIXED = 6  # letters that show whether all are of one width
FIXED = 0.01  # of the size
LEADERS = re.compile(r"([.·] ?){4}")  # of a list of contents
LABEL = re.compile(r"[(\[]?(\d{1,4}|[A-Za-z]|[ivxlc]{1,5})[.):\]]?|[^\w\s]{1,2}|[\d.]+")
NUMBER = re.compile(r"\(?[\dA-Za-z]{0,2}[\d.–-]+[a-z]?\)?|[ivxlc]+")  # of a page in a list of contents, of a formula


def joined(lines: Sequence[PrintedLine]) -> Iterator[PrintedLine]:
    """The lines; pieces that follow each other at one height are one, the cells of a table with borders."""
    rows = [cells for row in rows_of(lines) for cells in to_the_right(row)]
    of_table = rows_of_tables(rows)
    for number, row in enumerate(rows):
        border = CELL_BORDER if number in of_table else " "
        text = border.join(cell.text.strip() for cell in row) if len(row) > 1 else row[0].text
        yield row[0]._replace(text=text, end=row[-1].end)


def to_the_right(row: Lines) -> Iterator[list[PrintedLine]]:
    """The pieces at one height, as far as each is drawn to the right of the one before."""
    held: list[PrintedLine] = []
    for line in row:
        if held and not (is_level(held[-1], line) and line.start.x > held[-1].end.x):
            yield held
            held = []
        held.append(line)
    yield held


def rows_of_tables(rows: Sequence[Lines]) -> set[int]:
    """The numbers of the rows that belong to tables."""
    of_table, run = set[int](), list[int]()
    for number in [*(index for index, row in enumerate(rows) if has_cells(row)), len(rows)]:
        row = rows[number] if number < len(rows) else []
        if run and not (number - run[-1] <= MOST_WRAPPED and goes_on(rows[run[-1]], row)):
            cells = [cell for index in run for cell in rows[index][1:]]  # the first may begin with the line's number
            if len(run) >= MIN_ROWS and not is_fixed(cells):
                of_table.update(run)
            run = []
        run.append(number)
    return of_table


def has_cells(row: Lines) -> bool:
    """Whether the pieces of a row may be cells, and not a label and its item, or a title and its page."""
    if any(LEADERS.search(cell.text) for cell in row):
        return False
    if len(row) == 2 and (LABEL.fullmatch(row[0].text.strip()) or NUMBER.fullmatch(row[1].text.strip())):
        return False
    return len(row) > 1


def is_fixed(cells: Lines) -> bool:
    """Whether all letters are of one width, as in code."""
    widths = [
        (cell.end.x - cell.start.x) / (len(cell.text.strip()) - 1) / cell.size
        for cell in cells
        if sum(map(str.isalpha, cell.text)) >= MIN_FIXED and cell.size
    ]
    usual = median(widths or [0.0])
    return sum(abs(width - usual) < FIXED for width in widths) > len(widths) / 2


def goes_on(above: Lines, row: Lines) -> bool:
    """Whether a row stands close below another, and a cell of it below one of that row's."""
    if not row:
        return False
    step = above[0].start.y - row[0].start.y
    if not 0 < step < ROW_STEP * max(above[0].size, row[0].size):
        return False
    return any(are_aligned(cell, other) for cell in above[1:] for other in row[1:])


def are_aligned(one: PrintedLine, other: PrintedLine) -> bool:
    """Whether two cells begin or end at one edge, or have their middles there."""
    lefts, rights = left_edge(one) - left_edge(other), right_edge(one) - right_edge(other)
    return min(abs(lefts), abs(rights), abs(lefts + rights) / 2) < ALIGNED
