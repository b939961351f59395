"""The process that parses web pages: `python -m app.documents.html_worker FILE MEMORY_BYTES CPU_SECONDS`.

It prints one JSON object a line: Opened, one PageRead with the whole text, Done; or Failed.
"""

import sys
from collections.abc import Iterator
from typing import BinaryIO

from app.documents.archive import MAX_ENTRY_BYTES
from app.documents.charset import decode_markup
from app.documents.messages import Done, Failed, Message, Opened, PageRead
from app.documents.metadata import MAX_AUTHORS, MarkupHead
from app.documents.parsing_worker import serve
from app.documents.xhtml import EntitiesDeclared, read_markup

MALFORMED = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)  # from html.parser


def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file."""
    encoded = stream.read(MAX_ENTRY_BYTES + 1)
    if len(encoded) > MAX_ENTRY_BYTES:
        yield Failed(kind="failed", reason="oversized")
        return
    markup = decode_markup(encoded)
    if markup is None:
        yield Failed(kind="failed", reason="damaged")
        return
    try:
        text, has_image, headings, title = read_markup(markup, as_web_page=True)
    except EntitiesDeclared:
        yield Failed(kind="failed", reason="entities")
        return
    head = MarkupHead(markup)
    yield Opened(
        kind="opened", title=title, labels=["1"], outline=[], authors=head.authors[:MAX_AUTHORS], language=head.language
    )
    yield PageRead(kind="page", text=text, has_image=has_image, damaged=False, headings=headings)
    yield Done(kind="done")


if __name__ == "__main__":
    serve(read, MALFORMED, sys.argv[1:])
