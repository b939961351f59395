"""The events of an XML file for a reader that leaves some elements out, with all that is in them."""

from app.documents.archive import Refused
from app.documents.lines import Lines, Marked

NOTES_TITLE = "Notes"


class Elements:
    """Receives the events of `strict_xml.feed`; subclasses get those outside of elements that are left out."""

    root: frozenset[str]  # what the file's first element may be
    left_out: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.path: list[str] = []  # of the open elements
        self.lines = Lines()
        self.has_image = False
        self._outer: list[Lines] = []  # while the text of a note or a box is read
        self._boxes: list[str] = []  # texts of boxes, added after their paragraph
        self._skipped = 0  # depth of the element that is left out; 0: none

    def marked(self) -> Marked:
        """All text so far, and its headings."""
        return self.lines.marked()

    @property
    def parent(self) -> str:
        """The element around the current one; "": none."""
        return self.path[-2] if len(self.path) > 1 else ""

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """An element begins."""
        if not self.path and tag not in self.root:
            raise Refused("no container")
        self.path.append(tag)
        if self._skipped:
            return
        if tag in self.left_out or self.leaves_out(tag, attributes):
            self._skipped = len(self.path)
        else:
            self.begin(tag, attributes)

    def end(self, tag: str) -> None:
        """An element ends."""
        depth = len(self.path)
        if not self._skipped:
            self.finish(tag)
        elif self._skipped == depth:
            self._skipped = 0
        self.path.pop()

    def data(self, text: str) -> None:
        """Text, perhaps only a part."""
        if not self._skipped:
            self.words(text)

    def aside(self) -> None:
        """What follows is a text of its own, up to `text_of_aside`."""
        self._outer.append(self.lines)
        self.lines = Lines()

    def text_of_aside(self) -> str:
        """The text since `aside`; what follows belongs to the text before it."""
        text = self.lines.marked().text
        self.lines = self._outer.pop()
        return text

    def end_of_box(self) -> None:
        """A box ends, whose text began at `aside`."""
        self._boxes.append(self.text_of_aside())

    def add_boxes(self) -> None:
        """The texts of boxes stand here."""
        for text in self._boxes:
            self.lines.border(2)
            self.lines.verbatim(text)
            self.lines.border(2)
        self._boxes.clear()

    def leaves_out(self, tag: str, attributes: dict[str, str]) -> bool:
        """Whether this element is left out, too."""
        return False

    def begin(self, tag: str, attributes: dict[str, str]) -> None:
        """An element begins that is read."""

    def finish(self, tag: str) -> None:
        """An element ends that is read."""

    def words(self, text: str) -> None:
        """Text that is read."""
        self.lines.words(text)


class Table:
    """Borders of the rows and cells of tables, which may stand in cells of others."""

    def __init__(self) -> None:
        self._open: list[list[int]] = []  # rows so far, cells of the row so far

    def begin(self, lines: Lines) -> None:
        """A table begins."""
        self._open.append([0, 0])
        lines.border(2)

    def row(self, lines: Lines) -> None:
        """A row begins."""
        if self._open:
            lines.row(1 if self._open[-1][0] else 2)
            self._open[-1] = [self._open[-1][0] + 1, 0]

    def cell(self, lines: Lines) -> None:
        """A cell begins."""
        if self._open:
            self._open[-1][1] += 1
            if self._open[-1][1] > 1:
                lines.cell()

    def end_of_row(self, lines: Lines) -> None:
        """A row ends."""
        lines.end_of_prefixed()
        lines.border(1)

    def end(self, lines: Lines) -> None:
        """A table ends."""
        lines.end_of_prefixed()
        lines.border(2)
        del self._open[-1:]


def with_notes(text: str, notes: list[str]) -> str:
    """A text, and its notes at the end of it."""
    return "\n\n".join([text, NOTES_TITLE, *notes]) if notes else text
