"""What a file says of itself: authors, language, cover. All of it is hostile text, or a hostile picture.

The parsing processes find it (`opened`), and a document gets what is left after the limits here.
"""

import base64
import io
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_TITLE, MAX_TAG = 200, 35  # characters; of a language
MAX_AUTHORS, MAX_AUTHOR = 20, 100  # characters of one
JOINERS = "\u200c\u200d"  # belong to words in Persian and Indic scripts
COVER_FORMATS = ("JPEG", "PNG", "WEBP")
MAX_COVER_BYTES, MAX_COVER_PIXELS = 8_000_000, 50_000_000  # of the picture in the file
COVER_SIZE = (200, 280)  # pixels, shown at half of that
MAX_COVER_URL = 60_000  # characters
COVER_START = "data:image/jpeg;base64,"


def clean_cover(url: str) -> str:
    """A data URL of a small JPEG; "" for anything else."""
    return url if url.startswith(COVER_START) and len(url) <= MAX_COVER_URL else ""


def clean_authors(names: Iterable[str]) -> tuple[str, ...]:
    """Names on one line each, without control characters, in order, none twice."""
    found: dict[str, None] = {}
    for name in names:
        plain = "".join(char for char in " ".join(name.split()) if char.isprintable() or char in JOINERS)
        if plain.strip(" .,;-"):
            found[plain[:MAX_AUTHOR].strip()] = None
    return tuple(found)[:MAX_AUTHORS]


def authors_in(stated: str) -> list[str]:
    """The names in one that a file states for all."""
    return [name for name in stated.split(";") if name.strip()][:MAX_AUTHORS]


def byline(authors: tuple[str, ...], most: int = 2) -> str:
    """The authors on a short line; "" if there are none."""
    if not authors:
        return ""
    more = f" and {len(authors) - most} more" if len(authors) > most else ""
    return f"by {', '.join(authors[:most])}{more}"


def cover_url(picture: bytes) -> str:
    """A thumbnail as a data URL, drawn anew from the pixels; "" if it is no picture, or a huge one.

    Runs in a parsing process only: decoders have a history.
    """
    from PIL import Image

    with suppress(Exception):  # whatever a decoder raises
        if len(picture) <= MAX_COVER_BYTES:
            with Image.open(io.BytesIO(picture), formats=COVER_FORMATS) as image:
                if image.width * image.height <= MAX_COVER_PIXELS:
                    image.draft("RGB", COVER_SIZE)
                    return thumbnail(image.convert("RGB"))
    return ""


def thumbnail(image: "Image") -> str:
    """A picture as a data URL of a small JPEG; "" if it is blank, which tells nothing."""
    packed = io.BytesIO()
    image.thumbnail(COVER_SIZE)
    image.save(packed, "JPEG", quality=75, optimize=True)
    return "" if image.getcolors(1) else clean_cover(COVER_START + base64.b64encode(packed.getvalue()).decode())
