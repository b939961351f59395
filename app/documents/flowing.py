"""Files without pages of their own to Document: a limited process reads one text, which is cut into pages by size."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from app.documents.document import Document, Extracting, make_pages, stem_of
from app.documents.errors import EmptyDocument
from app.documents.marked_chapters import marked_chapters
from app.documents.messages import Opened, PageRead
from app.documents.metadata import about
from app.documents.parsing import LIMITS, Parser, ParsingLimits, parse
from app.documents.plain import page_starts
from app.documents.quality import FEW_LETTERS, garbled, num_letters

MAX_TITLE = 200  # characters
Flowing = Literal["html", "docx", "odt", "rtf", "fb2", "csv"]
SCANNED = "If its pages are pictures, run it through text recognition (OCR) first and use the result."


class FlowingFormat(NamedTuple):
    """How a format is read, and the advice for a file of pictures."""

    parser: Parser
    without_text: str = SCANNED


FORMATS: Mapping[Flowing, FlowingFormat] = {
    "html": FlowingFormat(
        Parser("app.documents.html_worker", "a web page"),
        "Open it in a browser, print it to PDF once the text shows, and use that.",
    ),
    "docx": FlowingFormat(Parser("app.documents.word_worker", "a Word document")),
    "odt": FlowingFormat(Parser("app.documents.odt_worker", "an OpenDocument text")),
    "rtf": FlowingFormat(Parser("app.documents.rtf_worker", "an RTF document")),
    "fb2": FlowingFormat(Parser("app.documents.fb2_worker", "an FB2 book")),
    "csv": FlowingFormat(Parser("app.documents.table_worker", "a table"), "Choose a file with text in it."),
}


def extract_flowing(
    kind: Flowing, file: Path, name: str, limits: ParsingLimits = LIMITS
) -> Iterator[Extracting | Document]:
    """Read a file without pages of its own; see `readers.extract_document`."""
    opened, parts = yield from parse(FORMATS[kind].parser, file, name, limits)
    assert len(parts) == 1, f"{len(parts)} texts in {name}"
    yield to_document(kind, name, stem_of(name), opened, parts[0])


def to_document(kind: Flowing, name: str, stem: str, opened: Opened, part: PageRead) -> Document:
    """Cut the text into pages and chapters.

    Raises:
        EmptyDocument: there is no text.
    """
    text = part["text"]
    if not text.strip() or (part["has_image"] and num_letters([text]) < FEW_LETTERS):
        what = "nothing but images" if part["has_image"] else "no text"
        raise EmptyDocument(f"{name} holds {what}.", hint=FORMATS[kind].without_text)
    starts = page_starts(text)
    lost = ("Parts of it are damaged or linked from elsewhere, so that text is missing.",) if part["damaged"] else ()
    titles = (opened["title"], *(heading["title"] for heading in part["headings"][:1]), stem)
    return Document(
        name=name,
        title=next(title for words in titles if (title := " ".join(words.split())[:MAX_TITLE])),
        format=kind,
        text=text,
        pages=make_pages(starts, len(text)),
        has_own_pages=False,
        warnings=(*filter(None, [opened.get("warning")]), *lost, *(() if kind == "csv" else garbled(text, starts))),
        chapters=marked_chapters(text, starts, opened, [part], [0]),
        **about(opened),
    )
