"""The process that recognises the text of pages: `ocr_worker FILE MEMORY_BYTES CPU_SECONDS ENGINE PAGE,PAGE,...`.

ENGINE is a module with `load`; pages are indices. It prints Opened when the engine is loaded, one PageRead for each,
then Done; or Failed. It runs at low priority, so that an answer that is being written keeps its speed.
"""

import importlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO

import psutil
import pypdfium2

from app.documents.layout import page_text
from app.documents.messages import Done, Failed, Message, Opened, PageRead
from app.documents.parsing_worker import serve
from app.documents.pdf_worker import MALFORMED, MAX_PAGE
from app.documents.scan_layout import Found, printed_lines

if TYPE_CHECKING:
    import numpy as np

    Recognise = Callable[[np.ndarray[Any, Any]], Sequence[Found]]

DPI = 200
MAX_PIXELS = 8_000_000  # two pages of A4 at that resolution; a larger page is drawn smaller
MAX_SIDE = 4_000  # pixels
MOST_THREADS = 4  # more gain little
LOW_PRIORITY = 10


def main(argv: Sequence[str]) -> None:
    """Send the messages of one file."""
    lower_priority()
    engine, pages = argv[3], [int(index) for index in argv[4].split(",")]
    load: Callable[..., Any] = importlib.import_module(engine).load
    serve(lambda stream: read(stream, lambda: load(num_threads()), pages), MALFORMED, argv[:3])


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


def read(stream: BinaryIO, load: "Callable[[], Recognise]", pages: Sequence[int]) -> Iterator[Message]:
    """The recognised pages, as they are done."""
    try:
        recognise = load()
    except ImportError:
        yield Failed(kind="failed", reason="no engine")
        return
    except Exception:  # of the engine: a model that does not load, no memory
        yield Failed(kind="failed", reason="broken engine")
        return
    yield Opened(kind="opened", title="", labels=[], outline=[])
    document = pypdfium2.PdfDocument(stream)
    for index in pages:
        try:
            text, damaged = text_of(document[index], recognise), False
        except Exception:  # of the engine, on a picture that nobody has tried it on
            text, damaged = "", True
        yield PageRead(kind="page", text=text[:MAX_PAGE], has_image=True, damaged=damaged, headings=[], recognised=True)
    yield Done(kind="done")


def text_of(page: pypdfium2.PdfPage, recognise: "Recognise") -> str:
    """The recognised text of a page."""
    scale = scale_of(*page.get_size())
    try:
        picture = page.render(scale=scale, may_draw_forms=False).to_numpy()[:, :, :3]
        return page_text(printed_lines(recognise(picture), 1 / scale))
    finally:
        page.close()


def scale_of(width: float, height: float) -> float:
    """Pixels for each point, for a page of that size in points."""
    return min(DPI / 72, math.sqrt(MAX_PIXELS / (width * height)), MAX_SIDE / max(width, height))


if __name__ == "__main__":
    main(sys.argv[1:])
