"""Web pages: one text."""

from collections.abc import Iterator
from typing import BinaryIO

from app.documents.archive import MAX_ENTRY_BYTES, Refused, read_most
from app.documents.charset import decode_markup
from app.documents.messages import Message, whole
from app.documents.xhtml import read_markup


def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file."""
    markup = decode_markup(read_most(stream, MAX_ENTRY_BYTES))
    if markup is None:
        raise Refused("damaged")
    text, has_image, headings, title, authors, language = read_markup(markup, as_web_page=True)
    yield from whole(title, text, headings, has_image=has_image, authors=authors, language=language)
