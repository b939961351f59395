"""Printed lines and where they stand on the paper, for all rules of a page's layout; and those found on a picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

SAME_LINE = 0.4  # of the size of the larger letters: a smaller step up or down is no new line
LAST_LETTER = 0.5  # of the size: about how wide the last letter of a line is
Corner = tuple[float, float]  # x to the right, y downwards, in pixels
USUAL_SIZE = 0.25  # letters that differ less from the page's usual ones are as large: boxes are not exact
LONG = 5.0  # times its height: a line that long shows how the page is turned
MOST_SKEW = 10.0  # degrees; lines that stand more askew are no lines of the text


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


# -------------------- found on a picture


class Found(NamedTuple):
    """A line that was recognised, and its corners from the upper left one clockwise."""

    text: str
    corners: Sequence[Corner]


def printed_lines(found: Sequence[Found], points_per_pixel: float) -> list[PrintedLine]:
    """The lines from top to bottom, those at one height from left to right, in points."""
    angle = skew(found)
    lines = [straight(line, angle, points_per_pixel) for line in found]
    usual = median(line.size for line in lines) if lines else 0.0
    lines = [replace(line, size=usual) if abs(line.size - usual) < USUAL_SIZE * usual else line for line in lines]
    rows: list[list[PrintedLine]] = []
    for line in sorted(lines, key=downwards):
        if rows and rows[-1][0].start.y - line.start.y < SAME_LINE * min(line.size, rows[-1][0].size):
            rows[-1].append(line)
        else:
            rows.append([line])
    return [line for row in rows for line in sorted(row, key=lambda line: line.left)]


def straight(line: Found, angle: float, points_per_pixel: float) -> PrintedLine:
    """A line on the page set straight, as a PDF would have it: where its first and its last letter begin, y upwards."""
    across, down = (points_per_pixel * part for part in (math.cos(angle), math.sin(angle)))
    xs = [x * across + y * down for x, y in line.corners]
    ys = [y * across - x * down for x, y in line.corners]
    left, right, middle = min(xs), max(xs), sum(ys) / len(ys)
    last = right - (right - left) / max(len(line.text), 1)
    height = max((ys[2] + ys[3] - ys[0] - ys[1]) / 2, points_per_pixel)
    return PrintedLine(line.text, Place(left, -middle), Place(last, -middle), height)


def skew(found: Sequence[Found]) -> float:
    """The angle of the lines of a page, in radians."""
    angles = []
    for _, ((x0, y0), (x1, y1), _, (x3, y3)) in found:
        if math.hypot(x1 - x0, y1 - y0) > LONG * math.hypot(x3 - x0, y3 - y0):
            angles.append(math.atan2(y1 - y0, x1 - x0))
    angle = median(angles) if angles else 0.0
    return angle if abs(angle) < math.radians(MOST_SKEW) else 0.0
