"""The process that parses RTF files: `python -m app.documents.rtf_worker FILE MEMORY_BYTES CPU_SECONDS`.

It prints one JSON object a line: Opened, one PageRead with the whole text, Done; or Failed.
"""

import sys
from collections.abc import Iterator
from typing import BinaryIO

from app.documents.archive import Refused
from app.documents.elements import with_notes
from app.documents.lines import clean
from app.documents.messages import Message, whole
from app.documents.parsing_worker import refusing, serve
from app.documents.rtf import Rtf

MALFORMED = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
MAX_BYTES = 200_000_000  # pictures are written as digits


@refusing
def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file."""
    encoded = stream.read(MAX_BYTES + 1)
    if len(encoded) > MAX_BYTES:
        raise Refused("oversized")
    rtf = Rtf(encoded[max(0, encoded.find(b"{\\rtf")) :].decode("latin-1"))
    text, headings = rtf.marked()
    yield from whole(clean(rtf.title), with_notes(text, rtf.notes), headings, has_image=rtf.has_image)


if __name__ == "__main__":
    serve(read, MALFORMED, sys.argv[1:])
