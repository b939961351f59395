"""Which books, and which parts of them, go into the context, and their joined text. Pure values, without a model."""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from app.documents.chapters import LEADING_NUMBER
from app.documents.document import BEGINNING, Chapter, Document, Page, num_words
from core.errors import CoreError

if TYPE_CHECKING:
    from app.context.evidence import BookWords

BETWEEN = "\n\n"  # between documents, and between a title and its text
LEFT_OUT = "\n\n[...]\n\n"  # between two parts of a document, so that they do not look like one
PREVIEW_CHARS = 20_000  # ten printed pages; a file decides how long a page is


# -------------------- choices


@dataclass(frozen=True, slots=True)
class Whole:
    """All of a document."""


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of a document from one number to another, both included."""

    first: int
    last: int


# From the outside in: (3,) is the third chapter, (3, 2) its second sub-chapter, (3, 0) what stands before its first.
ChapterPath = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chapters:
    """Chapters and sub-chapters of a document by their paths, in the order of the text; none lies in another."""

    paths: tuple[ChapterPath, ...]

    @classmethod
    def run(cls, first: int, last: int) -> "Chapters":
        """The chapters from one number to another, both included."""
        return cls(tuple((number,) for number in range(first, last + 1)))


Choice = Whole | Pages | Chapters


class Span(NamedTuple):
    """Characters [start, end) of a document's text."""

    start: int
    end: int


def spans(document: Document, choice: Choice) -> tuple[Span, ...]:
    """The chosen parts of a document's text, in order; adjoining parts are merged.

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
        case Chapters(paths):
            merged: list[Span] = []
            for chapter in (chapter_at(document, path) for path in paths):
                start = chapter.char_start
                if merged and merged[-1].end > start:
                    raise ValueError(f"chapters {path_ranges(paths)} of {len(document.chapters)} in another order")
                if merged and merged[-1].end == start:
                    start = merged.pop().start
                merged.append(Span(start, chapter.char_end))
            if not merged:
                raise ValueError(f"none of {len(document.chapters)} chapters")
            return tuple(merged)


def chapter_at(document: Document, path: ChapterPath) -> Chapter:
    """The chapter or sub-chapter at a path.

    Raises:
        ValueError: there is none.
    """
    found, inside, first = None, document.chapters, 1
    for number in path:
        if not first <= number < first + len(inside):
            break
        found = inside[number - first]
        inside, first = found.sections, found.first_section
    else:
        if found is not None:
            return found
    raise ValueError(f"chapter {dotted(path)} of {len(document.chapters)}")


def dotted(path: ChapterPath) -> str:
    """A path as people write it: 3.2."""
    return ".".join(map(str, path))


def in_words(path: ChapterPath) -> str:
    """A path for readers, who know no chapter 2.0: what stands before 2.1 is the beginning of 2."""
    return f"{dotted(path[:-1])} {BEGINNING}" if path[-1] == 0 else dotted(path)


def headings(document: Document, choice: Choice) -> list[tuple[str, int]] | None:
    """The titles and first pages of chosen chapters; None: the document has no such chapters."""
    paths = choice.paths if isinstance(choice, Chapters) else ()
    try:
        return [(chapter.title, chapter.first_page) for chapter in (chapter_at(document, path) for path in paths)]
    except ValueError:
        return None


def label(document: Document, choice: Choice) -> str:
    """A choice in words: "pages 3–5", "chapter 2: The Quay"; pages by the document's own labels."""
    match choice:
        case Whole():
            return "everything"
        case Pages(first, last):
            names = [document.pages[number - 1].label for number in (first, last)]
            return f"page {names[0]}" if first == last else f"pages {names[0]}–{names[1]}"
        case Chapters((path,)):
            return titled(document, path)
        case Chapters(paths):
            return f"chapters {path_ranges(paths, in_words)}"


def titled(document: Document, path: ChapterPath) -> str:
    """A chapter by number and title; beside the book's own numbers ours would confuse."""
    if path[-1] == 0:
        return f"{titled(document, path[:-1])} {BEGINNING}"
    title = chapter_at(document, path).title
    if LEADING_NUMBER.match(title):
        return f"chapter {title}" if title[0].isdigit() else title
    return title if has_own_numbers(document) else f"chapter {dotted(path)}: {title}"


def has_own_numbers(document: Document) -> bool:
    """Whether the titles of its chapters are numbered: at least half of them, since a preface is not."""
    return 2 * sum(LEADING_NUMBER.match(chapter.title) is not None for chapter in document.chapters) >= len(
        document.chapters
    )


def path_ranges(paths: Sequence[ChapterPath], named: Callable[[ChapterPath], str] = dotted, between: str = "–") -> str:
    """Runs of paths: 1–2, 3.1–3.4, 5."""
    found: list[list[ChapterPath]] = []
    for path in paths:
        follows = found and (*found[-1][-1][:-1], found[-1][-1][-1] + 1) == path
        found[-1:] = [[found[-1][0], path]] if follows else [*found[-1:], [path]]
    return ", ".join(named(run[0]) + (f"{between}{named(run[-1])}" if len(run) > 1 else "") for run in found)


# -------------------- the library


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """A document in the library, and its chosen parts."""

    document: Document
    choice: Choice = Whole()
    digest: bytes  # of its text: identifies the book under any name
    num_words: int = 0  # separated by white space; counted once, when it is put in a library
    file: Path | None = field(default=None, compare=False)  # of a PDF: for images of its pages, and to recognise text

    @property
    def is_whole(self) -> bool:
        """All of it is chosen."""
        return spans(self.document, self.choice) == (Span(0, len(self.document.text)),)

    @property
    def key(self) -> str:
        """A short identifier: 64 bits of its digest."""
        return self.digest[:8].hex()


