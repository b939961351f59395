"""The process that parses OpenDocument texts: `python -m app.documents.odt_worker FILE MEMORY_BYTES CPU_SECONDS`.

It prints one JSON object a line: Opened, one PageRead with the whole text, Done; or Failed.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO
from xml.parsers import expat

from app.documents.archive import MAX_TOTAL_BYTES, Archive, BadEntry, Refused
from app.documents.elements import with_notes
from app.documents.messages import Message, whole
from app.documents.odt import Styles, Text
from app.documents.parsing_worker import refusing, serve
from app.documents.relations import MALFORMED, optional
from app.documents.strict_xml import feed, whole_text

CONTENT, STYLES, META, MANIFEST = "content.xml", "styles.xml", "meta.xml", "META-INF/manifest.xml"


@refusing
def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file."""
    archive = Archive(stream, MAX_TOTAL_BYTES)  # a long book is one entry
    manifest = optional(archive, MANIFEST)
    if manifest is not None and next(manifest.iter("encryption-data"), None) is not None:
        raise Refused("protected")
    if CONTENT not in archive:
        raise Refused("no container")
    styles = Styles()
    with suppress(BadEntry, expat.ExpatError, ValueError, LookupError):  # only numbers and titles need them
        feed(archive.read(STYLES), Text(styles))
    body = Text(styles)
    feed(archive.read(CONTENT), body)
    text, headings = body.marked()
    meta = optional(archive, META)
    titles = [] if meta is None else [whole_text(element) for element in meta.iter("title")]
    title = next(filter(None, titles), body.title)
    yield from whole(title, with_notes(text, body.notes), headings, has_image=body.has_image)


if __name__ == "__main__":
    serve(read, MALFORMED, sys.argv[1:])
