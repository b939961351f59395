"""The text of a PDF's pages that are pictures, recognised by an engine, at low priority."""

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO

import psutil
import pypdfium2

from app.documents.archive import Refused
from app.documents.layout import page_text
from app.documents.messages import Message, Opened, page_read
from app.documents.printed import Found, printed_lines

if TYPE_CHECKING:
    import numpy as np

    Recognise = Callable[[np.ndarray[Any, Any]], Sequence[Found]]

DPI = 200
MAX_PIXELS = 8_000_000  # two pages of A4 at that resolution; a larger page is drawn smaller
MAX_SIDE = 4_000  # pixels
MAX_PAGE = 2_000_000  # characters
MOST_THREADS = 4  # more gain little
LOW_PRIORITY = 10


def lower_priority() -> None:
    """Let other programs, and the answer that this one may be writing, have the processor first."""
    with suppress(psutil.Error):
        if sys.platform == "win32":
            psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)
        else:
            psutil.Process().nice(LOW_PRIORITY)


def num_threads() -> int:
    """Half of the processor's cores, so that an answer finds the others free."""
    return min(MOST_THREADS, max(1, (os.cpu_count() or 1) // 2))


def read(stream: BinaryIO, engine: str, pages: str) -> Iterator[Message]:
    """The recognised pages, as they are done.

    Args:
        engine: a module with `load`.
        pages: their indices, with commas between.
    Raises:
        Refused: the engine is missing or does not start.
    """
    lower_priority()
    try:
        recognise: Recognise = import_module(engine).load(num_threads())
    except ImportError:
        raise Refused("no engine") from None
    except Exception:  # of the engine: a model that does not load, no memory
        raise Refused("broken engine") from None
    yield Opened(kind="opened", title="", labels=[], outline=[])
    document = pypdfium2.PdfDocument(stream)
    for index in map(int, pages.split(",")):
        try:
            text, damaged = text_of(document[index], recognise), False
        except Exception:  # of the engine, on a picture that nobody has tried it on
            text, damaged = "", True
        yield {**page_read(text[:MAX_PAGE], has_image=True, damaged=damaged), "recognised": True}


def text_of(page: pypdfium2.PdfPage, recognise: "Recognise") -> str:
    """The recognised text of a page."""
    scale = scale_of(*page.get_size())
    try:
        picture = page.render(scale=scale, may_draw_forms=False).to_numpy()[:, :, :3]
        return page_text(printed_lines(recognise(picture), 1 / scale), scanned=True)
    finally:
        page.close()


def scale_of(width: float, height: float) -> float:
    """Pixels for each point, for a page of that size in points."""
    return min(DPI / 72, math.sqrt(MAX_PIXELS / (width * height)), MAX_SIDE / max(width, height))
