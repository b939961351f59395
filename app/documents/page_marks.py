"""Where a part of a page's text stands on the paper. Pure functions.

The text was made from the paper's letters: lines were joined, hyphens and spaces changed, headers dropped. None of this
changes the order of letters and digits, so both are compared by these alone. A part that the paper has several times is
told apart by what stands around it; where that does not decide, nothing is marked.
"""

import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

AROUND = (0, 8, 64, 512, 1 << 20)  # letters to either side
SAME_LINE = 0.5  # of the lower letter: how much of it stands beside the other
WIDEST_GAP = 3.0  # times the letters' height, between two words of a line
MAX_RECTANGLES = 400


class Box(NamedTuple):
    """A rectangle, in pixels from the top left."""

    left: int
    top: int
    right: int
    bottom: int


def locate(letters: str, text: str, spans: Sequence[tuple[int, int]]) -> list[range | None]:
    """The letters on the paper that characters [start, end) of the text are made of; None: not certain.

    Args:
        letters: of the paper, in PDFium's order.
        text: of the whole page.
        spans: the characters, for each part.
    """
    paper, places = bare(letters)
    page, origins = bare(text)
    found: list[range | None] = []
    for start, end in spans:
        first, last = bisect_left(origins, start), bisect_left(origins, end)
        at = place(page, first, last, paper) if first < last else None
        found.append(None if at is None else range(places[at], places[at + last - first - 1] + 1))
    return found


def place(page: str, first: int, last: int, paper: str) -> int | None:
    """Where letters [first, last) of a page begin on the paper."""
    for around in AROUND:
        for before, after in ((around, around), (around, 0), (0, around)):
            since = max(0, first - before)
            at = only_place(page[since : last + after], paper)
            if at is not None:
                return at + first - since
    return None


def bare(text: str) -> tuple[str, list[int]]:
    """The letters and digits of a text without marks and ligatures, and the index from which each comes."""
    pairs = [
        (char, index)
        for index, sign in enumerate(text)
        for char in (sign if sign.isascii() else unicodedata.normalize("NFKD", sign))
        if char.isalnum()
    ]
    return "".join(char for char, _ in pairs), [index for _, index in pairs]


def only_place(part: str, whole: str) -> int | None:
    """Where a text has a part; None: nowhere, or in several places."""
    at = whole.find(part)
    return at if at >= 0 and whole.find(part, at + 1) < 0 else None


def rectangles(letters: str, boxes: Sequence[int], found: range) -> list[Box]:
    """The boxes of some letters, those beside each other on a line joined."""
    joined: list[Box] = []
    for index in found:
        box = Box(*boxes[4 * index : 4 * index + 4])
        if letters[index].isspace() or box.left >= box.right or box.top >= box.bottom:
            continue
        if joined and is_beside(joined[-1], box):
            last = joined.pop()
            box = Box(
                min(last.left, box.left),
                min(last.top, box.top),
                max(last.right, box.right),
                max(last.bottom, box.bottom),
            )
        joined.append(box)
    return joined if len(joined) <= MAX_RECTANGLES else []


def is_beside(box: Box, other: Box) -> bool:
    """Whether two letters, or words, stand beside each other on one line."""
    heights = box.bottom - box.top, other.bottom - other.top
    shared = min(box.bottom, other.bottom) - max(box.top, other.top)
    gap = max(box.left, other.left) - min(box.right, other.right)
    return shared >= SAME_LINE * min(heights) and gap <= WIDEST_GAP * max(heights)
