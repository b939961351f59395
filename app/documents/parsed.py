"""Documents that a limited process reads: its pages, slides or sections become one text with pages and chapters.

An EPUB has no pages of its own: each section of its reading order begins a page; long ones are cut as plain text is.
Each page of a PDF and each slide of a presentation is a page. All other formats are one section.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from app.documents.document import Document, Extracting, Format, make_pages, page_starts, stem_of
from app.documents.errors import DamagedDocument, EmptyDocument, ScannedDocument
from app.documents.marked_chapters import marked_chapters
from app.documents.messages import Opened, PageRead
from app.documents.metadata import MAX_TAG, MAX_TITLE, clean_authors, clean_cover
from app.documents.parsing import LIMITS, Parser, ParserCrashed, ParsingLimits, parse
from app.documents.prose import clean_lines, unwrap
from app.documents.quality import FEW_LETTERS, garbled, hardly_any_text, is_picture, num_letters, ranges
from app.documents.running_lines import drop_running_lines

if TYPE_CHECKING:
    from app.documents.ocr import Ocr

BETWEEN = "\n\n"  # sections
SCANNED = "If its pages are pictures, run it through text recognition (OCR) first and use the result."
ANOTHER = "Choose a file with text in it."
BY_SIGHT = " Text recognition (OCR) reads what is printed there."
OWN_PAGES = ("pdf", "pptx")


class Kind(NamedTuple):
    """How a format is read."""

    what: str  # with an article
    without_text: str = SCANNED  # advice
    parts: str = ""  # what they are called; "": there is one


KINDS: Mapping[Format, Kind] = {
    "pdf": Kind("a PDF", ANOTHER, "pages"),
    "html": Kind("a web page", "Open it in a browser, print it to PDF once the text shows, and use that."),
    "docx": Kind("a Word document"),
    "odt": Kind("an OpenDocument text"),
    "rtf": Kind("an RTF document"),
    "fb2": Kind("an FB2 book"),
    "csv": Kind("a table", ANOTHER),
    "epub": Kind("an EPUB", ANOTHER, "sections"),
    "pptx": Kind("a PowerPoint presentation", ANOTHER, "slides"),
}


def extract_parsed(
    kind: Format, file: Path, name: str, limits: ParsingLimits = LIMITS, ocr: "Ocr | None" = None
) -> Iterator[Extracting | Document]:
    """Read a file; see `readers.extract_document`."""
    parser = Parser(kind, KINDS[kind].what)
    try:
        opened, parts = yield from parse(parser, file, name, limits)
    except ParserCrashed:
        if kind != "pdf":
            raise
        opened, parts = yield from parse(parser, file, name, limits, ["pypdf"])
    if ocr and kind == "pdf":
        parts = yield from ocr.fill(file, name, parts)
    yield to_document(kind, name, opened, parts)


def to_document(kind: Format, name: str, opened: Opened, parts: Sequence[PageRead]) -> Document:
    """Join the parts to one text with pages and chapters.

    Raises:
        DocumentError: there are no parts, or they have no text.
    """
    called = KINDS[kind].parts
    pictures = [index for index, part in enumerate(parts) if is_picture(part)]
    lines = [clean_lines(part["text"]) if kind == "pdf" else [part["text"]] for part in parts]
    if called and parts and all(part["damaged"] and not part["text"].strip() for part in parts):
        raise DamagedDocument(name, f"is damaged: none of its {called} can be read")
    if called and len(pictures) > len(parts) / 2 and sum(map(num_letters, lines)) < FEW_LETTERS * len(parts):
        raise ScannedDocument(name, len(parts), len(pictures) if kind == "pdf" else 0)
    if kind == "pdf":
        lines = drop_running_lines(lines)
        text, starts = unwrap(lines)
        part_starts = starts
    else:
        text, starts, part_starts = join([part["text"] for part in parts], own_pages=kind in OWN_PAGES)
    if not text.strip() or (pictures and len(parts) == 1):
        what = "nothing but images" if pictures else "no text" if parts else f"no {called}"
        raise EmptyDocument(f"{name} holds {what}.", hint=KINDS[kind].without_text)
    headings = () if kind == "epub" else (heading.title for part in parts for heading in part["headings"])
    titles = (" ".join(clean_lines(opened["title"])), *headings, stem_of(name))
    letters = list(map(num_letters, lines)) if kind == "pdf" else []
    scan = hardly_any_text(letters, [part["has_image"] and not part.get("recognised") for part in parts])
    recognised = [index for index, part in enumerate(parts) if part.get("recognised")]
    return Document(
        name=name,
        title=next(title for words in titles if (title := " ".join(words.split())[:MAX_TITLE])),
        format=kind,
        text=text,
        pages=make_pages(starts, len(text), opened["labels"] if kind in OWN_PAGES else None),
        has_own_pages=kind in OWN_PAGES,
        warnings=(
            *filter(None, [opened.get("warning")]),
            *flaws(kind, parts, letters, pictures),
            *scan,
            *(() if kind == "csv" else garbled(text, starts, BY_SIGHT if kind == "pdf" else "")),
        ),
        picture_pages=tuple(index + 1 for index in pictures) if kind == "pdf" else (),
        recognised_pages=tuple(index + 1 for index in recognised),
        chapters=marked_chapters(text, starts, opened, parts, part_starts),
        authors=clean_authors(opened.get("authors", [])),
        language=opened.get("language", "")[:MAX_TAG],
        cover=clean_cover(opened.get("cover", "")),
    )


def flaws(kind: Format, parts: Sequence[PageRead], letters: Sequence[int], pictures: Sequence[int]) -> Iterator[str]:
    """The warnings about parts."""
    if not KINDS[kind].parts:
        if any(part["damaged"] for part in parts):
            yield "Parts of it are damaged or linked from elsewhere, so that text is missing."
        return
    found = {
        "Only images, which are not read": [index for index in pictures if index or kind != "epub"],  # there: the cover
        "Recognised on pictures (OCR), so that letters may be wrong": [
            index for index, part in enumerate(parts) if part.get("recognised")
        ],
        "Missing or damaged, so that text is lost": [index for index, part in enumerate(parts) if part["damaged"]],
        "PDFium could not read them and pypdf did, so that words may be run together": [
            index
            for index, part in enumerate(parts)
            if part.get("by_pypdf") and letters[index] and not part.get("recognised")
        ],
    }
    yield from (f"{flaw}: {KINDS[kind].parts} {ranges(indices)}." for flaw, indices in found.items() if indices)


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
