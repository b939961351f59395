"""ZIP files: a page for each file, with its bytes in Base64 as its text.

What is no text for certain is not unpacked, and marked as an image; a file that is refused has the reason.
"""

import mimetypes
import os
from base64 import b64encode
from collections.abc import Iterator
from typing import BinaryIO

from app.documents.archive import MAX_TOTAL_BYTES, Archive, BadEntry, Refused, RefusedEntry, most_text
from app.documents.messages import Message, Opened, page_read
from app.documents.natural_order import is_hidden, natural

MAX_FILES = 500
MAX_UNPACKED_BYTES = 200_000_000  # of all files


def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file."""
    size = stream.seek(0, os.SEEK_END)
    archive = Archive(stream, MAX_TOTAL_BYTES, min(MAX_UNPACKED_BYTES, most_text(size)))
    names = sorted((name for name in archive.names if not is_hidden(name)), key=natural)
    if len(names) > MAX_FILES:
        raise Refused("oversized")
    yield Opened(kind="opened", title="", labels=names, outline=[])
    for name in names:
        no_text = (mimetypes.guess_type(name)[0] or "").startswith(("audio/", "font/", "image/", "video/"))
        try:
            text = "" if no_text else b64encode(archive.read(name)).decode("ascii")
        except BadEntry:
            yield page_read(damaged=True)
        except RefusedEntry as error:
            yield {**page_read(damaged=True), "refused": error.reason}
        else:
            yield page_read(text, has_image=no_text)
