"""One page of a PDF as an image, with the places of its letters; or as a cover, for a width of 0."""

import base64
import io
import math
from array import array
from collections.abc import Iterator
from typing import BinaryIO

import pypdfium2
import pypdfium2.raw as raw
from PIL import Image

from app.documents.archive import Refused
from app.documents.messages import Message, PageDrawn
from app.documents.metadata import COVER_SIZE, thumbnail

MAX_HEIGHT = 4_000  # pixels
MAX_PIXELS = 9_000_000  # A4, and a little more, at the greatest width
MAX_LETTERS = 60_000  # ten times those of a newspaper's page; of more none is marked
FEW_COLOURS = 8_192  # a page of words and drawings has fewer, photographs and scans have more
JPEG_QUALITY = 88


def read(stream: BinaryIO, index: str, num_pages: str, width: str) -> Iterator[Message]:
    """The image of a page, `width` pixels wide unless that is too much.

    Args:
        num_pages: how many the file has; where PDFium finds others, its page would be another one. Not for a cover.
    Raises:
        Refused: the file has another number of pages.
    """
    document = pypdfium2.PdfDocument(stream)
    if int(width) and len(document) != int(num_pages):
        raise Refused("damaged")
    page = document[int(index)]
    if not int(width):
        yield cover(page)
        return
    bitmap = page.render(scale=scale(page.get_width(), page.get_height(), int(width)))
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


def cover(page: pypdfium2.PdfPage) -> PageDrawn:
    """A page as small as covers are shown; drawn larger first, so that its letters look like letters."""
    most = 2 * min(COVER_SIZE[0] / page.get_width(), COVER_SIZE[1] / page.get_height())
    url = thumbnail(page.render(scale=most).to_pil().convert("RGB"))
    return PageDrawn(kind="drawn", image=url, media="", width=0, height=0, letters="", boxes=[])


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
