"""Text and Markdown, and how a text that has no pages of its own is cut."""

from collections.abc import Iterator
from itertools import accumulate, takewhile
from pathlib import Path

from app.documents.archive import MAX_TOTAL_BYTES
from app.documents.chapters import make_chapters, markdown_headings, text_headings
from app.documents.charset import decode
from app.documents.document import Document, Extracting, make_pages, page_starts, stem_of
from app.documents.errors import DocumentTooLarge, EmptyDocument, UnsupportedFormat
from app.documents.language import direction_of, language_of
from app.documents.prose import NO_CONTROLS
from app.documents.quality import garbled
from app.documents.stretches import by_stretches

MOST_SHORT_PAGES, SHORT_PAGE = 100, 20  # more pages are no pages if their mean is fewer characters than this
TITLE_WITHIN, MAX_TITLE = 10_000, 200  # characters
MARKDOWN_SUFFIXES = {".md", ".markdown", ".mdown", ".mkd"}


def extract_plain(file: Path, name: str) -> Iterator[Extracting | Document]:
    """Read a text or Markdown file; see `readers.extract_document`."""
    yield Extracting(num_done=0, num_pages=None)
    with file.open("rb") as stream:
        encoded = stream.read(MAX_TOTAL_BYTES + 1)
    if len(encoded) > MAX_TOTAL_BYTES:
        raise DocumentTooLarge(name, f"more than {MAX_TOTAL_BYTES // 1_000_000} MB of text")
    decoded = decode(encoded)
    if decoded is None:
        raise UnsupportedFormat(name, "binary data and not text")
    text, starts = paginate(decoded.text)
    if not text.strip():
        raise EmptyDocument(f"{name} holds nothing but white space.", hint="Choose a file with text in it.")
    markdown = file.suffix.lower() in MARKDOWN_SUFFIXES
    yield Document(
        name=name,
        title=(markdown_title(text) if markdown else None) or stem_of(name),
        format="markdown" if markdown else "text",
        text=text,
        pages=make_pages(starts, len(text)),
        has_own_pages=has_pages(decoded.text),
        warnings=((decoded.warning,) if decoded.warning else ()) + garbled(text, starts),
        chapters=make_chapters(text, starts, markdown_headings(text) if markdown else (), text_headings(text, starts)),
        language=language_of(text),
        direction=direction_of(text),
    )


def has_pages(raw: str) -> bool:
    """Whether a text has form feeds, and more than a few of them with more than hardly anything between them."""
    return 0 < raw.count("\f") <= max(MOST_SHORT_PAGES, len(raw) // SHORT_PAGE)


def paginate(raw: str) -> tuple[str, list[int]]:
    """Cut a text into pages: at form feeds if they are those of pages, else by size at paragraph borders.

    Returns:
        The text (line ends normalised, control characters removed, form feeds replaced by blank lines) and the offset
        of each page.
    """
    text = by_stretches(lambda part: part.translate(NO_CONTROLS), raw.replace("\r\n", "\n").replace("\r", "\n"))
    if not has_pages(raw):
        text = text.replace("\f", "\n\n")
        return text, page_starts(text)
    parts = [part.strip("\n") + "\n\n" for part in text.split("\f")]
    if not parts[-1].strip():
        parts.pop()  # a form feed ends a page, so nothing follows the last one
    lengths = [len(part) for part in parts]
    return "".join(parts), list(accumulate(lengths[:-1], initial=0))


def markdown_title(text: str) -> str | None:
    """The title in the front matter, else the first top-level heading near the beginning."""
    lines = text[:TITLE_WITHIN].splitlines()
    front_matter = takewhile(lambda line: line.rstrip() != "---", lines[1:]) if lines[0].rstrip() == "---" else ()
    titles = [line.removeprefix("title:").strip(" \t\"'") for line in front_matter if line.startswith("title:")]
    titles += [line[2:].strip(" \t#") for line in lines if line.startswith("# ")]
    return next((title[:MAX_TITLE] for title in titles if title), None)
