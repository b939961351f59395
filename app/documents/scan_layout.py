"""From lines that were recognised on a picture to lines in the order of reading, as a PDF would draw them.

Pure functions. A picture has no order of its own, so columns are found here; `layout.py` makes the text of it.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from statistics import median
from typing import NamedTuple

from app.documents.printed import Place, PrintedLine

Corner = tuple[float, float]  # x to the right, y downwards, in pixels

USUAL_SIZE = 0.25  # letters that differ less from the page's usual ones are as large: boxes are not exact
LONG = 5.0  # times its height: a line that long shows how the page is turned
MOST_SKEW = 10.0  # degrees; lines that stand more askew are no lines of the text
SAME_ROW = 0.4  # of the height: boxes whose middles differ less stand side by side
MIN_LINES = 4  # in each of two columns
GUTTER = 0.3  # of the height of a line, between two columns: boxes are wider than their letters
MIN_COLUMN = 0.2  # of the width of both: a narrower strip holds numbers or bullets
MOST_ACROSS = 0.4  # share of the lines that may run across both columns: titles, wide tables


class Found(NamedTuple):
    """A line that was recognised, and its corners from the upper left one clockwise."""

    text: str
    corners: Sequence[Corner]


class Box(NamedTuple):
    """A line on a page that was set straight; y grows downwards."""

    text: str
    left: float
    right: float
    middle: float  # y of its middle
    height: float


def printed_lines(found: Sequence[Found], points_per_pixel: float) -> list[PrintedLine]:
    """The lines in the order of reading, in points."""
    if not found:
        return []
    boxes = straight(found)
    usual = median(box.height for box in boxes)
    boxes = [box._replace(height=usual) if abs(box.height - usual) < USUAL_SIZE * usual else box for box in boxes]
    return [as_printed(box, points_per_pixel) for box in in_order(boxes)]


def as_printed(box: Box, points_per_pixel: float) -> PrintedLine:
    """A line as a PDF would have it: where its first and its last letter begin, y upwards."""
    last = box.right - (box.right - box.left) / max(len(box.text), 1)
    left, last, middle, size = (value * points_per_pixel for value in (box.left, last, -box.middle, box.height))
    return PrintedLine(box.text, Place(left, middle), Place(last, middle), size)


def straight(found: Sequence[Found]) -> list[Box]:
    """The boxes of a page, turned so that its lines are level."""
    angle = skew(found)
    across, down = math.cos(angle), math.sin(angle)
    boxes = []
    for text, corners in found:
        xs = [x * across + y * down for x, y in corners]
        ys = [y * across - x * down for x, y in corners]
        middle, height = sum(ys) / len(ys), (ys[2] + ys[3] - ys[0] - ys[1]) / 2
        boxes.append(Box(text, min(xs), max(xs), middle, max(height, 1.0)))
    return boxes


def skew(found: Sequence[Found]) -> float:
    """The angle of the lines of a page, in radians."""
    angles = []
    for _, ((x0, y0), (x1, y1), _, (x3, y3)) in found:
        if math.hypot(x1 - x0, y1 - y0) > LONG * math.hypot(x3 - x0, y3 - y0):
            angles.append(math.atan2(y1 - y0, x1 - x0))
    angle = median(angles) if angles else 0.0
    return angle if abs(angle) < math.radians(MOST_SKEW) else 0.0


def in_order(boxes: Sequence[Box]) -> list[Box]:
    """The boxes column by column; what runs across the columns parts them."""
    gutter = find_gutter(boxes)
    if gutter is None:
        return rows(boxes)
    ordered: list[Box] = []
    by_height = sorted(boxes, key=lambda box: box.middle)
    for across, group in groupby(by_height, key=lambda box: runs_across(box, gutter)):
        stretch = list(group)
        if across:
            ordered += rows(stretch)
            continue
        for side in (True, False):
            ordered += in_order([box for box in stretch if (box.right <= gutter) is side])
    return ordered


def rows(boxes: Sequence[Box]) -> list[Box]:
    """The boxes from top to bottom, those at one height from left to right."""
    ordered: list[list[Box]] = []
    for box in sorted(boxes, key=lambda box: box.middle):
        if ordered and box.middle - ordered[-1][0].middle < SAME_ROW * min(box.height, ordered[-1][0].height):
            ordered[-1].append(box)
        else:
            ordered.append([box])
    return [box for row in ordered for box in sorted(row, key=lambda box: box.left)]


def find_gutter(boxes: Sequence[Box]) -> float | None:
    """The x between two columns; None if there is one column."""
    if len(boxes) < 2 * MIN_LINES:
        return None
    usual = median(box.height for box in boxes)
    left, right = min(box.left for box in boxes), max(box.right for box in boxes)
    best: tuple[int, float] | None = None
    for edge in sorted({box.right for box in boxes}):
        x = edge + GUTTER * usual / 2
        across = sum(runs_across(box, x) for box in boxes)
        sides = [box for box in boxes if box.right <= x], [box for box in boxes if box.left >= x]
        if across > MOST_ACROSS * len(boxes) or min(map(len, sides)) < MIN_LINES:
            continue
        free = min(box.left for box in sides[1]) - max(box.right for box in sides[0])
        widths = [median(box.right - box.left for box in side) for side in sides]
        if free < GUTTER * usual or min(widths) < MIN_COLUMN * (right - left):
            continue
        if best is None or across < best[0]:
            best = across, x
    return best[1] if best else None


def runs_across(box: Box, x: float) -> bool:
    """Whether a box lies on both sides of an x."""
    return box.left < x < box.right
