"""The result of ingestion: one text, its pages, and warnings about its quality.

Offsets are in characters of `Document.text`; token offsets follow from them with a tokenizer's own offsets.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

CHARS_PER_PAGE = 1_800  # a printed page
BEGINNING = "(beginning)"  # the title of the text before the first sub-chapter of a chapter
Format = Literal["pdf", "epub", "docx", "odt", "rtf", "pptx", "fb2", "html", "csv", "text", "markdown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Characters [char_start, char_end) of the text. An empty page has equal bounds."""

    number: int  # position in the document, from 1
    label: str  # the document's own name of the page, for example "xii"
    char_start: int
    char_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """Characters [char_start, char_end) of the text, from the chapter's heading, if the text has it."""

    title: str
    first_page: int  # the number of the page on which it begins
    char_start: int
    char_end: int
    sections: "tuple[Chapter, ...]" = ()  # its sub-chapters: none, or several that partition it

    def __post_init__(self) -> None:
        if self.sections:
            bounds = [self.char_start, *(section.char_end for section in self.sections)]
            starts = [section.char_start for section in self.sections]
            assert starts == bounds[:-1] and bounds[-1] == self.char_end, f"sections {bounds} of {self.title}"
            assert all(start < end for start, end in pairwise(bounds)), f"sections overlap: {bounds}"

    @property
    def first_section(self) -> int:
        """The number of its first part: 1, or 0 where that is what stands before the first sub-chapter."""
        return 0 if self.sections and self.sections[0].title == BEGINNING else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole document as one text. Its pages partition the text, without gaps."""

    name: str  # of the file, safe to display
    title: str
    format: Format
    text: str
    pages: tuple[Page, ...]
    has_own_pages: bool  # False: the text had no pages and was cut into pieces of a page's size
    warnings: tuple[str, ...] = ()
    picture_pages: tuple[int, ...] = ()  # numbers of pages that are only pictures, and unread
    recognised_pages: tuple[int, ...] = ()  # numbers of pages whose text was recognised on pictures (OCR)
    chapters: tuple[Chapter, ...] = ()  # none, or consecutive ones up to the end of the text
    authors: tuple[str, ...] = ()
    language: str = ""  # a BCP 47 tag; "": unknown
    direction: Literal["ltr", "rtl"] = "ltr"  # of most of its letters
    cover: str = ""  # a data URL of a small JPEG; "": none

    def __post_init__(self) -> None:
        bounds = [0, *(page.char_end for page in self.pages)]
        starts = [page.char_start for page in self.pages]
        assert starts == bounds[:-1] and bounds[-1] == len(self.text), f"pages {bounds} of {len(self.text)} chars"
        assert all(start <= end for start, end in pairwise(bounds)), f"pages overlap: {bounds}"
        inside = [*(chapter.char_start for chapter in self.chapters), len(self.text)]
        assert inside[1:] == [chapter.char_end for chapter in self.chapters], f"chapters {inside} leave gaps"
        assert all(start < end for start, end in pairwise(inside)), f"chapters overlap: {inside}"

    def page_at(self, char: int) -> Page:
        """The page with the character at an offset in [0, len(text))."""
        assert 0 <= char < len(self.text), f"character {char} of {len(self.text)}"
        return self.pages[bisect_right(self.pages, char, key=lambda page: page.char_start) - 1]

    def page_text(self, page: Page) -> str:
        """The text of one page."""
        return self.text[page.char_start : page.char_end]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracting:
    """Progress while a document is read. Comes at least a few times a second, so that the caller can stop it."""

    num_done: int  # pages
    num_pages: int | None  # None until known
    recognising: bool = False  # text on pictures; counts only such pages
    seconds_left: float | None = None


def stem_of(name: str) -> str:
    """The name of a document without a title: its file's display name without the ending."""
    name = name.rpartition("/")[2].strip()  # of a file in a folder or a ZIP
    stem, dot, _ = name.rpartition(".")
    return (stem if dot else name).strip() or name or "Untitled"


def make_pages(char_starts: Sequence[int], num_chars: int, labels: Sequence[str] | None = None) -> tuple[Page, ...]:
    """Pages that begin at `char_starts` (ascending, the first is 0) and cover a text of `num_chars` characters.

    Args:
        labels: one per page. None labels the pages 1, 2, 3, and so do labels that name two pages alike: nobody could
            tell which page is meant.
    """
    names = labels if labels and len(set(labels)) == len(labels) else list(map(str, range(1, len(char_starts) + 1)))
    bounds = pairwise([*char_starts, num_chars])
    return tuple(
        Page(number=number, label=label, char_start=start, char_end=end)
        for number, (label, (start, end)) in enumerate(zip(names, bounds, strict=True), 1)
    )


def page_starts(text: str) -> list[int]:
    """Offsets that cut a text into pieces of about one page, none much longer, preferably between paragraphs."""
    starts = [0]
    while len(text) - starts[-1] > CHARS_PER_PAGE * 3 // 2:
        starts.append(next_break(text, starts[-1] + CHARS_PER_PAGE // 2, starts[-1] + CHARS_PER_PAGE * 3 // 2))
    return starts


def next_break(text: str, low: int, high: int) -> int:
    """The best place to cut within (low, high], nearest to the middle: paragraph, line, sentence, word, anywhere."""
    middle = (low + high) // 2
    for border in (r"\n[ \t]*\n\s*", r"\n", r"[.!?][\"'”’)]* ", r"\s"):
        ends = [match.end() for match in re.compile(border).finditer(text, low, high)]
        if ends:
            return min(ends, key=lambda end: abs(end - middle))
    return middle


MOST_CHARS = 1 << 18  # some 20 ms of the slowest work on stretches


def bounds(text: str) -> Iterator[tuple[int, int]]:
    """Bounds of stretches of at most MOST_CHARS: cut after a line end, else after a space, else anywhere."""
    start = 0
    while start < len(text):
        end = start + MOST_CHARS
        if end < len(text):
            end = text.rfind("\n", start, end) + 1 or text.rfind(" ", start, end) + 1 or end
        yield start, min(end, len(text))
        start = end


def by_stretches(change: Callable[[str], str], text: str) -> str:
    """Apply a change to each stretch, for changes that depend on little more than single characters."""
    return "".join(change(text[start:end]) for start, end in bounds(text))


def num_words(text: str) -> int:
    """The number of words in `text.split()`."""
    count, inside = 0, False  # inside: the previous stretch ended in the middle of a word, or between two
    for start, end in bounds(text):
        count += len(text[start:end].split()) - (inside and not text[start].isspace())
        inside = not text[end - 1].isspace()
    return count
