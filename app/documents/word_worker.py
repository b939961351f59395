"""The process that parses Word files: `python -m app.documents.word_worker FILE MEMORY_BYTES CPU_SECONDS`.

It prints one JSON object a line: Opened, one PageRead with the whole text, Done; or Failed.
"""

import posixpath
import sys
from collections.abc import Iterator, Mapping
from typing import BinaryIO
from xml.etree import ElementTree
from xml.parsers import expat

from app.documents.archive import MAX_TOTAL_BYTES, Archive, BadEntry, Refused
from app.documents.messages import Done, Failed, Message, Opened, PageRead
from app.documents.metadata import MAX_AUTHORS
from app.documents.numbering import read_numbering
from app.documents.package import find, texts_of
from app.documents.parsing_worker import serve
from app.documents.strict_xml import feed, parse_xml
from app.documents.word import Body, read_styles

MALFORMED = (
    expat.ExpatError, ArithmeticError, AssertionError, AttributeError, BadEntry, LookupError, OSError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip
NOTE_PARTS = {"footnote": "footnotes", "endnote": "endnotes"}
NOTES_TITLE = "Notes"


def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file."""
    try:
        archive = Archive(stream, MAX_TOTAL_BYTES)  # a long book is one entry
        yield from read_word(archive)
    except Refused as refused:
        yield Failed(kind="failed", reason="password" if refused.reason == "protected" else refused.reason)


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
    yield Opened(
        kind="opened",
        title=next(iter([*stated["title"], body.title])),
        labels=["1"],
        outline=[],
        authors=[name for names in stated["creator"] for name in names.split(";")][:MAX_AUTHORS],
        language=next(iter(stated["language"]), ""),
    )
    yield PageRead(
        kind="page",
        text=text + notes,
        has_image=body.has_image,
        damaged=body.refers_elsewhere or not is_complete,
        headings=headings,
    )
    yield Done(kind="done")


def read_notes(archive: Archive, parts: Mapping[str, str], body: Body) -> tuple[str, bool]:
    """The text of all notes that the body calls, by their numbers; and whether none is missing."""
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
    written = "\n\n".join(["", NOTES_TITLE, *notes]) if notes else ""
    return written, all(text is not None for _, text in found)


def related(archive: Archive, part: str) -> dict[str, str]:
    """The parts a part refers to, by the last word of the relation's type; `part` "": those of the archive itself."""
    folder, name = posixpath.split(part)
    root = optional(archive, posixpath.join(folder, "_rels", f"{name}.rels"))
    parts: dict[str, str] = {}
    for relation in () if root is None else root.iter("Relationship"):
        target = relation.get("Target", "")
        found = find(archive, "" if target.startswith("/") else folder, target.lstrip("/"))
        if found and relation.get("TargetMode") != "External":
            parts.setdefault(posixpath.basename(relation.get("Type", "")), found)
    return parts


def optional(archive: Archive, name: str | None) -> ElementTree.Element | None:
    """The root of an optional part."""
    try:
        return parse_xml(archive.read(name)) if name else None
    except (BadEntry, expat.ExpatError, ValueError, LookupError):
        return None


if __name__ == "__main__":
    serve(read, MALFORMED, sys.argv[1:])
