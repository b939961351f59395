"""Which books, and which parts of them, go into the context: their joined text, what it costs in tokens, what fits.

Pure values. Nothing is ever cut here: a shelf that is too long stays too long until somebody chooses one of the offers.
Knows no model; tokens are counted by whoever gives a function for it.
"""

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

from app.documents.document import Chapter, Document, Page
from app.documents.stretches import num_words
from core.errors import CoreError

BETWEEN = "\n\n"  # what stands between documents, and between a title and its text
LEFT_OUT = "\n\n[...]\n\n"  # between two parts of a document, so that nobody takes them for one
PREVIEW_CHARS = 20_000  # ten printed pages; a page may be as long as its file makes it

Count = Callable[[str], int]  # the tokens of a text


class AlreadyThere(CoreError):
    """The same text is on the shelf."""

    def __init__(self, name: str, present: str) -> None:
        same = "is already there" if name == present else f"holds the same text as {present}"
        super().__init__(f"{name} {same}.", hint="Choose another file, or remove that one first.")


# -------------------- what is chosen


@dataclass(frozen=True, slots=True)
class Whole:
    """All of a document."""


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of a document from one number to another, both included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Chapters:
    """Chapters of a document by their numbers, from 1; ascending."""

    numbers: tuple[int, ...]


Choice = Whole | Pages | Chapters


class Span(NamedTuple):
    """Characters [start, end) of a document's text."""

    start: int
    end: int


def spans(document: Document, choice: Choice) -> tuple[Span, ...]:
    """The parts of a document's text that are chosen, in order; parts that touch are one.

    Raises:
        ValueError: the document has no such pages or chapters.
    """
    match choice:
        case Whole():
            return (Span(0, len(document.text)),)
        case Pages(first, last):
            if not 1 <= first <= last <= len(document.pages):
                raise ValueError(f"pages {first} to {last} of {len(document.pages)}")
            return (Span(document.pages[first - 1].char_start, document.pages[last - 1].char_end),)
        case Chapters(numbers):
            ascending = all(a < b for a, b in pairwise([0, *numbers]))
            if not numbers or not ascending or numbers[-1] > len(document.chapters):
                raise ValueError(f"chapters {numbers} of {len(document.chapters)}")
            merged: list[Span] = []
            for number in numbers:
                chapter = document.chapters[number - 1]
                touches = merged and merged[-1].end == chapter.char_start
                start = merged.pop().start if touches else chapter.char_start
                merged.append(Span(start, chapter.char_end))
            return tuple(merged)


def label(document: Document, choice: Choice) -> str:
    """A choice in words: "pages 3–5", "chapter 2: The Quay"; pages by what the document calls them."""
    match choice:
        case Whole():
            return "everything"
        case Pages(first, last):
            names = [document.pages[number - 1].label for number in (first, last)]
            return f"page {names[0]}" if first == last else f"pages {names[0]}–{names[1]}"
        case Chapters((number,)):
            return f"chapter {number}: {document.chapters[number - 1].title}"
        case Chapters(numbers):
            return f"chapters {ranges(numbers)}"


def ranges(numbers: Sequence[int]) -> str:
    """Numbers as people write them: 1, 4–6, 9."""
    present = frozenset(numbers)
    firsts = [number for number in numbers if number - 1 not in present]
    lasts = [number for number in numbers if number + 1 not in present]
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in zip(firsts, lasts, strict=True))


# -------------------- the shelf


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """A document on the shelf, and what is chosen of it."""

    document: Document
    choice: Choice = Whole()
    digest: bytes  # of its text: what makes it the same book under another name
    num_words: int = 0  # as white space tells; counted once, when it is put on a shelf

    @property
    def is_whole(self) -> bool:
        """Whether all of it is chosen."""
        return spans(self.document, self.choice) == (Span(0, len(self.document.text)),)

    @property
    def key(self) -> str:
        """A short name of it for programs: 64 bits of its digest."""
        return self.digest[:8].hex()


class Part(NamedTuple):
    """One of the strings that make the joined text."""

    text: str
    book: int  # its index
    source: Span | None  # in the document's text; None: a title, or what stands between parts


