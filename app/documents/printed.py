"""Printed lines and where they stand on the paper, for all rules of a page's layout."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

SAME_LINE = 0.4  # of the size of the larger letters: a smaller step up or down is no new line
LAST_LETTER = 0.5  # of the size: about how wide the last letter of a line is


class Place(NamedTuple):
    """A point on the paper, in points; y grows upwards."""

    x: float
    y: float


@dataclass(slots=True)  # not frozen, which takes three times as long to make
class PrintedLine:
    """Letters on one line, or a piece of it that stands apart from the rest. Nothing changes it."""

    text: str
    start: Place  # of the first letter
    end: Place  # where the last letter begins
    size: float  # of the first letter, in points
    left: float = field(init=False)  # where it begins, seen from the left
    right: float = field(init=False)  # about where it ends

    def __post_init__(self) -> None:
        one, other = self.start.x, self.end.x
        self.left, self.right = (one, other) if one < other else (other, one)
        self.right += LAST_LETTER * self.size


Lines = Sequence[PrintedLine]


def downwards(line: PrintedLine) -> float:
    """What grows down the page."""
    return -line.start.y


def is_level(before: PrintedLine, line: PrintedLine) -> bool:
    """Whether two pieces stand at one height."""
    y, most = line.start.y, SAME_LINE * max(before.size, line.size)
    return abs(before.start.y - y) < most or abs(before.end.y - y) < most


def rows_of(lines: Lines) -> list[list[PrintedLine]]:
    """The pieces that are drawn one after the other at one height."""
    rows: list[list[PrintedLine]] = []
    for line in lines:
        if rows and is_level(rows[-1][-1], line):
            rows[-1].append(line)
        else:
            rows.append([line])
    return rows
