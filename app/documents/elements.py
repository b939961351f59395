"""Walks the tree of an XML file into lines: what the readers of Word, OpenDocument, FB2 and PowerPoint files share."""

import sys
from xml.etree.ElementTree import Element

from app.documents.archive import Refused
from app.documents.lines import Lines
from app.documents.strict_xml import parse_xml

NOTES_TITLE = "Notes"
MOST_FRAMES = 1_000_000  # of calls, which take no room on the stack: some four for each element around another


class Reader:
    """Visits elements; a method `on_TAG` of a subclass reads a kind of them, all others are passed through."""

    roots: frozenset[str]  # what the file's first element may be
    left_out: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.path: list[str] = []  # tags of the elements around
        self.lines = Lines()
        self.has_image = False
        self._boxes: list[str] = []  # texts of boxes, added after their paragraph

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

    @property
    def parent(self) -> str:
        """The tag of the element around the current one; "": none."""
        return self.path[-2] if len(self.path) > 1 else ""

    def visit(self, element: Element) -> None:
        """Read an element, unless it is left out."""
        if element.tag not in self.left_out:
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

    def aside(self, element: Element) -> str:
        """What is in an element as a text of its own: of a note, a box or a shape."""
        outer, self.lines, self._boxes = (self.lines, self._boxes), Lines(), []
        self.children(element)
        self.add_boxes()
        text = self.lines.marked().text
        self.lines, self._boxes = outer
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
        self.lines.table_row()
        self.children(element)
        self.lines.end_of_prefixed()
        self.lines.border(1)

    def cell(self, element: Element) -> None:
        """A cell of a row."""
        self.lines.table_cell()
        self.children(element)


def with_notes(text: str, notes: list[str]) -> str:
    """A text, and its notes at the end of it."""
    return "\n\n".join([text, NOTES_TITLE, *notes]) if notes else text
