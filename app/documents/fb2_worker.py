"""The process that parses FB2 books: `python -m app.documents.fb2_worker FILE MEMORY_BYTES CPU_SECONDS`.

It prints one JSON object a line: Opened, one PageRead with the whole text, Done; or Failed.
"""

import sys
from collections.abc import Iterator
from typing import BinaryIO
from xml.parsers import expat

from app.documents.archive import MAX_TOTAL_BYTES, Refused
from app.documents.elements import with_notes
from app.documents.fb2 import Book
from app.documents.messages import Message, whole
from app.documents.parsing_worker import refusing, serve
from app.documents.strict_xml import feed

MALFORMED = (expat.ExpatError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@refusing
def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file."""
    encoded = stream.read(MAX_TOTAL_BYTES + 1)
    if len(encoded) > MAX_TOTAL_BYTES:
        raise Refused("oversized")
    book = Book()
    feed(encoded, book)
    text, headings = book.marked()
    yield from whole(
        book.whole_title, with_notes(text, book.notes), headings, has_image=book.has_image, damaged=book.lacks_notes
    )


if __name__ == "__main__":
    serve(read, MALFORMED, sys.argv[1:])
