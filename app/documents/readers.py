"""The entry for all formats: from a file to one text with its pages and chapters.

Each page of a PDF and each slide of a presentation is a page. An EPUB has no pages of its own: each section of its
reading order begins a page; long ones are cut as plain text is. All other formats are one section.
"""

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from app.documents.archive import MAX_TOTAL_BYTES, Refused, read_most
from app.documents.chapters import MAX_HEADINGS, markdown_headings, marked_chapters
from app.documents.charset import decode
from app.documents.document import Document, Extracting, Format, by_stretches, make_pages, page_starts, stem_of
from app.documents.errors import DamagedDocument, EmptyDocument, ParserCrashed, ScannedDocument, UnsupportedFormat
from app.documents.language import direction_of, language_of
from app.documents.messages import Opened, PageRead, page_read
from app.documents.metadata import MAX_TAG, MAX_TITLE, clean_authors, clean_cover
from app.documents.parsing import LIMITS, ParsingLimits, explain_failure, parse
from app.documents.prose import NO_CONTROLS, clean_lines, unwrap
from app.documents.quality import FEW_LETTERS, garbled, hardly_any_text, is_picture, num_letters, ranges
from app.documents.running_lines import drop_running_lines
from app.documents.sniff import kind_of

if TYPE_CHECKING:
    from app.documents.ocr import Ocr

BETWEEN = "\n\n"  # sections
SCANNED = "If its pages are pictures, run it through text recognition (OCR) first and use the result."
WITHOUT_TEXT: Mapping[Format, str] = {  # other advice
    **dict.fromkeys(("docx", "odt", "rtf", "fb2"), SCANNED),
    "html": "Open it in a browser, print it to PDF once the text shows, and use that.",
}
BY_SIGHT = " Text recognition (OCR) reads what is printed there."
PARTS: Mapping[Format, str] = {"pdf": "pages", "epub": "sections", "pptx": "slides"}  # of which a file has several
OWN_PAGES = ("pdf", "pptx")
PLAIN = ("text", "markdown")


def extract_document(
    path: str | Path, name: str | None = None, ocr: "Ocr | None" = None
) -> Generator[Extracting | Document]:
    """Read a file step by step: progress events, then exactly one Document.

    Closing the iterator stops the work at once and leaves nothing running.

    Args:
        name: what to call it; None: its file's name.
        ocr: for pages of a PDF that are only pictures; None: they have no text.
    Raises:
        DocumentError: with the problem and one action; see `app.documents.errors`.
    """
    file = Path(path)
    name = name or display_name(file)
    kind = kind_of(file, name)
    if kind == "zip":
        raise UnsupportedFormat(name, "a ZIP archive among other files", hint="Unpack it and use its files.")
    if kind in PLAIN:
        yield Extracting(num_done=0, num_pages=None)
        yield to_document(kind, name, *parse_plain(kind, file, name))
    else:
        yield from extract_parsed(kind, file.absolute(), name, ocr=ocr)


def read_document(path: str | Path) -> Document:
    """Read a file in one call. Raises as `extract_document`."""
    *_, document = extract_document(path)
    assert isinstance(document, Document), f"the last event was {document}"
    return document


def display_name(file: Path) -> str:
    """The file's name on one line, without control characters for terminals."""
    return "".join(char if char.isprintable() else "�" for char in file.name) or str(file)


def extract_parsed(
    kind: Format, file: Path, name: str, limits: ParsingLimits = LIMITS, ocr: "Ocr | None" = None
) -> Iterator[Extracting | Document]:
    """Read a file in a limited process; see `extract_document`."""
    try:
        opened, parts = yield from parse(kind, file, name, limits)
    except ParserCrashed:
        if kind != "pdf":
            raise
        opened, parts = yield from parse(kind, file, name, limits, ["pypdf"])
    if ocr and kind == "pdf":
        parts = yield from ocr.fill(file, name, parts)
    yield to_document(kind, name, opened, parts)


def parse_plain(kind: Format, file: Path, name: str) -> tuple[Opened, list[PageRead]]:
    """Read a text in this process. Raises a DocumentError."""
    try:
        with file.open("rb") as stream:
            return read_plain(stream, kind)
    except Refused as refused:
        raise explain_failure(refused.reason, kind, name, LIMITS) from None


