"""One page of a PDF as an image, drawn by a limited process, and where words stand on it."""

import threading
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.documents.errors import DocumentError, ParsingLimitReached
from app.documents.metadata import MAX_COVER_URL, clean_cover
from app.documents.page_marks import Box, locate, rectangles
from app.documents.parsing import ParsingLimits, worker_messages

DRAWING = ParsingLimits(memory_bytes=1 << 30, cpu_seconds=10, silence_seconds=20, chars=1_000_000)
DRAWING_COVER = ParsingLimits(memory_bytes=1 << 29, cpu_seconds=3, silence_seconds=20, chars=MAX_COVER_URL)
MOST_AT_ONCE = 2
WIDTHS = (300, 2_400)  # pixels
_turns = threading.BoundedSemaphore(MOST_AT_ONCE)  # of its own: a page does not wait until dropped books are read


class PageNotDrawn(DocumentError):
    """A page of which there is no image; its text is there."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, hint="Its text is shown.")


@dataclass(frozen=True, slots=True)
class PageImage:
    """An image for a browser, and the letters on it."""

    image: str  # base64
    media: str  # its media type
    width: int  # pixels
    height: int
    letters: str
    boxes: "array[int]"  # left, top, right, bottom of each letter, in pixels

    @property
    def num_bytes(self) -> int:
        """About what it takes in memory."""
        return len(self.image) + len(self.letters) + self.boxes.itemsize * len(self.boxes)

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
    more = [str(number - 1), str(num_pages), str(clamped)]
    drawn = None
    try:
        for message in worker_messages("drawing", file, name, limits, more, _turns):
            if message and message["kind"] == "drawn":
                drawn = message
    except ParsingLimitReached as error:
        raise PageNotDrawn("This page cannot be drawn: it takes too long or too much memory.") from error
    except DocumentError as error:
        raise PageNotDrawn("This page cannot be drawn: the file is damaged there.") from error
    assert drawn, "the worker was done before it had drawn the page"
    width, height, boxes = drawn["width"], drawn["height"], array("l", drawn["boxes"])
    return PageImage(drawn["image"], drawn["media"], width, height, drawn["letters"], boxes)


def draw_cover(file: Path, name: str, limits: ParsingLimits = DRAWING_COVER) -> str:
    """The first page as a small JPEG, a data URL; "" where it cannot be drawn within the limits, or is blank."""
    url = ""
    with suppress(DocumentError):
        for message in worker_messages("drawing", file, name, limits, ["0", "0", "0"], _turns):
            if message and message["kind"] == "drawn":
                url = message["image"]
    return clean_cover(url)
