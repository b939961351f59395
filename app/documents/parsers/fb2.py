"""FictionBook: sections with titles, verses, tables, and the notes behind the text (FictionBook 2.1)."""

from collections.abc import Iterator
from typing import BinaryIO

from app.documents.archive import MAX_TOTAL_BYTES, read_most
from app.documents.elements import Elements, Table, with_notes
from app.documents.messages import Message, whole
from app.documents.strict_xml import feed

NAMES = ("first-name", "middle-name", "last-name", "nickname")
APART = frozenset(["annotation", "cite", "epigraph", "p", "poem", "section", "stanza", "subtitle"])  # a blank line
ONE_LINE = frozenset(["date", "text-author", "v"])


def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file."""
    book = Book()
    feed(read_most(stream, MAX_TOTAL_BYTES), book)
    text, headings = book.marked()
    yield from whole(
        book.whole_title, with_notes(text, book.notes), headings, has_image=book.has_image, damaged=book.lacks_notes
    )


class Book(Elements):
    """The text of a book, its title and author, and the notes that it calls."""

    root = frozenset(["FictionBook"])
    left_out = frozenset(
        ["binary", "custom-info", "document-info", "output", "publish-info", "src-title-info", "stylesheet"]
    )

    def __init__(self) -> None:
        super().__init__()
        self.title = ""
        self.author = ""  # the first
        self._numbers: dict[str, int] = {}  # of the notes that were called
        self._notes: dict[str, str] = {}
        self._in_body = self._in_notes = False
        self._note: str | None = None
        self._depth = 0  # of sections
        self._tables = Table()

    @property
    def whole_title(self) -> str:
        """Author and title."""
        return ": ".join(part for words in (self.author, self.title) if (part := " ".join(words.split())))

    @property
    def notes(self) -> list[str]:
        """The notes in the order of their calls, then those that nothing calls."""
        called = [f"[{number}] {self._notes[name]}" for name, number in self._numbers.items() if self._notes.get(name)]
        return called + [text for name, text in self._notes.items() if text and name not in self._numbers]

    @property
    def lacks_notes(self) -> bool:
        """Whether a note is called that is not there."""
        return not self._numbers.keys() <= self._notes.keys()

    def leaves_out(self, tag: str, attributes: dict[str, str]) -> bool:
        """Links to notes, for which their numbers stand; the titles of notes, which are their numbers."""
        if tag == "a" and attributes.get("type") == "note" and self._in_body:
            name = attributes.get("href", "").removeprefix("#")
            self.lines.words(f"[{self._numbers.setdefault(name, len(self._numbers) + 1)}]")
            return True
        return tag == "title" and self._note is not None

    def begin(self, tag: str, attributes: dict[str, str]) -> None:
        """An element begins that is read."""
        match tag:
            case "body":
                self._in_body, self._in_notes = True, attributes.get("name") in ("notes", "comments", "footnotes")
                self._depth = 0
            case "section":
                self._depth += 1
                if self._in_notes and self._note is None and "id" in attributes:
                    self._note = attributes["id"]
                    self.aside()
            case "title":
                self.lines.border(2)
                self.lines.heading(self._depth + 1)
            case "image":
                self.has_image = True
            case "empty-line":
                self.lines.border(2)
            case "table":
                self._tables.begin(self.lines)
            case "tr":
                self._tables.row(self.lines)
            case "td" | "th":
                self._tables.cell(self.lines)
        self._border(tag)

    def finish(self, tag: str) -> None:
        """An element ends that is read."""
        match tag:
            case "body":
                self._in_body = self._in_notes = False
            case "title":
                self.lines.end_of_heading()
                self.lines.border(2)
            case "tr":
                self._tables.end_of_row(self.lines)
            case "table":
                self._tables.end(self.lines)
            case "section":
                self._depth -= 1
                if self._note is not None and not self._depth:
                    self._notes[self._note], self._note = self.text_of_aside(), None
        self._border(tag)

    def words(self, text: str) -> None:
        """Text of the book, or about it."""
        tag, parent = self.path[-1], self.parent
        if self._in_body:
            self.lines.words(text)
        elif tag == "book-title" and parent == "title-info":
            self.title += text[:1_000]
        elif tag in NAMES and parent == "author" and self.path[-3:-2] == ["title-info"] and len(self.author) < 200:
            self.author += f" {text}"

    def _border(self, tag: str) -> None:
        if tag in APART:
            self.lines.border(1 if self.parent == "title" else 2)
        elif tag in ONE_LINE:
            self.lines.border(1)
