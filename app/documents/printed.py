"""Printed lines and where they stand on the paper, for all rules of a page's layout."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

SAME_LINE = 0.4  # of the size of the larger letters: a smaller step up or down is no new line
LAST_LETTER = 0.5  # of the size: about how wide the last letter of a line is


class Place(NamedTuple):
    """A point on the paper, in points; y grows upwards."""

    x: float
    y: float


class PrintedLine(NamedTuple):
    """Letters on one line, or a piece of it that stands apart from the rest."""

    text: str
    start: Place  # of the first letter
    end: Place  # where the last letter begins
    size: float  # of the first letter, in points


Lines = Sequence[PrintedLine]


def left_edge(line: PrintedLine) -> float:
    """Where a piece begins, seen from the left."""
    return min(line.start.x, line.end.x)


def right_edge(line: PrintedLine) -> float:
    """About where a piece ends, seen from the left."""
    return max(line.start.x, line.end.x) + LAST_LETTER * line.size


def is_level(before: PrintedLine, line: PrintedLine) -> bool:
    """Whether two pieces stand at one height."""
    step = min(abs(before.start.y - line.start.y), abs(before.end.y - line.start.y))
    return step < SAME_LINE * max(before.size, line.size)


def rows_of(lines: Lines) -> list[list[PrintedLine]]:
    """The pieces that are drawn one after the other at one height."""
    rows: list[list[PrintedLine]] = []
    for line in lines:
        if rows and is_level(rows[-1][-1], line):
            rows[-1].append(line)
        else:
            rows.append([line])
    return rows


def usual_size(lines: Lines) -> float:
    """The size of most letters."""
    sizes: Counter[float] = Counter()
    for line in lines:
        sizes[round(2 * line.size) / 2] += len(line.text)
    return sizes.most_common(1)[0][0] if sizes else 0.0
