"""Text and Markdown: their pages, headings and title. Read in this process, as if by a parser."""

from itertools import islice, takewhile
from typing import BinaryIO

from app.documents.archive import MAX_TOTAL_BYTES, Refused, read_most
from app.documents.chapters import MAX_HEADINGS, markdown_headings
from app.documents.charset import decode
from app.documents.messages import Opened, PageRead, page_read
from app.documents.prose import NO_CONTROLS
from app.documents.stretches import by_stretches

MOST_SHORT_PAGES, SHORT_PAGE = 100, 20  # more pages are no pages if their mean is fewer characters than this
TITLE_WITHIN, MAX_TITLE = 10_000, 200  # characters


def read(stream: BinaryIO, kind: str) -> tuple[Opened, list[PageRead]]:
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
    text = by_stretches(lambda part: part.translate(NO_CONTROLS), raw.replace("\r\n", "\n").replace("\r", "\n"))
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
    titles += [line[2:].strip(" \t#") for line in lines if line.startswith("# ")]
    return next((title[:MAX_TITLE] for title in titles if title), "")