class Piece(NamedTuple):
    """A part of a document in the joined text."""

    book: int  # its index
    source: Span  # in the document's text
    start: int  # in the joined text


class Placed(NamedTuple):
    """A page or chapter, or the part of it that is chosen, at characters [start, end) of the joined text."""

    book: int  # its index
    number: int  # of the page or chapter, from 1
    start: int
    end: int


class Place(NamedTuple):
    """Where a character of the joined text comes from."""

    book: int  # its index
    document: Document
    page: Page


@dataclass(frozen=True)
class Shelf:
    """Books in the order in which the model reads them. Every change gives a new shelf; derived values are kept."""

    books: tuple[Book, ...] = ()

    @classmethod
    def of(cls, documents: Sequence[Document]) -> "Shelf":
        """Whole documents in their order, whether or not one comes twice."""
        return cls(tuple(Book(document=document, digest=b"") for document in documents))

    def add(self, document: Document) -> "Shelf":
        """With another document at the end, all of it chosen.

        Raises:
            AlreadyThere: the same text is there, under whatever name.
        """
        digest = hashlib.sha256(document.text.encode("utf-8", "surrogatepass")).digest()
        for book in self.books:
            if book.digest == digest:
                raise AlreadyThere(document.name, book.document.name)
        return Shelf((*self.books, Book(document=document, digest=digest, num_words=num_words(document.text))))

    def index(self, key: str) -> int | None:
        """Where the book with a key stands; None: it is not there."""
        return next((index for index, book in enumerate(self.books) if book.key == key), None)

    def remove(self, index: int) -> "Shelf":
        """Without a book."""
        return Shelf((*self.books[:index], *self.books[index + 1 :]))

    def move(self, index: int, to: int) -> "Shelf":
        """With a book at another position."""
        rest = self.remove(index).books
        return Shelf((*rest[:to], self.books[index], *rest[to:]))

    def choose(self, index: int, choice: Choice) -> "Shelf":
        """With another choice of a book.

        Raises:
            ValueError: the document has no such pages or chapters.
        """
        spans(self.books[index].document, choice)
        changed = replace(self.books[index], choice=choice)
        return Shelf((*self.books[:index], changed, *self.books[index + 1 :]))

    @cached_property
    def text(self) -> str:
        """What the model reads: the first document as it is, every further one behind its title.

        A document at the end changes nothing before it, so that what was read of the others stays read.
        """
        return "".join(part.text for part in self.parts)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The parts of documents that the joined text is made of, in order."""
        pieces: list[Piece] = []
        length = 0
        for part in self.parts:
            if part.source:
                pieces.append(Piece(part.book, part.source, length))
            length += len(part.text)
        return tuple(pieces)

    @cached_property
    def pages(self) -> tuple[Placed, ...]:
        """Every page that has text in the joined text, in order."""
        return tuple(
            placed for piece in self.pieces for placed in self._place_parts(piece, self._document(piece).pages)
        )

    @cached_property
    def chapters(self) -> tuple[Placed, ...]:
        """Every chapter that has text in the joined text, in order."""
        return tuple(
            placed for piece in self.pieces for placed in self._place_parts(piece, self._document(piece).chapters)
        )

    def place(self, char: int) -> Place:
        """Where a character of the joined text, at an offset in [0, len(text)), comes from.

        A title and what stands between parts belong to the page that follows. Cost: one binary search.
        """
        assert 0 <= char < len(self.text), f"character {char} of {len(self.text)}"
        placed = self.pages[bisect_right(self.pages, char, key=lambda page: page.end)]
        document = self.books[placed.book].document
        return Place(placed.book, document, document.pages[placed.number - 1])

    def find(self, index: int, char: int) -> int | None:
        """Where a character of a book's own text stands in the joined text; None: it is not chosen."""
        for piece in self.pieces:
            if piece.book == index and piece.source.start <= char < piece.source.end:
                return piece.start + char - piece.source.start
        return None

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The strings that make the joined text. What a tokenizer makes of one does not depend on the others."""
        return tuple(self._join())

    def _join(self) -> Iterator[Part]:
        for index, book in enumerate(self.books):
            if index:
                yield Part(end_line(self.books[index - 1].document), index, None)
                yield Part(title_lines(book.document), index, None)
            for number, span in enumerate(spans(book.document, book.choice)):
                if number:
                    yield Part(LEFT_OUT, index, None)
                yield Part(book.document.text[span.start : span.end], index, span)

    def _document(self, piece: Piece) -> Document:
        return self.books[piece.book].document

    def _place_parts(self, piece: Piece, parts: Sequence[Page | Chapter]) -> Iterator[Placed]:
        first = bisect_right(parts, piece.source.start, key=lambda part: part.char_end)
        for number, part in enumerate(parts[first:], first + 1):
            start, end = max(part.char_start, piece.source.start), min(part.char_end, piece.source.end)
            if part.char_start >= piece.source.end:
                return
            if start < end:
                offset = piece.start - piece.source.start
                yield Placed(piece.book, number, start + offset, end + offset)


def end_line(document: Document) -> str:
    """What stands behind a document that another one follows: the first one's title is told here, not before it."""
    return f"{BETWEEN}[End of: {document.title}]"


