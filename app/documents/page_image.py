"""One page of a PDF as an image, drawn by a limited process, and where a part of its text stands on it.

The text was made from the paper's letters: lines were joined, hyphens and spaces changed, headers dropped. None of this
changes the order of letters and digits, so both are compared by these alone; what is not certain is not marked.
"""

import threading
import unicodedata
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from app.documents.errors import DocumentError, ParsingLimitReached
from app.documents.messages import PageDrawn
from app.documents.metadata import MAX_COVER_URL, clean_cover
from app.documents.parsing import ParsingLimits, worker_messages
from core.errors import CoreError

DRAWING = ParsingLimits(memory_bytes=1 << 30, cpu_seconds=10, silence_seconds=20, chars=1_000_000)
DRAWING_COVER = ParsingLimits(memory_bytes=1 << 29, cpu_seconds=3, silence_seconds=20, chars=MAX_COVER_URL)
MOST_AT_ONCE = 2
WIDTHS = (300, 2_400)  # pixels
_turns = threading.BoundedSemaphore(MOST_AT_ONCE)  # of its own: a page does not wait until dropped books are read
AROUND = (0, 8, 64, 512, 1 << 20)  # letters to either side
SAME_LINE = 0.5  # of the lower letter: how much of it stands beside the other
WIDEST_GAP = 3.0  # times the letters' height, between two words of a line
MAX_RECTANGLES = 400


class PageNotDrawn(CoreError):
    """A page of which there is no image; its text is there."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, hint="Its text is shown.")


class Box(NamedTuple):
    """A rectangle, in pixels from the top left."""

    left: int
    top: int
    right: int
    bottom: int


@dataclass(frozen=True, slots=True)
class PageImage:
    """An image for a browser, and the letters on it."""

    image: str  # base64
    media: str  # its media type
    width: int  # pixels
    height: int
    letters: str
    boxes: "array[int]"  # left, top, right, bottom of each letter, in pixels

    def marks(self, page_text: str, spans: Sequence[tuple[int, int]]) -> list[list[Box]]:
        """Where parts, characters [start, end) of the page's text, stand; none of a part if that is not certain."""
        found = locate(self.letters, page_text, spans)
        return [rectangles(self.letters, self.boxes, one) if one else [] for one in found]


def draw_page(
    file: Path, name: str, number: int, num_pages: int, width: int, limits: ParsingLimits = DRAWING
) -> PageImage:
    """Draw a page.

    Args:
        number: of the page, from 1.
        width: in pixels; clamped to WIDTHS, and less for pages that are very high.

    Raises:
        PageNotDrawn: it cannot be drawn, or not within the limits.
    """
    clamped = min(max(width, WIDTHS[0]), WIDTHS[1])
    try:
        page = drawn(file, name, [number - 1, num_pages, clamped], limits)
    except ParsingLimitReached as error:
        raise PageNotDrawn("This page cannot be drawn: it takes too long or too much memory.") from error
    except DocumentError as error:
        raise PageNotDrawn("This page cannot be drawn: the file is damaged there.") from error
    boxes = array("l", page["boxes"])
    return PageImage(page["image"], page["media"], page["width"], page["height"], page["letters"], boxes)


def draw_cover(file: Path, name: str, limits: ParsingLimits = DRAWING_COVER) -> str:
    """The first page as a small JPEG, a data URL; "" where it cannot be drawn within the limits, or is blank."""
    try:
        return clean_cover(drawn(file, name, [0, 0, 0], limits)["image"])
    except DocumentError:
        return ""


def drawn(file: Path, name: str, how: Sequence[int], limits: ParsingLimits) -> PageDrawn:
    """What the process that draws a page sends: see `parsers/drawing.py`. Raises a DocumentError."""
    messages = worker_messages("drawing", file, name, limits, list(map(str, how)), _turns)
    (page,) = [message for message in messages if message and message["kind"] == "drawn"]
    return page


# -------------------- where words stand


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
    """Where letters [first, last) of a page begin on the paper: the only place of them, or of them and some around."""
    for around in AROUND:
        for before, after in ((around, around), (around, 0), (0, around)):
            since = max(0, first - before)
            part = page[since : last + after]
            at = paper.find(part)
            if at >= 0 and paper.find(part, at + 1) < 0:
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


def rectangles(letters: str, boxes: Sequence[int], found: range) -> list[Box]:
    """The boxes of some letters, those beside each other on a line joined."""
    joined: list[Box] = []
    for index in found:
        box = Box(*boxes[4 * index : 4 * index + 4])
        if letters[index].isspace() or box.left >= box.right or box.top >= box.bottom:
            continue
        if joined and is_beside(joined[-1], box):
            last = joined.pop()
            box = Box(*map(min, last[:2], box[:2]), *map(max, last[2:], box[2:]))
        joined.append(box)
    return joined if len(joined) <= MAX_RECTANGLES else []


def is_beside(box: Box, other: Box) -> bool:
    """Whether two letters, or words, stand beside each other on one line."""
    heights = box.bottom - box.top, other.bottom - other.top
    shared = min(box.bottom, other.bottom) - max(box.top, other.top)
    gap = max(box.left, other.left) - min(box.right, other.right)
    return shared >= SAME_LINE * min(heights) and gap <= WIDEST_GAP * max(heights)
