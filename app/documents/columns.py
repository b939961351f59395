"""Columns whose lines come across the page, left piece, right piece, are read one after the other.

Pure functions on the pieces of printed lines. Most files draw one column after the other; of those that do not, only
prose is put in order: a torn table is worse than mixed columns. A picture has no order, so its columns need only room.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from operator import ne
from statistics import median

from app.documents.printed import LAST_LETTER, Lines, PrintedLine, rows_of

CLUSTER = 3.0  # points: pieces that begin nearer to each other begin at one edge
MOST_GUTTERS = 3  # that are tried
MIN_CHANGES, MIN_CHANGES_SCANNED = 10, 7  # from one side of a gutter to the other and back
MIN_ROWS = 5  # of a column
BACK_UP = 1.5  # times the size: what is drawn higher than that begins something else
FULL = 0.82  # of a column's width: a line of prose that does not end a paragraph is longer
FULL_SHARE = 0.5  # of the lines of a column of prose
RUNS_ON = 0.3  # share of a column's lines that begin with a small letter, where letters have two cases
MIN_LETTERS = 25  # of the middle line of a column of prose, and half as many in Chinese
MIN_LINES_SCANNED = 4  # in each of two columns
MOST_ACROSS = 0.4  # share of a picture's lines that may run across both columns: titles, wide tables
MIN_COLUMN = 0.2  # of the width of both: a narrower strip holds numbers or bullets


def by_columns(lines: Lines, *, scanned: bool = False, depth: int = 3) -> list[PrintedLine]:
    """The pieces; where both sides of a gutter are columns, one side after the other.

    Args:
        lines: as drawn, upright.
        scanned: they were found on a picture, and come row by row.
        depth: how often a column may be parted again.
    """
    least = MIN_CHANGES_SCANNED if scanned else MIN_CHANGES
    tried = gutters(lines, least) if depth else []
    if scanned:
        across = {gutter: sum(crosses(line, gutter) for line in lines) for gutter in tried}
        tried = sorted(
            (gutter for gutter in tried if across[gutter] <= MOST_ACROSS * len(lines)), key=across.__getitem__
        )
    for gutter in tried:
        if num_changes(lines, gutter) < least:
            continue
        ordered: list[PrintedLine] = []
        for region in regions(lines, gutter):
            sides = (
                [line for line in region if not is_right(line, gutter)],
                [line for line in region if is_right(line, gutter)],
            )
            are_columns = are_wide(*sides) if scanned else all(map(is_prose, sides))
            if num_changes(region, gutter) >= least and are_columns:
                runs_left = 2 * sum(line.start.x > line.end.x for line in region) > len(region)
                for side in sides[::-1] if runs_left else sides:
                    ordered += by_columns(side, scanned=scanned, depth=depth - 1)
            else:
                ordered += region
        if ordered != lines:
            return ordered
    return list(lines)


def gutters(lines: Lines, num_changes: int) -> list[float]:
    """Where the right side may begin: the edges at which most of those pieces begin that follow one to their left."""
    edges = Counter(
        round(max(line.left, before.left) / CLUSTER)
        for before, line in pairwise(lines)
        if line.left > before.right or before.left > line.right
    )
    near = {edge: edges[edge - 1] + edges[edge] + edges[edge + 1] for edge in edges}
    best = sorted(near, key=lambda edge: -near[edge])[:MOST_GUTTERS]
    return [(edge - 1.5) * CLUSTER for edge in best if near[edge] >= num_changes // 2]


def is_right(line: PrintedLine, gutter: float) -> bool:
    """Whether a piece begins to the right of a gutter."""
    return line.left >= gutter


def crosses(line: PrintedLine, gutter: float) -> bool:
    """Whether a piece stands on both sides of a gutter."""
    return line.left < gutter < line.right - LAST_LETTER * line.size


def regions(lines: Lines, gutter: float) -> Iterator[list[PrintedLine]]:
    """The pieces, parted where one crosses the gutter and where the file goes back up."""
    held: list[PrintedLine] = []
    crossed = False  # by the last of them
    for line in lines:
        crossing = crosses(line, gutter)
        if held and (crossing or crossed or line.start.y > held[-1].start.y + BACK_UP * line.size):
            yield held
            held = []
        held.append(line)
        crossed = crossing
    yield held


def num_changes(region: Lines, gutter: float) -> int:
    """How often a region goes from one side of the gutter to the other."""
    sides = [line.left >= gutter for line in region]
    return sum(map(ne, sides, sides[1:]))


def are_wide(left: Lines, right: Lines) -> bool:
    """Whether two sides of a picture, between which no line runs, are columns: of some lines and width."""
    if min(len(left), len(right)) < MIN_LINES_SCANNED:
        return False
    width = max(line.right for line in right) - min(line.left for line in left)
    return all(median(line.right - line.left for line in side) >= MIN_COLUMN * width for side in (left, right))


def is_prose(lines: Lines) -> bool:
    """Whether the lines of a column are mostly full and run on from one to the next."""
    rows = rows_of(lines)
    if len(rows) < MIN_ROWS:
        return False
    texts = [" ".join(line.text.strip() for line in row) for row in rows]
    edges = [max(line.right for line in row) for row in rows]
    edge, left = max(edges), min(line.left for line in lines)
    full = sum(right - left > FULL * (edge - left) for right in edges) / len(rows)
    letters = "".join(texts)
    cased = sum(letter.isupper() or letter.islower() for letter in letters) > len(letters) / 2
    if median(map(len, texts)) < (MIN_LETTERS if cased else MIN_LETTERS / 2):
        return False
    if sum(map(str.isalpha, letters)) < 0.6 * len(letters):  # figures
        return False
    runs_on = sum(text[:1].islower() for text in texts) / len(rows)
    return full >= FULL_SHARE and (runs_on >= RUNS_ON or not cased)
