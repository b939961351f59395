"""PowerPoint: a page for each slide, with what it shows, and its speaker's notes (ECMA-376, part 1, 19)."""

from collections.abc import Iterator
from typing import BinaryIO
from xml.etree.ElementTree import Element

from app.documents.archive import Archive, Refused
from app.documents.elements import Reader
from app.documents.lines import Lines
from app.documents.messages import Message, Opened, PageRead, page_read
from app.documents.numbering import BULLET, MAX_LEVELS, Level, Numbering, number_or
from app.documents.strict_xml import DAMAGED, optional, related, relations, stated

TITLES = frozenset(["title", "ctrTitle"])
LISTS = frozenset(["body", "obj", ""])  # placeholders whose paragraphs are items, unless they say otherwise
AROUND = frozenset(["dt", "ftr", "hdr", "sldNum", "sldImg"])  # placeholders that repeat from slide to slide
FORMS = {"alphaLc": "lowerLetter", "alphaUc": "upperLetter", "romanLc": "lowerRoman", "romanUc": "upperRoman"}
NOTES = "Notes:"  # before what the speaker says
MAX_SLIDES = 10_000


def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file."""
    archive = Archive(stream)
    package = related(archive, "")
    main = package.get("officeDocument", "ppt/presentation.xml")
    root = optional(archive, main if main in archive else None)
    if root is None or root.tag != "presentation":
        raise Refused("no container")
    names = slide_names(archive, main, root)
    first = number_or(root.get("firstSlideNum"), 1)
    title, authors, language = stated(optional(archive, package.get("core-properties")))
    labels = [str(number) for number in range(first, first + len(names))]
    yield Opened(kind="opened", title=title, labels=labels, outline=[], authors=authors, language=language)
    for name in names:
        yield read_slide(archive, name)


def slide_names(archive: Archive, main: str, root: Element) -> list[str]:
    """The slides in the order in which they are shown; "": one that is missing."""
    parts = {relation.id: relation.name for relation in relations(archive, main)}
    names = [parts.get(slide.get("r:id", ""), "") for slide in root.iter("sldId")]
    if len(names) > MAX_SLIDES:
        raise Refused("oversized")
    return names


def read_slide(archive: Archive, name: str) -> PageRead:
    """The text of a slide, its diagrams and its notes; a missing or malformed one is marked as damaged.

    Raises:
        Refused: it unpacks to too much, is encrypted, or declares entities.
    """
    slide, pieces, damaged = Slide(), list[str](), False
    try:
        slide.read(archive.read(name))
        for relation in relations(archive, name):
            if relation.kind == "diagramData":
                diagram = Slide()
                diagram.read(archive.read(relation.name))
                pieces.append(diagram.text())
            elif relation.kind == "notesSlide":
                notes = Slide(as_notes=True)
                notes.read(archive.read(relation.name))
                pieces.append(f"{NOTES} {notes.text()}" if notes.text() else "")
    except DAMAGED:
        damaged = True
    lines = Lines()
    if slide.title:
        lines.heading(1)
        lines.words(slide.title)
        lines.end_of_heading()
    for piece in (slide.text(), *sorted(pieces, key=lambda text: text.startswith(NOTES))):
        lines.border(2)
        lines.verbatim(piece)
    return page_read(*lines.marked(), has_image=slide.has_image, damaged=damaged)


class Slide(Reader):
    """The text of one slide, of the notes to it, or of a diagram on it."""

    roots = frozenset(["sld", "notes", "dataModel"])
    left_out = frozenset(["Fallback", "extLst", "custDataLst"])

    def __init__(self, *, as_notes: bool = False) -> None:
        super().__init__()
        self._as_notes = as_notes
        self._kind: str | None = None  # of the placeholder being read; None: a shape of its own
        self._texts: list[str] = []  # of the shapes, in the order of the file
        self._in_shape = 0
        self._bullet: str | None = None  # what the paragraph says of it
        self._numbers = Numbering([Level()] * MAX_LEVELS)  # of the numbered paragraphs in succession
        self._level = 0
        self._begun = False

    def text(self) -> str:
        """The text of all shapes but the title, with blank lines between them."""
        return "\n\n".join(text for text in self._texts if text)

    def on_sp(self, element: Element) -> None:
        """A shape."""
        place = element.find(".//ph")
        self._kind = None if place is None else place.get("type", "")
        self._numbers = Numbering([Level()] * MAX_LEVELS)
        self._in_shape += 1
        text = self.aside(element)
        self._in_shape -= 1
        kind, self._kind = self._kind, None
        if kind in TITLES and not self.title:
            self.title = " ".join(text.split())
        elif kind not in AROUND:
            self._texts.append(text)

    def on_p(self, element: Element) -> None:
        """A paragraph."""
        self._bullet, self._level, self._begun = None, 0, False
        self.lines.border(1 if self._kind in LISTS else 2)
        self.children(element)
        if self._begun:
            self.lines.end_of_prefixed()
        self.lines.border(1 if self._kind in LISTS else 2)

    def on_pPr(self, element: Element) -> None:
        """What a paragraph says of its level and its bullet."""
        self._level = min(number_or(element.get("lvl"), 0), MAX_LEVELS - 1)
        for mark in element:
            if mark.tag == "buNone":
                self._bullet = ""
            elif mark.tag in ("buChar", "buBlip"):
                self._bullet = BULLET
            elif mark.tag == "buAutoNum":
                self._bullet = self._next_number(mark.attrib)

    def on_fld(self, element: Element) -> None:
        """A field, unless it repeats from slide to slide."""
        if not element.get("type", "").startswith(("slidenum", "datetime")):
            self.children(element)

    def on_br(self, element: Element) -> None:
        """The end of a line."""
        self.lines.line_break()

    def on_r(self, element: Element) -> None:
        """A run."""
        properties = element.find("rPr")
        above = properties is not None and number_or(properties.get("baseline"), 0) > 0
        (self.raised if above else self.children)(element)

    def on_t(self, element: Element) -> None:
        """Text of a paragraph; that of a point of a diagram has paragraphs in it."""
        text = element.text or ""
        if len(element) or not self._in_shape:
            self.children(element)
            return
        if not self._begun and text.strip():
            self._begun = True
            bullet = (BULLET if self._kind in LISTS else "") if self._bullet is None else self._bullet
            self._numbers.restart(self._level + (bullet not in ("", BULLET)))
            if bullet and "tc" not in self.path[-6:] and not self._as_notes:
                self.lines.item(self._level, bullet)
        self.put(text)

    def _next_number(self, attributes: dict[str, str]) -> str:
        kind, number = attributes.get("type", ""), f"%{self._level + 1}"
        ends = {"ParenBoth": f"({number})", "ParenR": f"{number})", "Plain": number}
        self._numbers.levels[self._level] = Level(
            format=next((form for start, form in FORMS.items() if kind.startswith(start)), "decimal"),
            pattern=next((pattern for end, pattern in ends.items() if kind.endswith(end)), f"{number}."),
            start=number_or(attributes.get("startAt"), 1),
        )
        return self._numbers.marker(self._level)

    on_graphicFrame = on_pt = on_sp
    on_tbl, on_tr, on_tc = Reader.table, Reader.row, Reader.cell
    on_blip = on_chart = on_oleObj = Reader.image