def title_lines(document: Document) -> str:
    """What stands before a document that is not the first."""
    return f"{BETWEEN}# {document.title}{BETWEEN}"


def page_text(document: Document, number: int, max_chars: int = PREVIEW_CHARS) -> str:
    """The text of a page for a preview, at most so many characters of it.

    The number is brought into the document, as it comes from a browser. Cost: a copy of the page, never of the text.
    """
    page = document.pages[min(max(number, 1), len(document.pages)) - 1]
    return document.text[page.char_start : min(page.char_end, page.char_start + max_chars)]


# -------------------- tokens


class Costs:
    """What the parts of one document cost in tokens, from borders of its pages and chapters to others.

    A part that is counted alone may differ by a token or so from its share of the whole.
    """

    def __init__(self, borders: Sequence[int], totals: Sequence[int]) -> None:
        self._borders, self._totals = borders, totals  # offsets, and the tokens before each

    @classmethod
    def counted(cls, document: Document, count: Count) -> "Costs":
        """By counting every stretch between two borders once. Cost: one pass over the text."""
        borders = borders_of(document)
        counts = (count(document.text[start:end]) for start, end in pairwise(borders))
        return cls(borders, list(accumulate(counts, initial=0)))

    @classmethod
    def of_tokens(cls, document: Document, token_starts: Sequence[int]) -> "Costs":
        """By the ascending offset at which each token of the document begins: exact, and a token is counted once."""
        borders = borders_of(document)
        return cls(borders, [bisect_left(token_starts, border) for border in borders[:-1]] + [len(token_starts)])

    def of(self, span: Span) -> int:
        """The tokens of a part."""
        return self._before(span.end) - self._before(span.start)

    def _before(self, char: int) -> int:
        at = bisect_left(self._borders, char)
        assert self._borders[at] == char, f"character {char} is no border of a page or chapter"
        return self._totals[at]


def borders_of(document: Document) -> list[int]:
    """The offsets at which pages and chapters begin, and the end of the text."""
    parts: tuple[Page | Chapter, ...] = (*document.pages, *document.chapters)
    return sorted({0, len(document.text), *(part.char_start for part in parts)})


