"""The process that draws one page of a PDF: `... FILE MEMORY_BYTES CPU_SECONDS INDEX NUM_PAGES WIDTH`.

A width of 0 asks for a cover: the page as a data URL, without letters. It prints PageDrawn and Done, or Failed, to
`page_image.py`, which bounds it as every parsing process.
"""

import base64
import io
import math
import sys
from array import array
from collections.abc import Iterator
from typing import BinaryIO

import pypdfium2
import pypdfium2.raw as raw
from PIL import Image

from app.documents.messages import Done, Failed, Message, PageDrawn
from app.documents.metadata import COVER_SIZE, cover_url
from app.documents.parsing_worker import serve

MALFORMED = (pypdfium2.PdfiumError, ArithmeticError, LookupError, OSError, TypeError, ValueError)
MAX_HEIGHT = 4_000  # pixels
MAX_PIXELS = 9_000_000  # A4, and a little more, at the greatest width
MAX_LETTERS = 60_000  # ten times those of a newspaper's page; of more none is marked
FEW_COLOURS = 8_192  # a page of words and drawings has fewer, photographs and scans have more
JPEG_QUALITY = 88


def main(argv: list[str]) -> None:
    """Send the image of one page."""
    index, num_pages, width = map(int, argv[3:])
    serve(lambda stream: draw(stream, index, num_pages, width), MALFORMED, argv[:3])


def draw(stream: BinaryIO, index: int, num_pages: int, width: int) -> Iterator[Message]:
    """The image of a page, `width` pixels wide unless that is too much.

    Args:
        num_pages: how many the file has; where PDFium finds others, its page would be another one. Not for a cover.
    """
    document = pypdfium2.PdfDocument(stream)
    if width and len(document) != num_pages:
        yield Failed(kind="failed", reason="damaged")
        return
    page = document[index]
    if not width:
        yield cover(page)
        yield Done(kind="done")
        return
    bitmap = page.render(scale=scale(page.get_width(), page.get_height(), width))
    media, packed = pack(bitmap.to_pil().convert("RGB"))
    letters, boxes = places(page, bitmap)
    yield PageDrawn(
        kind="drawn",
        image=base64.b64encode(packed).decode(),
        media=media,
        width=bitmap.width,
        height=bitmap.height,
        letters=letters,
        boxes=boxes.tolist(),
    )
    yield Done(kind="done")


def cover(page: pypdfium2.PdfPage) -> PageDrawn:
    """A page as small as covers are shown; drawn larger first, so that its letters look like letters."""
    most = 2 * min(COVER_SIZE[0] / page.get_width(), COVER_SIZE[1] / page.get_height())
    drawn, packed = page.render(scale=most).to_pil().convert("RGB"), io.BytesIO()
    drawn.save(packed, "PNG", compress_level=1)
    url = cover_url(packed.getvalue())
    return PageDrawn(kind="drawn", image=url, media="", width=drawn.width, height=drawn.height, letters="", boxes=[])


def scale(across: float, down: float, width: int) -> float:
    """Pixels per point for a page of that size.

    Raises:
        ValueError: the page has no size.
    """
    if not (0 < across < math.inf and 0 < down < math.inf):
        raise ValueError(f"a page of {across} x {down} points")
    most = min(width / across, MAX_HEIGHT / down, math.sqrt(MAX_PIXELS / (across * down)))
    return most * (1 - 1e-6)  # sizes are rounded up


def pack(image: Image.Image) -> tuple[str, bytes]:
    """An image's media type and file: every pixel as it is for words and drawings, JPEG for photographs and scans."""
    packed = io.BytesIO()
    if image.getcolors(FEW_COLOURS):
        image.save(packed, "WEBP", lossless=True, method=2)
        return "image/webp", packed.getvalue()
    image.save(packed, "JPEG", quality=JPEG_QUALITY)
    return "image/jpeg", packed.getvalue()


def places(page: pypdfium2.PdfPage, bitmap: pypdfium2.PdfBitmap) -> "tuple[str, array[int]]":
    """The letters of a page as PDFium orders them, and the box of each, in pixels; nothing if there are too many."""
    text = page.get_textpage()
    count = text.count_chars()
    if count > MAX_LETTERS:
        return "", array("l")
    to_pixels = bitmap.get_posconv(page).to_bitmap
    letters, boxes = [], array("l")
    for index in range(count):
        left, bottom, right, top = text.get_charbox(index)
        (x, y), (other_x, other_y) = to_pixels(left, top), to_pixels(right, bottom)
        letters.append(chr(raw.FPDFText_GetUnicode(text, index)))
        boxes.extend((min(x, other_x), min(y, other_y), max(x, other_x), max(y, other_y)))
    return "".join(letters), boxes


if __name__ == "__main__":
    main(sys.argv[1:])
