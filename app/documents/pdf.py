"""PDF to Document: turns the pages that the limited worker process has read into prose."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.documents.document import Document, Extracting, make_pages, stem_of
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

PDF = Parser("pdf", "a PDF")
BY_SIGHT = " Text recognition (OCR) reads what is printed there."


def extract_pdf(
    file: Path, name: str, limits: ParsingLimits = LIMITS, ocr: "Ocr | None" = None
) -> Iterator[Extracting | Document]:
    """Read a PDF; see `readers.extract_document`."""
    try:
        opened, pages = yield from parse(PDF, file, name, limits)
    except ParserCrashed:
        opened, pages = yield from parse(PDF, file, name, limits, ["pypdf"])
    if ocr:
        pages = yield from ocr.fill(file, name, pages)
    yield to_document(name, opened, pages)


def to_document(name: str, opened: Opened, pages: Sequence[PageRead]) -> Document:
    """Join the printed pages to one text.

    Raises:
        DocumentError: there are no pages, or they have no text.
    """
    if not pages:
        raise EmptyDocument(f"{name} has no pages.", hint="Choose a file with text in it.")
    lines = [clean_lines(page["text"]) for page in pages]
    if all(page["damaged"] and not page["text"].strip() for page in pages):
        raise DamagedDocument(name, "is damaged: none of its pages can be read")
    pictures = [index for index, page in enumerate(pages) if is_picture(page)]
    recognised = [index for index, page in enumerate(pages) if page.get("recognised")]
    if len(pictures) > len(pages) / 2 and sum(map(num_letters, lines)) < FEW_LETTERS * len(pages):
        raise ScannedDocument(name, len(pages), len(pictures))
    lines = drop_running_lines(lines)
    text, starts = unwrap(lines)
    if not text:
        raise EmptyDocument(f"{name} holds no text.", hint="Choose a file with text in it.")
    damaged = [index for index, page in enumerate(pages) if page["damaged"]]
    scan = hardly_any_text(
        list(map(num_letters, lines)), [page["has_image"] and not page.get("recognised") for page in pages]
    )
    by_pypdf = [page.get("by_pypdf") and not page.get("recognised") for page in pages]
    poorer = [index for index, poor in enumerate(by_pypdf) if poor and num_letters(lines[index])]
    flaws = (
        (pictures, "Only images, which are not read"),
        (recognised, "Recognised on pictures (OCR), so that letters may be wrong"),
        (damaged, "Damaged, so that text is missing"),
        (poorer, "PDFium could not read them and pypdf did, so that words may be run together"),
    )
    return Document(
        name=name,
        title=" ".join(" ".join(clean_lines(opened["title"])).split())[:MAX_TITLE] or stem_of(name),
        format="pdf",
        text=text,
        pages=make_pages(starts, len(text), opened["labels"]),
        has_own_pages=True,
        warnings=(
            *filter(None, [opened.get("warning")]),
            *(f"{flaw}: pages {ranges(indices)}." for indices, flaw in flaws if indices),
            *scan,
            *garbled(text, starts, BY_SIGHT),
        ),
        picture_pages=tuple(index + 1 for index in pictures),
        recognised_pages=tuple(index + 1 for index in recognised),
        chapters=marked_chapters(text, starts, opened, pages, starts),
        authors=clean_authors(opened.get("authors", [])),
        language=opened.get("language", "")[:MAX_TAG],
        cover=clean_cover(opened.get("cover", "")),
    )