class Meter:
    """Counts tokens with a tokenizer, each document once, whatever is chosen of it later."""

    def __init__(self, count: Count) -> None:
        self._count = count
        self._costs: dict[bytes, Costs] = {}
        self._strings: dict[str, int] = {}

    def know(self, book: Book, costs: Costs) -> None:
        """Take the costs of a book that is tokenised already."""
        self._costs[book.digest] = costs

    def forget(self, shelf: Shelf) -> None:
        """Keep only what is known about the books of a shelf."""
        present = {book.digest for book in shelf.books}
        self._costs = {digest: costs for digest, costs in self._costs.items() if digest in present}

    def costs(self, book: Book) -> Costs:
        """The costs of a book's parts."""
        if book.digest not in self._costs:
            self._costs[book.digest] = Costs.counted(book.document, self._count)
        return self._costs[book.digest]

    def warm(self, shelf: Shelf) -> None:
        """Count whatever can be asked about a shelf's books later, in any order: nothing is counted after that."""
        self._string(LEFT_OUT)
        for book in shelf.books:
            self.costs(book)
            self._string(end_line(book.document))
            self._string(title_lines(book.document))

    def book(self, book: Book) -> int:
        """The tokens of what is chosen of a book."""
        chosen = spans(book.document, book.choice)
        gaps = (len(chosen) - 1) * self._string(LEFT_OUT) if len(chosen) > 1 else 0
        return sum(map(self.costs(book).of, chosen)) + gaps

    def between(self, shelf: Shelf) -> int:
        """The tokens of all that stands between a shelf's books."""
        ends = sum(self._string(end_line(book.document)) for book in shelf.books[:-1])
        return ends + sum(self._string(title_lines(book.document)) for book in shelf.books[1:])

    def page(self, book: Book, number: int) -> int:
        """The tokens of one page."""
        page = book.document.pages[number - 1]
        return self.costs(book).of(Span(page.char_start, page.char_end))

    def chapter(self, book: Book, number: int) -> int:
        """The tokens of one chapter."""
        chapter = book.document.chapters[number - 1]
        return self.costs(book).of(Span(chapter.char_start, chapter.char_end))

    def shelf(self, shelf: Shelf) -> int:
        """The tokens of a shelf."""
        return sum(map(self.book, shelf.books)) + self.between(shelf)

    def _string(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = self._count(text)
        return self._strings[text]


# -------------------- offers


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A choice that could be made of one book."""

    book: int  # its index
    choice: Choice
    label: str
    num_tokens: int  # of the book with this choice
    total_tokens: int  # of the shelf with it, the other books as they are
    fits: bool


def fits(shelf: Shelf, meter: Meter, budget: int) -> tuple[Offer, ...]:
    """For each book in order what could be chosen of it: see `offers`. Nothing is chosen by this."""
    return tuple(offer for index in range(len(shelf.books)) for offer in offers(shelf, index, meter, budget))


def offers(shelf: Shelf, index: int, meter: Meter, budget: int) -> tuple[Offer, ...]:
    """What could be chosen of a book, the others as they are, for a shelf of at most `budget` tokens.

    Returns:
        Everything; if that does not fit: as many pages from the start as do, runs of whole chapters (or of pages, if
        there are none) that each do; then every chapter alone, whether it fits or not. No choice comes twice.
    """
    book = shelf.books[index]
    rest = meter.shelf(shelf) - meter.book(book)

    def offer(choice: Choice) -> Offer:
        num_tokens = meter.book(replace(book, choice=choice))
        return Offer(
            book=index,
            choice=choice,
            label=label(book.document, choice),
            num_tokens=num_tokens,
            total_tokens=rest + num_tokens,
            fits=rest + num_tokens <= budget,
        )

    whole = offer(Whole())
    document = book.document
    num_chapters, num_pages = len(document.chapters), len(document.pages)
    found: list[Offer] = [whole]
    if not whole.fits:
        by_pages = runs(num_pages, lambda first, last: offer(Pages(first, last)))
        from_start = [run for run in by_pages[:1] if isinstance(run.choice, Pages) and run.choice.first == 1]
        by_chapters = runs(num_chapters, lambda first, last: offer(Chapters(tuple(range(first, last + 1)))))
        found += (from_start + by_chapters) if num_chapters else by_pages
    found += [offer(Chapters((number,))) for number in range(1, num_chapters + 1)]
    return tuple({each.choice: each for each in found}.values())


def runs(count: int, offer: Callable[[int, int], Offer]) -> list[Offer]:
    """Runs of parts 1 to `count`, one after the other, each as long as it fits; parts that do not fit are in none."""
    found: list[Offer] = []
    first = 1
    while first <= count:
        lengths = range(1, count - first + 2)
        length = bisect_left(lengths, True, key=lambda n: not offer(first, first + n - 1).fits)
        if length:
            found.append(offer(first, first + length - 1))
        first += max(1, length)
    return found