def to_document(kind: Format, name: str, opened: Opened, parts: Sequence[PageRead]) -> Document:
    """Join the parts to one text with pages and chapters.

    Raises:
        DocumentError: there are no parts, or they have no text.
    """
    called = PARTS.get(kind)
    own_pages = kind in OWN_PAGES or (kind in PLAIN and len(parts) > 1)
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
        text, starts, part_starts = join([part["text"] for part in parts], own_pages=own_pages)
    if not text.strip() or (pictures and len(parts) == 1):
        what = "nothing but images" if pictures else "no text" if parts else f"no {called}"
        raise EmptyDocument(name, f"holds {what}", hint=WITHOUT_TEXT.get(kind, ""))
    headings = () if kind == "epub" else (heading.title for part in parts for heading in part["headings"])
    titles = (" ".join(clean_lines(opened["title"])), *headings, stem_of(name))
    letters = list(map(num_letters, lines)) if kind == "pdf" else []
    return Document(
        name=name,
        title=next(title for words in titles if (title := " ".join(words.split())[:MAX_TITLE])),
        format=kind,
        text=text,
        pages=make_pages(starts, len(text), opened["labels"] if own_pages else None),
        has_own_pages=own_pages,
        warnings=(
            *filter(None, [opened.get("warning")]),
            *flaws(kind, parts, letters, pictures),
            *hardly_any_text(letters, [part["has_image"] and not part.get("recognised") for part in parts]),
            *(() if kind == "csv" else garbled(text, starts, BY_SIGHT if kind == "pdf" else "")),
        ),
        picture_pages=tuple(index + 1 for index in pictures) if kind == "pdf" else (),
        recognised_pages=tuple(index + 1 for index, part in enumerate(parts) if part.get("recognised")),
        chapters=marked_chapters(text, starts, opened, parts, part_starts),
        authors=clean_authors(opened.get("authors", [])),
        language=language_of(text, opened.get("language", "")[:MAX_TAG]),
        direction=direction_of(text),
        cover=clean_cover(opened.get("cover", "")),
    )


def flaws(kind: Format, parts: Sequence[PageRead], letters: Sequence[int], pictures: Sequence[int]) -> Iterator[str]:
    """The warnings about parts."""
    if kind not in PARTS:
        if any(part["damaged"] for part in parts):
            yield "Parts of it are damaged or linked from elsewhere, so that text is missing."
        return
    numbered = list(enumerate(parts))
    recognised = [index for index, part in numbered if part.get("recognised")]
    joined = [index for index, part in numbered if part.get("by_pypdf") and letters[index] and index not in recognised]
    found = {
        "Only images, which are not read": [index for index in pictures if index or kind != "epub"],  # there: the cover
        "Recognised on pictures (OCR), so that letters may be wrong": recognised,
        "Missing or damaged, so that text is lost": [index for index, part in numbered if part["damaged"]],
        "PDFium could not read them and pypdf did, so that words may be run together": joined,
    }
    yield from (f"{flaw}: {PARTS[kind]} {ranges(indices)}." for flaw, indices in found.items() if indices)


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


MOST_SHORT_PAGES, SHORT_PAGE = 100, 20  # more pages are no pages if their mean is fewer characters than this
TITLE_WITHIN = 10_000  # characters
OF_TERMINALS = re.compile(r"\x1b\[[0-?]*+[ -/]*+[@-~]|[^\n]\x08")  # colours, and letters with others typed over them


def read_plain(stream: BinaryIO, kind: str) -> tuple[Opened, list[PageRead]]:
    """What a parser would send of a file.

    Args:
        kind: "text" or "markdown".
    Raises:
        Refused: it is no text, or too much of it.
    """
    decoded = decode(read_most(stream, MAX_TOTAL_BYTES))
    if decoded is None:
        raise Refused("binary")
    pages = pages_of(decoded.text)
    opened = Opened(
        kind="opened",
        title=markdown_title(pages[0]) if kind == "markdown" else "",
        labels=[str(number) for number in range(1, len(pages) + 1)],
        outline=[],
        warning=decoded.warning or "",
    )
    sources = (markdown_headings(page) if kind == "markdown" else () for page in pages)
    return opened, [
        page_read(page, list(islice(found, MAX_HEADINGS))) for page, found in zip(pages, sources, strict=True)
    ]


def pages_of(raw: str) -> list[str]:
    """The pages of a text that has form feeds, and more than a few only where more than hardly anything is between.

    Line ends are normalised, control characters removed; what has no pages is one.
    """
    text = raw.replace("\r\n", "\n").replace("\r", "\n")
    text = by_stretches(lambda part: OF_TERMINALS.sub("", part).translate(NO_CONTROLS), text)
    if not 0 < raw.count("\f") <= max(MOST_SHORT_PAGES, len(raw) // SHORT_PAGE):
        return [text.replace("\f", "\n\n")]
    parts = [part.strip("\n") for part in text.split("\f")]
    parts = parts if parts[-1].strip() else parts[:-1]  # a form feed ends a page, so nothing follows the last one
    return [*parts[:-1], parts[-1] + "\n\n"]


def markdown_title(text: str) -> str:
    """The title in the front matter, else the first top-level heading near the beginning; "": none."""
    lines = text[:TITLE_WITHIN].splitlines()
    front_matter = takewhile(lambda line: line.rstrip() != "---", lines[1:]) if text.startswith("---") else ()
    titles = [line.removeprefix("title:").strip(" \t\"'") for line in front_matter if line.startswith("title:")]
    titles += [heading.title for heading in markdown_headings(text[:TITLE_WITHIN]) if heading.level == 1]
    return next((title[:MAX_TITLE] for title in titles if title), "")
