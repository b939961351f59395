"""What readers of marked-up files share: a text with its notes apart, and the walk through the tree of an XML file."""

import sys
from collections.abc import Iterator, Mapping
from xml.etree.ElementTree import Element

from app.documents.archive import Refused
from app.documents.lines import Lines
from app.documents.messages import Message, Opened, page_read
from app.documents.metadata import MAX_AUTHORS
from app.documents.strict_xml import parse_xml

NOTES_TITLE = "Notes"
LONGEST_TITLE = 1_000  # characters
MOST_FRAMES = 1_000_000  # of calls, which take no room on the stack: some four for each element around another


class Text:
    """A text in the making, with what is told beside it."""

    def __init__(self) -> None:
        self.lines = Lines()
        self.title = ""
        self.authors: list[str] = []
        self.language = ""
        self.warning = ""
        self.has_image = self.damaged = False
        self.calls: dict[str, int] = {}  # of notes, with their numbers
        self.notes: dict[str, str] = {}  # their texts

    def add_title(self, text: str) -> None:
        """A piece of the title."""
        if len(self.title) < LONGEST_TITLE:
            self.title += text

    def call(self, note: str) -> None:
        """A note is called here."""
        self.lines.words(f"[{self.calls.setdefault(note, len(self.calls) + 1)}]")

    def messages(self) -> Iterator[Message]:
        """The messages of a file without pages of its own. Notes follow the text, those that nothing calls last."""
        text, headings = self.lines.marked()
        notes = [f"[{number}] {self.notes[note]}" for note, number in self.calls.items() if self.notes.get(note)]
        notes += [told for note, told in self.notes.items() if told and note not in self.calls]
        yield Opened(
            kind="opened",
            title=self.title,
            labels=["1"],
            outline=[],
            authors=self.authors[:MAX_AUTHORS],
            language=self.language,
            warning=self.warning,
        )
        text = "\n\n".join([text, NOTES_TITLE, *notes]) if notes else text
        yield page_read(text, headings, has_image=self.has_image, damaged=self.damaged)


class Reader(Text):
    """Visits elements; a method `on_TAG` of a subclass reads a kind of them, all others are passed through."""

    roots: frozenset[str]  # what the file's first element may be
    left_out: frozenset[str] = frozenset()
    signs: Mapping[str, str] = {}  # elements that stand for some letters

    def __init__(self) -> None:
        super().__init__()
        self.path: list[str] = []  # tags of the elements around
        self._boxes: list[str] = []  # texts of boxes, added after their paragraph
        self._raised = False  # above the line

    def read(self, encoded: bytes) -> None:
        """Read a whole file.

        Raises:
            Refused: it begins with another element.
            As `parse_xml`.
        """
        root = parse_xml(encoded)
        if root.tag not in self.roots:
            raise Refused("no container")
        usual = sys.getrecursionlimit()
        sys.setrecursionlimit(MOST_FRAMES)
        try:
            self.visit(root)
        finally:
            sys.setrecursionlimit(usual)

    def visit(self, element: Element) -> None:
        """Read an element, unless it is left out."""
        if sign := self.signs.get(element.tag):
            self.put(sign)
        elif element.tag not in self.left_out:
            self.path.append(element.tag)
            getattr(self, f"on_{element.tag.replace('-', '_')}", self.children)(element)
            self.path.pop()

    def children(self, element: Element) -> None:
        """Read all that is in an element."""
        self.words(element.text or "")
        for child in element:
            self.visit(child)
            self.words(child.tail or "")

    def words(self, text: str) -> None:
        """Text between tags: none counts, unless a subclass reads it."""

    def put(self, text: str) -> None:
        """Letters of the text."""
        (self.lines.raised if self._raised else self.lines.words)(text)

    def raised(self, element: Element) -> None:
        """Letters above the line."""
        outer, self._raised = self._raised, True
        self.children(element)
        self._raised = outer

    def aside(self, element: Element) -> str:
        """What is in an element as a text of its own: of a note, a box or a shape."""
        outer, self.lines, self._boxes, self._raised = (self.lines, self._boxes, self._raised), Lines(), [], False
        self.children(element)
        self.add_boxes()
        text = self.lines.marked().text
        self.lines, self._boxes, self._raised = outer
        return text

    def box(self, element: Element) -> None:
        """A box, which stands beside its paragraph."""
        self._boxes.append(self.aside(element))

    def add_boxes(self) -> None:
        """The texts of boxes stand here."""
        for text in self._boxes:
            self.lines.border(2)
            self.lines.verbatim(text)
            self.lines.border(2)
        self._boxes.clear()

    def image(self, element: Element) -> None:
        """A picture, perhaps with a text for those who do not see it."""
        self.has_image = True
        self.children(element)

    def table(self, element: Element) -> None:
        """A table, which may stand in a cell of another."""
        self.lines.border(2)
        self.lines.table()
        self.children(element)
        self.lines.end_of_table()
        self.lines.border(2)

    def row(self, element: Element) -> None:
        """A row of a table."""
        self.lines.row()
        self.children(element)
        self.lines.end_of_prefixed()
        self.lines.border(1)

    def cell(self, element: Element) -> None:
        """A cell of a row."""
        self.lines.cell()
        self.children(element)
