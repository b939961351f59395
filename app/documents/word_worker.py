"""The process that parses Word files: `python -m app.documents.word_worker FILE MEMORY_BYTES CPU_SECONDS`.

It prints one JSON object a line: Opened, one PageRead with the whole text, Done; or Failed.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import BinaryIO
from xml.parsers import expat

from app.documents.archive import MAX_TOTAL_BYTES, Archive, BadEntry, Refused
from app.documents.elements import with_notes
from app.documents.messages import Message, whole
from app.documents.metadata import MAX_AUTHORS
from app.documents.numbering import read_numbering
from app.documents.package import texts_of
from app.documents.parsing_worker import refusing, serve
from app.documents.relations import MALFORMED, optional, related
from app.documents.strict_xml import feed
from app.documents.word import Body, read_styles

NOTE_PARTS = {"footnote": "footnotes", "endnote": "endnotes"}


@refusing
def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file."""
    return read_word(Archive(stream, MAX_TOTAL_BYTES))  # a long book is one entry


def read_word(archive: Archive) -> Iterator[Message]:
    """The messages of an open archive.

    Raises:
        Refused: there is no Word document, or a hostile one.
    """
    package = related(archive, "")
    main = package.get("officeDocument", "word/document.xml")
    if main not in archive:
        raise Refused("no container")
    parts = related(archive, main)
    body = Body(
        read_styles(optional(archive, parts.get("styles"))), read_numbering(optional(archive, parts.get("numbering")))
    )
    feed(archive.read(main), body)
    text, headings = body.marked()
    notes, is_complete = read_notes(archive, parts, body)
    properties = optional(archive, package.get("core-properties"))
    stated = {tag: [] if properties is None else texts_of(properties, tag) for tag in ("title", "creator", "language")}
    yield from whole(
        next(filter(None, [*stated["title"], body.title]), ""),
        with_notes(text, notes),
        headings,
        has_image=body.has_image,
        damaged=body.refers_elsewhere or not is_complete,
        authors=[name for names in stated["creator"] for name in names.split(";")][:MAX_AUTHORS],
        language=next(iter(stated["language"]), ""),
    )


def read_notes(archive: Archive, parts: Mapping[str, str], body: Body) -> tuple[list[str], bool]:
    """The texts of all notes that the body calls, by their numbers; and whether none is missing."""
    texts: dict[tuple[str, str], str] = {}
    for kind in {call.kind for call in body.calls}:
        part = Body({}, read_numbering(None), NOTE_PARTS[kind])
        try:
            feed(archive.read(parts.get(NOTE_PARTS[kind], "")), part)
        except (BadEntry, expat.ExpatError):
            continue
        texts |= {(kind, note_id): text for note_id, text in part.notes.items()}
    found = [(number, texts.get(call)) for number, call in enumerate(body.calls, 1)]
    notes = [f"[{number}] {text}" for number, text in found if text]
    return notes, all(text is not None for _, text in found)


if __name__ == "__main__":
    serve(read, MALFORMED, sys.argv[1:])
