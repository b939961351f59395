"""What a file says of itself: authors, language, cover. All of it is hostile text, or a hostile picture.

The parsing processes find it (`opened`), and a document gets what is left after the limits here (`about`).
"""

import base64
import io
import struct
import zlib
from collections.abc import Iterable
from html.parser import HTMLParser
from typing import TypedDict

from app.documents.messages import Opened

MAX_TITLE = 200  # characters
MAX_AUTHORS, MAX_AUTHOR = 20, 100  # characters of one
JOINERS = "\u200c\u200d"  # belong to words in Persian and Indic scripts
COVER_FORMATS = ("JPEG", "PNG", "WEBP")
MAX_COVER_BYTES, MAX_COVER_PIXELS = 8_000_000, 50_000_000  # of the picture in the file
COVER_SIZE = (200, 280)  # pixels, shown at half of that
MAX_COVER_URL = 60_000  # characters
# What its decoders raise beside an error of pillow's own.
BAD_PICTURE = (
    ArithmeticError, EOFError, LookupError, OSError, SyntaxError, TypeError, ValueError, struct.error, zlib.error,
)  # fmt: skip
COVER_START = "data:image/jpeg;base64,"
HEAD_CHARS = 200_000  # of a web page, which say who wrote it


class About(TypedDict):
    """Some fields of a Document."""

    authors: tuple[str, ...]
    language: str
    cover: str


def about(opened: Opened) -> About:
    """The fields of a document that its file told."""
    cover = opened.get("cover", "")
    return About(
        authors=clean_authors(opened.get("authors", [])),
        language=opened.get("language", "")[:35],
        cover=cover if cover.startswith(COVER_START) and len(cover) <= MAX_COVER_URL else "",
    )


def clean_authors(names: Iterable[str]) -> tuple[str, ...]:
    """Names on one line each, without control characters, in order, none twice."""
    found: dict[str, None] = {}
    for name in names:
        plain = "".join(char for char in " ".join(name.split()) if char.isprintable() or char in JOINERS)
        if plain.strip(" .,;-"):
            found[plain[:MAX_AUTHOR].strip()] = None
    return tuple(found)[:MAX_AUTHORS]


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

    if len(picture) > MAX_COVER_BYTES:
        return ""
    try:
        with Image.open(io.BytesIO(picture), formats=COVER_FORMATS) as image:
            if image.width * image.height > MAX_COVER_PIXELS:
                return ""
            image.draft("RGB", COVER_SIZE)
            small = image.convert("RGB")
        small.thumbnail(COVER_SIZE)
        packed = io.BytesIO()
        small.save(packed, "JPEG", quality=75, optimize=True)
    except (*BAD_PICTURE, Image.DecompressionBombError):
        return ""
    if small.getcolors(1):  # a blank page tells nothing
        return ""
    url = COVER_START + base64.b64encode(packed.getvalue()).decode()
    return url if len(url) <= MAX_COVER_URL else ""


class MarkupHead(HTMLParser):
    """The authors and the language that a web page states."""

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.authors: list[str] = []
        self.language = ""
        self._over = False
        self.feed(markup[:HEAD_CHARS])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        values = {name: value or "" for name, value in attrs}
        self._over |= tag == "body"
        if tag in ("html", "body"):
            self.language = self.language or values.get("lang") or values.get("xml:lang") or ""
        elif tag == "meta" and not self._over and values.get("name", "").lower() in ("author", "dc.creator"):
            self.authors.append(values.get("content", ""))
