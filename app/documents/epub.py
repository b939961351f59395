"""EPUB to Document: joins the sections that the limited worker process has read, and cuts the text into pages.

An EPUB has no pages of its own. Each section of its reading order begins a page; long ones are cut as plain text is.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from app.documents.document import Document, Extracting, make_pages, stem_of
from app.documents.errors import DamagedDocument, EmptyDocument, ScannedDocument
from app.documents.marked_chapters import marked_chapters
from app.documents.messages import Opened, PageRead
from app.documents.metadata import about
from app.documents.parsing import LIMITS, Parser, ParsingLimits, parse
from app.documents.pdf import MAX_TITLE
from app.documents.plain import page_starts
from app.documents.quality import FEW_LETTERS, garbled, num_letters, ranges

EPUB = Parser("app.documents.epub_worker", "an EPUB")
BETWEEN = "\n\n"  # sections
COVER = 0  # index of the section that may be only an image


class Joined(NamedTuple):
    """One text, with the offset of each page and of each section, including those without text."""

    text: str
    page_starts: list[int]
    section_starts: list[int]


def extract_epub(file: Path, name: str, limits: ParsingLimits = LIMITS) -> Iterator[Extracting | Document]:
    """Read an EPUB; see `readers.extract_document`."""
    opened, sections = yield from parse(EPUB, file, name, limits)
    yield to_document(name, stem_of(name), opened, sections)


def to_document(name: str, stem: str, opened: Opened, sections: Sequence[PageRead]) -> Document:
    """Join the sections to one text.

    Raises:
        DocumentError: there are no sections, or they have no text.
    """
    if sections and all(section["damaged"] for section in sections):
        raise DamagedDocument(name, "is damaged: none of its sections can be read")
    pictures = [
        index
        for index, section in enumerate(sections)
        if section["has_image"] and num_letters([section["text"]]) < FEW_LETTERS
    ]
    letters = num_letters(section["text"] for section in sections)
    if len(pictures) > len(sections) / 2 and letters < FEW_LETTERS * len(sections):
        raise ScannedDocument(name, len(sections))
    text, starts, section_starts = join([section["text"] for section in sections])
    if not text.strip():
        raise EmptyDocument(f"{name} holds no text.", hint="Choose a file with text in it.")
    damaged = [index for index, section in enumerate(sections) if section["damaged"]]
    plates = [index for index in pictures if index != COVER]
    flaws = ((plates, "Only images, which are not read"), (damaged, "Missing or damaged, so that text is lost"))
    return Document(
        name=name,
        title=" ".join(opened["title"].split())[:MAX_TITLE] or stem,
        format="epub",
        text=text,
        pages=make_pages(starts, len(text)),
        has_own_pages=False,
        warnings=(
            *(f"{flaw}: sections {ranges(indices)}." for indices, flaw in flaws if indices),
            *garbled(text, starts),
        ),
        chapters=marked_chapters(text, starts, opened, sections, section_starts),
        **about(opened),
    )


def join(sections: Sequence[str]) -> Joined:
    """Join all sections that have text."""
    last = max((index for index, section in enumerate(sections) if section.strip()), default=-1)
    pieces, starts, section_starts, length = list[str](), list[int](), list[int](), 0
    for index, section in enumerate(sections):
        section_starts.append(length)
        if not section.strip():
            continue
        piece = section if index == last else section + BETWEEN
        starts += [length + start for start in page_starts(piece)]
        pieces.append(piece)
        length += len(piece)
    return Joined("".join(pieces), starts, section_starts)
