"""Finds words in all open documents. Pure values, without a model.

Case, accents, kinds of quotes, dashes and spaces, and line ends within a phrase do not matter (`folding.py`); with
`exact`, case and accents do. A hit begins and ends between two characters of the text: "s" is not half of "ß".
"""

import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from app.context.context_documents import Book, spans
from app.context.folding import fold, fold_char, folded, is_unspaced
from app.documents.document import Document, Page

MOST_COUNTED = 100_000  # hits of a document besides those returned
MOST_CHARS = 200  # of the words
AROUND = 70  # characters of an excerpt on each side of its hit
MOST_MARKED = 240  # characters of a hit in its excerpt


@dataclass(frozen=True, slots=True)
class Words:
    """What is searched."""

    text: str
    exact: bool = False  # case and accents as they are
    whole: bool = False  # no letter or digit directly before or after


class Excerpt(NamedTuple):
    """A hit with the text around it, on one line."""

    before: str
    hit: str
    after: str


class Hit(NamedTuple):
    """Characters [start, end) of a document."""

    page: Page
    line: int  # of the page, from 1
    start: int
    end: int
    chosen: bool  # it is in the context, as far as the choice of pages and chapters goes


class InBook(NamedTuple):
    """The hits in one document, or the first of them."""

    book: Book
    hits: tuple[Hit, ...]
    total: int


def find(words: Words, books: Sequence[Book], most: int) -> tuple[InBook, ...]:
    """The first `most` hits in all documents together, and how many each document has.

    Documents without a hit are left out. Cost: one pass over each text; of the hits that are not returned at most
    MOST_COUNTED a document are counted.
    """
    results: list[InBook] = []
    for book in books:
        places = occurrences(words, book.document.text)
        hits = tuple(located(book, islice(places, most)))
        most -= len(hits)
        if total := len(hits) + sum(1 for _ in islice(places, MOST_COUNTED)):
            results.append(InBook(book, hits, total))
    return tuple(results)


def located(book: Book, places: Iterator[tuple[int, int]]) -> Iterator[Hit]:
    """Ascending hits with their pages and lines. Cost: lines are counted once."""
    document = book.document
    chosen = spans(document, book.choice)
    page, line, counted = document.pages[0], 1, 0
    for start, end in places:
        if start >= page.char_end:
            page = document.page_at(start)
            line, counted = 1, page.char_start
        line, counted = line + document.text.count("\n", counted, start), start
        at = bisect_right(chosen, start, key=lambda span: span.start) - 1
        yield Hit(page, line, start, end, chosen=at >= 0 and end <= chosen[at].end)


def occurrences(words: Words, text: str) -> Iterator[tuple[int, int]]:
    """Characters [start, end) of a text that are these words; they do not overlap, and the first one counts."""
    wanted = fold(words.text[:MOST_CHARS].strip(), exact=words.exact).strip(" ")
    carried, last = 0, 0
    if not wanted:
        return
    for piece, numbers in folded(text, exact=words.exact, overlap=len(wanted)):
        sources = numbers.data  # faster than the array, one by one
        at = piece.find(wanted, carried == len(wanted))  # a hit there was seen before
        while at >= 0:
            after = at + len(wanted)
            start, end = sources[at], sources[after - 1] + 1
            divided = (at > 0 and sources[at - 1] == start) or (after < len(piece) and sources[after] == end - 1)
            if start >= last and not divided and (whole := _with_marks(words, text, start, end)):
                yield start, whole
                at, last = after - 1, whole
            at = piece.find(wanted, at + 1)
        carried = min(len(piece), len(wanted))


def _with_marks(words: Words, text: str, start: int, end: int) -> int:
    """The end of a hit with the accents of its last letter; 0: it ends within a letter or, where asked, a word."""
    while end < len(text) and unicodedata.combining(text[end]):
        if fold_char(text[end], exact=words.exact):
            return 0
        end += 1
    if words.whole and (_joined(text, start) or _joined(text, end)):
        return 0
    return end


def _joined(text: str, at: int) -> bool:
    """Whether the characters before and at an offset belong to one word."""
    return 0 < at < len(text) and all(map(_in_word, text[at - 1 : at + 1]))


def _in_word(char: str) -> bool:
    return (char.isalnum() or char == "_" or unicodedata.combining(char) > 0) and not is_unspaced(ord(char))


def excerpt(document: Document, hit: Hit) -> Excerpt:
    """The words around a hit, cut between words where there is one."""
    text = document.text
    before, marked = text[max(0, hit.start - AROUND) : hit.start], text[hit.start : hit.end]
    after = text[hit.end : hit.end + AROUND]
    if hit.start > AROUND:
        before = "… " + before.split(None, 1)[-1] * (before.strip() != "")
    if hit.end + AROUND < len(text):
        after = after.rsplit(None, 1)[0] * (after.strip() != "") + " …"
    if len(marked) > MOST_MARKED:
        marked = marked[:MOST_MARKED] + "…"
    return Excerpt(_one_line(before), _one_line(marked), _one_line(after))


def _one_line(text: str) -> str:
    """White space as single spaces, at the ends too."""
    inner = " ".join(text.split())
    if not inner:
        return " " if text else ""
    return " " * text[0].isspace() + inner + " " * text[-1].isspace()
