"""A choice of a document's parts as text: typed into a field, or sent by a button of the page.

People name pages by the document's own labels ("xii-4"); buttons name them by position ("#12-#16").
"""

import re

from app.context.context_documents import ChapterPath, Chapters, Choice, Pages, Whole, chapter_at, path_ranges
from app.documents.chapters import MAX_DEPTH
from app.documents.document import Document
from core.errors import InvalidSetting

EVERYTHING = ("", "all", "everything")
LONGEST = 2_000  # characters; nobody types more
DASH = re.compile(r"\s*(?:[-\u2010-\u2015\u2212]|\bto\b)\s*")  # hyphens, dashes and minus signs, as people paste them
PAGES, CHAPTERS = (
    re.compile(r"^(?:pages?|pp?\.?)\s*(?=[#\w])", re.I),
    re.compile(r"^(?:chapters?|ch?\.?)\s*(?=\d)", re.I),
)


def written(choice: Choice) -> str:
    """A choice as text that `understood` reads."""
    match choice:
        case Whole():
            return "all"
        case Pages(first, last):
            return f"#{first}-#{last}"
        case Chapters(paths):
            return f"c{path_ranges(paths, between='-').replace(' ', '')}"


def understood(document: Document, text: str) -> Choice:
    """The choice meant by "12-80", "p. xii", "chapters 1, 4-6", "chapters 3.1-3.4" or "all".

    Raises:
        InvalidSetting: it names no part of the document.
    """
    wanted = text.strip()
    if len(wanted) > LONGEST:
        raise _unclear(document, text)
    if wanted.casefold() in EVERYTHING:
        return Whole()
    if CHAPTERS.match(wanted) and not any(page.label.casefold() == wanted.casefold() for page in document.pages):
        return _chapters(document, CHAPTERS.sub("", wanted), text)
    found = _pages(document, wanted) or _pages(document, PAGES.sub("", wanted))
    if found is None:
        raise _unclear(document, text)
    return found


def _pages(document: Document, wanted: str) -> Pages | None:
    single = _page(document, wanted)
    if single is not None:
        return Pages(single, single)
    for dash in DASH.finditer(wanted):  # labels may have some, too
        first, last = _page(document, wanted[: dash.start()]), _page(document, wanted[dash.end() :])
        if first is not None and last is not None and first <= last:
            return Pages(first, last)
    return None


def _page(document: Document, name: str) -> int | None:
    """The number of a page by its label, else by its position."""
    if not name.startswith("#"):
        for page in document.pages:
            if page.label.casefold() == name.casefold():
                return page.number
    digits = name.removeprefix("#")
    if digits.isascii() and digits.isdigit() and len(digits) < 10 and 1 <= int(digits) <= len(document.pages):
        return int(digits)
    return None


def _chapters(document: Document, wanted: str, text: str) -> Chapters:
    """Chapters by number; where a number has a part behind a point, sub-chapters by path."""
    paths: set[ChapterPath] = set()
    for part in re.split(r"[,;\s]*[,;]\s*|\s+and\s+", wanted.strip()):
        ends = [_path(end) for end in DASH.split(part)]
        first, last = ends[0], ends[-1]
        if len(ends) > 2 or first is None or last is None or first[:-1] != last[:-1] or first > last:
            raise _unclear(document, text)
        try:
            chapter_at(document, first), chapter_at(document, last)
        except ValueError as error:
            raise _unclear(document, text) from error
        paths.update((*first[:-1], number) for number in range(first[-1], last[-1] + 1))
    return Chapters(tuple(sorted(path for path in paths if not any(path[:n] in paths for n in range(1, len(path))))))


def _path(text: str) -> ChapterPath | None:
    """The path that "3.2" names; None: it is none."""
    numbers = text.split(".")
    known = len(numbers) <= MAX_DEPTH + 1 and all(n.isascii() and n.isdigit() and len(n) < 10 for n in numbers)
    return tuple(map(int, numbers)) if known else None


def _unclear(document: Document, text: str) -> InvalidSetting:
    first, last = document.pages[0].label, document.pages[-1].label
    chapters = f", or chapters from 1 to {len(document.chapters)} such as chapters 1, 3" if document.chapters else ""
    shown = text.strip()[:40]
    return InvalidSetting(
        f"{document.name} has no part “{shown}”.",
        hint=f"Name pages from {first} to {last}, such as {first}-{last}{chapters}.",
    )