class Part(NamedTuple):
    """One of the strings that are joined to the text."""

    text: str
    book: int  # its index
    source: Span | None  # in the document's text; None: a title or a separator


class Piece(NamedTuple):
    """A part of a document in the joined text."""

    book: int  # its index
    source: Span  # in the document's text
    start: int  # in the joined text


class Placed(NamedTuple):
    """A page, or its chosen part, at characters [start, end) of the joined text."""

    book: int  # its index
    number: int  # of the page, from 1
    start: int
    end: int


class Place(NamedTuple):
    """The source of a character of the joined text."""

    document: Document
    page: Page


@dataclass(frozen=True)
class Library:
    """Books in the order in which the model reads them. Every change gives a new library; derived values are cached."""

    books: tuple[Book, ...] = ()

    @classmethod
    def of(cls, documents: Sequence[Document]) -> "Library":
        """Whole documents in their order, with duplicates."""
        return cls(tuple(Book(document=document, digest=b"") for document in documents))

    def add(self, document: Document, file: Path | None = None, replaces: str = "") -> "Library":
        """A library with another document at the end, all of it chosen.

        Args:
            file: see `Book.file`.
            replaces: the key of a book whose text is read anew; it keeps its place and its file.
        Raises:
            CoreError: the library has the same text, under any name.
        """
        if replaces:
            return self._reread(replaces, document)
        digest = digest_of(document.text)
        for book in self.books:
            if book.digest == digest:
                name, present = document.name, book.document.name
                same = "is already there" if name == present else f"holds the same text as {present}"
                raise CoreError(f"{name} {same}.", hint="Choose another file, or remove that one first.")
        book = Book(document=document, digest=digest, num_words=num_words(document.text), file=file)
        return Library((*self.books, book))

    def _reread(self, key: str, document: Document) -> "Library":
        """A library with a book's text read anew; what is chosen stays, if it is there. Without the book: no change."""
        index = self.index(key)
        if index is None:
            return self
        before = self.books[index]
        book = self.remove(index).add(document, before.file).books[-1]
        if book.digest == before.digest:
            return self
        if headings(document, before.choice) == headings(before.document, before.choice):
            book = replace(book, choice=before.choice)
        return Library((*self.books[:index], book, *self.books[index + 1 :]))

    def index(self, key: str) -> int | None:
        """The index of the book with a key; None: it is not in the library."""
        return next((index for index, book in enumerate(self.books) if book.key == key), None)

    def book(self, key: str) -> Book | None:
        """The book with a key."""
        return next((book for book in self.books if book.key == key), None)

    def remove(self, index: int) -> "Library":
        """A library without a book."""
        return Library((*self.books[:index], *self.books[index + 1 :]))

    def move(self, index: int, to: int) -> "Library":
        """A library with a book at another position."""
        rest = self.remove(index).books
        return Library((*rest[:to], self.books[index], *rest[to:]))

    def choose(self, index: int, choice: Choice) -> "Library":
        """A library with another choice of a book.

        Raises:
            ValueError: the document has no such pages or chapters.
        """
        spans(self.books[index].document, choice)
        changed = replace(self.books[index], choice=choice)
        return Library((*self.books[:index], changed, *self.books[index + 1 :]))

    @cached_property
    def text(self) -> str:
        """The text the model reads: the first document as it is, each further one after its title.

        A document added at the end changes nothing before it, so what the model has read stays read.
        """
        return "".join(part.text for part in self.parts)

    @cached_property
    def words(self) -> "BookWords":
        """The words of that text."""
        from app.context.evidence import BookWords

        return BookWords(self.text)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The parts of documents that form the joined text, in order."""
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
        return tuple(placed for piece in self.pieces for placed in self._pages_of(piece))

    def place(self, char: int) -> Place:
        """The source of a character of the joined text at an offset in [0, len(text)).

        Titles and separators belong to the page that follows. Cost: one binary search.
        """
        assert 0 <= char < len(self.text), f"character {char} of {len(self.text)}"
        placed = self.pages[bisect_right(self.pages, char, key=lambda page: page.end)]
        document = self.books[placed.book].document
        return Place(document, document.pages[placed.number - 1])

    def source(self, placed: Placed) -> int:
        """The character of its document's text with which a placed page begins."""
        piece = self.pieces[bisect_right(self.pieces, placed.start, key=lambda piece: piece.start) - 1]
        return piece.source.start + placed.start - piece.start

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The strings that form the joined text. Each is tokenized independently of the others."""
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

    def _pages_of(self, piece: Piece) -> Iterator[Placed]:
        pages, source = self.books[piece.book].document.pages, piece.source
        for number in range(bisect_right(pages, source.start, key=lambda page: page.char_end) + 1, len(pages) + 1):
            page = pages[number - 1]
            start, end = max(page.char_start, source.start), min(page.char_end, source.end)
            if page.char_start >= source.end:
                return
            if start < end:
                offset = piece.start - piece.source.start
                yield Placed(piece.book, number, start + offset, end + offset)


def digest_of(text: str) -> bytes:
    """SHA-256 of a text: identifies a book under any name."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def end_line(document: Document) -> str:
    """The text after a document that another one follows: it names the first document, which has no title before it."""
    return f"{BETWEEN}[End of: {document.title}]"


def title_lines(document: Document) -> str:
    """The text before each document but the first."""
    return f"{BETWEEN}# {document.title}{BETWEEN}"
