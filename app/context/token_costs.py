"""The token costs of books in the library and of their parts. Knows no model: a function counts."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise

from app.context.context_documents import LEFT_OUT, Book, Library, Span, end_line, spans, title_lines
from app.documents.document import Chapter, Document, Page

Count = Callable[[str], int]  # the tokens of a text


class Costs:
    """The token costs of a document's parts, between borders of its pages and chapters.

    A part that is tokenized alone may differ by a token or so from its share of the whole.
    """

    def __init__(self, borders: Sequence[int], totals: Sequence[int]) -> None:
        self._borders, self._totals = borders, totals  # offsets, and the number of tokens before each

    @classmethod
    def counted(cls, document: Document, count: Count) -> "Costs":
        """Count every stretch between two borders once. Cost: one pass over the text."""
        borders = borders_of(document)
        counts = (count(document.text[start:end]) for start, end in pairwise(borders))
        return cls(borders, list(accumulate(counts, initial=0)))

    @classmethod
    def of_tokens(cls, document: Document, token_starts: Sequence[int]) -> "Costs":
        """Exact costs from the ascending offset at which each token of the document begins; no token counts twice."""
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
    """The offsets at which pages, chapters and sub-chapters begin, and the end of the text."""
    parts: tuple[Page | Chapter, ...] = (*document.pages, *every(document.chapters))
    return sorted({0, len(document.text), *(part.char_start for part in parts)})


def every(chapters: Sequence[Chapter]) -> Iterator[Chapter]:
    """Chapters, and their sub-chapters down to the last."""
    for chapter in chapters:
        yield chapter
        yield from every(chapter.sections)


class Meter:
    """Counts tokens with a tokenizer, each document once, whatever parts are chosen later."""

    def __init__(self, count: Count) -> None:
        self._count = count
        self._costs: dict[bytes, Costs] = {}
        self._strings: dict[str, int] = {}

    def know(self, book: Book, costs: Costs) -> None:
        """Store the costs of a book that is already tokenized."""
        self._costs[book.digest] = costs

    def forget(self, library: Library) -> None:
        """Forget the costs of books that are not in a library."""
        present = {book.digest for book in library.books}
        self._costs = {digest: costs for digest, costs in self._costs.items() if digest in present}

    def costs(self, book: Book) -> Costs:
        """The costs of a book's parts."""
        if book.digest not in self._costs:
            self._costs[book.digest] = Costs.counted(book.document, self._count)
        return self._costs[book.digest]

    def warm(self, library: Library) -> None:
        """Count everything that can be asked about a library's books, so that later calls count nothing."""
        self.left_out()
        for book in library.books:
            self.costs(book)
            self.after(book)
            self.before(book)

    def book(self, book: Book) -> int:
        """The tokens of a book's chosen parts."""
        chosen = spans(book.document, book.choice)
        gaps = (len(chosen) - 1) * self.left_out() if len(chosen) > 1 else 0
        return sum(map(self.costs(book).of, chosen)) + gaps

    def between(self, library: Library) -> int:
        """The tokens of titles and separators between a library's books."""
        return sum(map(self.after, library.books[:-1])) + sum(map(self.before, library.books[1:]))

    def after(self, book: Book) -> int:
        """The tokens of the line after a book that another one follows."""
        return self._string(end_line(book.document))

    def before(self, book: Book) -> int:
        """The tokens of the title before a book that follows another one."""
        return self._string(title_lines(book.document))

    def left_out(self) -> int:
        """The tokens that stand between two parts of a book."""
        return self._string(LEFT_OUT)

    def page(self, book: Book, number: int) -> int:
        """The tokens of one page."""
        page = book.document.pages[number - 1]
        return self.costs(book).of(Span(page.char_start, page.char_end))

    def chapter(self, book: Book, chapter: Chapter) -> int:
        """The tokens of one of its chapters or sub-chapters."""
        return self.costs(book).of(Span(chapter.char_start, chapter.char_end))

    def library(self, library: Library) -> int:
        """The tokens of a library."""
        return sum(map(self.book, library.books)) + self.between(library)

    def _string(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = self._count(text)
        return self._strings[text]
