"""EPUB to Document: the sections that the limited worker process read become one text, cut into pages by size.

An EPUB has no pages of its own. Each section of its reading order begins a page; long ones are cut as plain text is.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from app.documents.document import Document, Extracting, make_pages
from app.documents.errors import DamagedDocument, EmptyDocument, ScannedDocument
from app.documents.messages import Opened, PageRead
from app.documents.parsing import LIMITS, Parser, ParsingLimits, parse
from app.documents.pdf import FEW_LETTERS, MAX_TITLE, num_letters, ranges
from app.documents.plain import page_starts

EPUB = Parser("app.documents.epub_worker", "an EPUB")
BETWEEN = "\n\n"  # sections
COVER = 0  # index of the section that may be nothing but an image


def extract_epub(file: Path, name: str, limits: ParsingLimits = LIMITS) -> Iterator[Extracting | Document]:
    """Read an EPUB; see `readers.extract_document`."""
    opened, sections = yield from parse(EPUB, file, name, limits)
    yield to_document(name, file.stem, opened, sections)


def to_document(name: str, stem: str, opened: Opened, sections: Sequence[PageRead]) -> Document:
    """One text from the sections.

    Raises:
        DocumentError: there are no sections, or no text in them.
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
    text, starts = join([section["text"] for section in sections])
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
        warnings=tuple(f"{flaw}: sections {ranges(indices)}." for indices, flaw in flaws if indices),
    )


def join(sections: Sequence[str]) -> tuple[str, list[int]]:
    """One text of all sections that have any, and the offset of each page."""
    filled = [section for section in sections if section.strip()]
    pieces, starts, length = list[str](), list[int](), 0
    for number, section in enumerate(filled, 1):
        piece = section if number == len(filled) else section + BETWEEN
        starts += [length + start for start in page_starts(piece)]
        pieces.append(piece)
        length += len(piece)
    return "".join(pieces), starts
