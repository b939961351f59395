"""FictionBook: sections with titles, verses, tables, and the notes behind the text (FictionBook 2.1)."""

from collections.abc import Iterator
from typing import BinaryIO
from xml.etree.ElementTree import Element

from app.documents.archive import MAX_TOTAL_BYTES, read_most
from app.documents.elements import Reader
from app.documents.messages import Message

NAMES = ("first-name", "middle-name", "last-name", "nickname")
APART = frozenset(["annotation", "cite", "epigraph", "p", "poem", "section", "stanza", "subtitle"])  # a blank line
ONE_LINE = frozenset(["date", "text-author", "v"])


def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file."""
    book = Book()
    book.read(read_most(stream, MAX_TOTAL_BYTES))
    book.damaged = bool(book.calls.keys() - book.notes.keys())
    yield from book.messages()


class Book(Reader):
    """The text of a book, its title, its authors, and the notes that it calls."""

    roots = frozenset(["FictionBook"])
    left_out = frozenset(
        ["binary", "custom-info", "document-info", "output", "publish-info", "src-title-info", "stylesheet"]
    )

    def __init__(self) -> None:
        super().__init__()
        self._in_body = self._in_notes = self._in_note = False
        self._depth = 0  # of sections
        self._called: set[str] = set()  # the names of notes

    def visit(self, element: Element) -> None:
        """Read an element between its borders."""
        is_line = element.tag in ONE_LINE or (element.tag in APART and self.path[-1:] == ["title"])
        size = 1 if is_line else 2 if element.tag in APART else 0
        if size:
            self.lines.border(size)
        super().visit(element)
        if size:
            self.lines.border(size)

    def words(self, text: str) -> None:
        """Text of the book, not about it."""
        if self._in_body:
            self.put(text)

    def on_FictionBook(self, element: Element) -> None:
        """The whole file."""
        self._called = {note_of(link) for link in element.iter("a") if link.get("type") == "note"}
        self.children(element)

    def on_title_info(self, element: Element) -> None:
        """What the file says of the book."""
        self.title = " ".join((element.findtext("book-title") or "").split())
        self.language = element.findtext("lang") or ""
        authors = [[name.text or "" for name in author if name.tag in NAMES] for author in element.iterfind("author")]
        self.authors = [" ".join(names) for names in authors]
        self.children(element)

    def on_body(self, element: Element) -> None:
        """The text, or the notes."""
        self._in_body, self._in_notes = True, element.get("name") in ("notes", "comments", "footnotes")
        self._depth = 0
        self.children(element)
        self._in_body = self._in_notes = False

    def on_section(self, element: Element) -> None:
        """A part of the text, or a note: what is called as one, or in the notes the outermost with a name."""
        self._depth += 1
        name = element.get("id")
        if name is not None and not self._in_note and (self._in_notes or name in self._called):
            self._in_note = True
            self.notes[name] = self.aside(element)
            self._in_note = False
        else:
            self.children(element)
        self._depth -= 1

    def on_title(self, element: Element) -> None:
        """A heading; that of a note is its number."""
        if not self._in_note:
            self.lines.border(2)
            self.lines.heading(self._depth + 1)
            self.children(element)
            self.lines.end_of_heading()
            self.lines.border(2)

    def on_a(self, element: Element) -> None:
        """A link; the number of a note stands for one to it."""
        if element.get("type") == "note" and self._in_body:
            self.call(note_of(element))
        else:
            self.children(element)

    def on_empty_line(self, element: Element) -> None:
        """Room between paragraphs."""
        self.lines.border(2)

    on_image, on_table, on_tr, on_td, on_th = Reader.image, Reader.table, Reader.row, Reader.cell, Reader.cell
    on_sup = Reader.raised


def note_of(link: Element) -> str:
    """The name of the note that a link leads to."""
    return link.get("href", "").removeprefix("#")
