"""The process that parses PowerPoint files: `python -m app.documents.pptx_worker FILE MEMORY_BYTES CPU_SECONDS`.

It prints one JSON object a line: Opened, one PageRead for each slide in order, Done; or Failed.
"""

import sys
from collections.abc import Iterator
from typing import BinaryIO
from xml.etree import ElementTree
from xml.parsers import expat

from app.documents.archive import Archive, BadEntry, Refused
from app.documents.lines import Lines
from app.documents.messages import Done, Heading, Message, Opened, PageRead
from app.documents.numbering import number_or
from app.documents.parsing_worker import refusing, serve
from app.documents.pptx import Slide
from app.documents.relations import MALFORMED, optional, related, relations
from app.documents.strict_xml import feed, whole_text

NOTES = "Notes:"  # before what the speaker says
MAX_SLIDES = 10_000
DAMAGED = (BadEntry, expat.ExpatError, ValueError, LookupError)


@refusing
def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file."""
    archive = Archive(stream)
    package = related(archive, "")
    main = package.get("officeDocument", "ppt/presentation.xml")
    root = optional(archive, main if main in archive else None)
    if root is None or root.tag != "presentation":
        raise Refused("no container")
    names = slide_names(archive, main, root)
    first = number_or(root.get("firstSlideNum"), 1)
    properties = optional(archive, package.get("core-properties"))
    titles = [] if properties is None else [whole_text(element) for element in properties.iter("title")]
    labels = [str(number) for number in range(first, first + len(names))]
    yield Opened(kind="opened", title=next(filter(None, titles), ""), labels=labels, outline=[])
    for name in names:
        yield read_slide(archive, name)
    yield Done(kind="done")


def slide_names(archive: Archive, main: str, root: ElementTree.Element) -> list[str]:
    """The slides in the order in which they are shown; "": one that is missing."""
    parts = {relation.id: relation.name for relation in relations(archive, main)}
    names = [parts.get(slide.get("r:id", ""), "") for slide in root.iter("sldId")]
    if len(names) > MAX_SLIDES:
        raise Refused("oversized")
    return names


def read_slide(archive: Archive, name: str) -> PageRead:
    """The text of a slide, its diagrams and its notes; a missing or malformed one is marked as damaged.

    Raises:
        Refused: it unpacks to too much, is encrypted, or declares entities.
    """
    slide, pieces, damaged = Slide(), list[str](), False
    try:
        feed(archive.read(name), slide)
        for relation in relations(archive, name):
            if relation.kind == "diagramData":
                diagram = Slide()
                feed(archive.read(relation.name), diagram)
                pieces.append(diagram.text())
            elif relation.kind == "notesSlide":
                notes = Slide(as_notes=True)
                feed(archive.read(relation.name), notes)
                pieces.append(f"{NOTES} {notes.text()}" if notes.text() else "")
    except DAMAGED:
        damaged = True
    lines = Lines()
    if slide.title:
        lines.heading(1)
        lines.words(slide.title)
        lines.end_of_heading()
    for piece in (slide.text(), *sorted(pieces, key=lambda text: text.startswith(NOTES))):
        lines.border(2)
        lines.verbatim(piece)
    text, headings = lines.marked()
    return PageRead(
        kind="page", text=text, has_image=slide.has_image, damaged=damaged, headings=list[Heading](headings)
    )


if __name__ == "__main__":
    serve(read, MALFORMED, sys.argv[1:])
