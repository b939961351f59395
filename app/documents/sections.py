"""Documents of one text or of several sections: a limited process reads them, and they become one text with its pages.

An EPUB has no pages of its own: each section of its reading order begins a page; long ones are cut as plain text is.
Each slide of a presentation is a page. All other formats are one section.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from app.documents.document import Document, Extracting, Format, make_pages, stem_of
from app.documents.errors import DamagedDocument, EmptyDocument, ScannedDocument
from app.documents.marked_chapters import marked_chapters
from app.documents.messages import Opened, PageRead
from app.documents.metadata import MAX_TAG, MAX_TITLE, clean_authors, clean_cover
from app.documents.parsing import LIMITS, Parser, ParsingLimits, parse
from app.documents.plain import page_starts
from app.documents.quality import FEW_LETTERS, garbled, num_letters, ranges

BETWEEN = "\n\n"  # sections
SCANNED = "If its pages are pictures, run it through text recognition (OCR) first and use the result."
ANOTHER = "Choose a file with text in it."


class Kind(NamedTuple):
    """How a format is read."""

    what: str  # with an article
    without_text: str = SCANNED  # advice
    sections: str = ""  # what they are called; "": there is one


KINDS: Mapping[Format, Kind] = {
    "html": Kind("a web page", "Open it in a browser, print it to PDF once the text shows, and use that."),
    "docx": Kind("a Word document"),
    "odt": Kind("an OpenDocument text"),
    "rtf": Kind("an RTF document"),
    "fb2": Kind("an FB2 book"),
    "csv": Kind("a table", ANOTHER),
    "epub": Kind("an EPUB", ANOTHER, "sections"),
    "pptx": Kind("a PowerPoint presentation", ANOTHER, "slides"),
}


def extract_sections(
    kind: Format, file: Path, name: str, limits: ParsingLimits = LIMITS
) -> Iterator[Extracting | Document]:
    """Read a file; see `readers.extract_document`."""
    opened, sections = yield from parse(Parser(kind, KINDS[kind].what), file, name, limits)
    yield to_document(kind, name, opened, sections)


def to_document(kind: Format, name: str, opened: Opened, sections: Sequence[PageRead]) -> Document:
    """Join the sections to one text with pages and chapters.

    Raises:
        DocumentError: there are no sections, or they have no text.
    """
    pictures = [
        index
        for index, section in enumerate(sections)
        if section["has_image"] and num_letters([section["text"]]) < FEW_LETTERS
    ]
    if KINDS[kind].sections:
        refuse_without_text(kind, name, sections, pictures)
    text, starts, section_starts = join([section["text"] for section in sections], own_pages=kind == "pptx")
    if not text.strip() or (pictures and len(sections) == 1):
        what = "nothing but images" if pictures else "no text"
        raise EmptyDocument(f"{name} holds {what}.", hint=KINDS[kind].without_text)
    headings = () if kind == "epub" else (heading.title for section in sections for heading in section["headings"])
    titles = (opened["title"], *headings, stem_of(name))
    return Document(
        name=name,
        title=next(title for words in titles if (title := " ".join(words.split())[:MAX_TITLE])),
        format=kind,
        text=text,
        pages=make_pages(starts, len(text), opened["labels"] if kind == "pptx" else None),
        has_own_pages=kind == "pptx",
        warnings=(
            *filter(None, [opened.get("warning")]),
            *flaws(kind, sections, pictures),
            *(() if kind == "csv" else garbled(text, starts)),
        ),
        chapters=marked_chapters(text, starts, opened, sections, section_starts),
        authors=clean_authors(opened.get("authors", [])),
        language=opened.get("language", "")[:MAX_TAG],
        cover=clean_cover(opened.get("cover", "")),
    )


def refuse_without_text(kind: Format, name: str, sections: Sequence[PageRead], pictures: Sequence[int]) -> None:
    """Raise the error for sections none of which can be read, or that are mostly pictures."""
    if sections and all(section["damaged"] for section in sections):
        raise DamagedDocument(name, f"is damaged: none of its {KINDS[kind].sections} can be read")
    letters = num_letters(section["text"] for section in sections)
    if len(pictures) > len(sections) / 2 and letters < FEW_LETTERS * len(sections):
        raise ScannedDocument(name, len(sections))


def flaws(kind: Format, sections: Sequence[PageRead], pictures: Sequence[int]) -> Iterator[str]:
    """The warnings about sections."""
    damaged = [index for index, section in enumerate(sections) if section["damaged"]]
    what = KINDS[kind].sections
    if not what:
        yield from ["Parts of it are damaged or linked from elsewhere, so that text is missing."] * len(damaged)
        return
    plates = [index for index in pictures if index or kind != "epub"]  # its first is the cover
    if plates:
        yield f"Only images, which are not read: {what} {ranges(plates)}."
    if damaged:
        yield f"Missing or damaged, so that text is lost: {what} {ranges(damaged)}."


def join(sections: Sequence[str], *, own_pages: bool) -> tuple[str, list[int], list[int]]:
    """One text; each section is a page of its own, or, if it has text, one or more pages.

    Returns:
        The text, the offset of each page, and that of each section, including those without text.
    """
    last = max((index for index, section in enumerate(sections) if section.strip()), default=-1)
    pieces, starts, section_starts, length = list[str](), list[int](), list[int](), 0
    for index, section in enumerate(sections):
        section_starts.append(length)
        piece = section + BETWEEN * (index < last)
        if own_pages:
            starts.append(length)
        elif section.strip():
            starts += [length + start for start in page_starts(piece)]
        else:
            continue
        pieces.append(piece)
        length += len(piece)
    return "".join(pieces), starts, section_starts
