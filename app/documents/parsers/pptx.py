"""PowerPoint: a page for each slide, with what it shows, and its speaker's notes (ECMA-376, part 1, 19)."""

from collections.abc import Iterator
from typing import BinaryIO
from xml.etree import ElementTree

from app.documents.archive import Archive, Refused
from app.documents.elements import Elements, Table
from app.documents.lines import Lines
from app.documents.messages import Done, Heading, Message, Opened, PageRead
from app.documents.numbering import BULLET, number_or, written
from app.documents.relations import DAMAGED, optional, related, relations
from app.documents.strict_xml import feed, whole_text

TITLES = frozenset(["title", "ctrTitle"])
LISTS = frozenset(["body", "obj", "", "subTitle"])  # placeholders whose paragraphs are items, unless they say otherwise
AROUND = frozenset(["dt", "ftr", "hdr", "sldNum", "sldImg"])  # placeholders that repeat from slide to slide
IMAGES = frozenset(["blip", "chart", "oleObj"])
MOST_LEVELS = 8
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
    properties = optional(archive, package.get("core-properties"))
    titles = [] if properties is None else [whole_text(element) for element in properties.iter("title")]
    labels = [str(number) for number in range(first, first + len(names))]
    yield Opened(kind="opened", title=next(filter(None, titles), ""), labels=labels, outline=[])
    for name in names:
        yield read_slide(archive, name)
    yield Done(kind="done")


def slide_names(archive: Archive, main: str, root: ElementTree.Element) -> list[str]:
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
        feed(archive.read(name), slide)
        for relation in relations(archive, name):
            if relation.kind == "diagramData":
                diagram = Slide()
                feed(archive.read(relation.name), diagram)
                pieces.append(diagram.text())
            elif relation.kind == "notesSlide":
                notes = Slide(as_notes=True)
                feed(archive.read(relation.name), notes)
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
    text, headings = lines.marked()
    return PageRead(
        kind="page", text=text, has_image=slide.has_image, damaged=damaged, headings=list[Heading](headings)
    )


class Slide(Elements):
    """The text of one slide, of the notes to it, or of a diagram on it."""

    root = frozenset(["sld", "notes", "dataModel"])
    left_out = frozenset(["Fallback", "extLst", "custDataLst"])

    def __init__(self, *, as_notes: bool = False) -> None:
        super().__init__()
        self.title = ""
        self._as_notes = as_notes
        self._kind: str | None = None  # of the placeholder being read; None: a shape of its own
        self._texts: list[str] = []  # of the shapes, in the order of the file
        self._in_shape = 0
        self._bullet: str | None = None  # what the paragraph says of it
        self._counts: list[int] = []  # of the numbered paragraphs in succession, by level
        self._level = 0
        self._begun = False
        self._tables = Table()

    def text(self) -> str:
        """The text of all shapes but the title, with blank lines between them."""
        return "\n\n".join(text for text in self._texts if text)

    def leaves_out(self, tag: str, attributes: dict[str, str]) -> bool:
        """Fields that repeat from slide to slide."""
        return tag == "fld" and attributes.get("type", "").startswith(("slidenum", "datetime"))

    def begin(self, tag: str, attributes: dict[str, str]) -> None:
        """An element begins that is read."""
        match tag:
            case "sp" | "graphicFrame" | "pt":
                self._in_shape += 1
                self._kind, self._counts = None, []
                self.aside()
            case "ph":
                self._kind = attributes.get("type", "")
            case "p":
                self._bullet, self._level, self._begun = None, 0, False
                self.lines.border(1 if self._is_list else 2)
            case "pPr":
                self._level = min(number_or(attributes.get("lvl"), 0), MOST_LEVELS)
            case "buNone":
                self._bullet = ""
            case "buChar" | "buBlip":
                self._bullet = BULLET
            case "buAutoNum":
                self._bullet = self._next_number(attributes)
            case "br":
                self.lines.line_break()
            case "tbl":
                self._tables.begin(self.lines)
            case "tr":
                self._tables.row(self.lines)
            case "tc":
                self._tables.cell(self.lines)
            case _ if tag in IMAGES:
                self.has_image = True

    def finish(self, tag: str) -> None:
        """An element ends that is read."""
        match tag:
            case "sp" | "graphicFrame" | "pt" if self._in_shape:
                self._in_shape -= 1
                self._end_shape(self.text_of_aside())
            case "p":
                if self._begun:
                    self.lines.end_of_prefixed()
                self.lines.border(1 if self._is_list else 2)
            case "tr":
                self._tables.end_of_row(self.lines)
            case "tbl":
                self._tables.end(self.lines)

    def words(self, text: str) -> None:
        """Text of paragraphs."""
        if self.path[-1] != "t" or not self._in_shape:
            return
        if not self._begun and text.strip():
            self._begun = True
            bullet = (BULLET if self._is_list else "") if self._bullet is None else self._bullet
            del self._counts[self._level + (bullet not in ("", BULLET)) :]
            if bullet and "tc" not in self.path[-6:] and not self._as_notes:
                self.lines.item(f"{'  ' * self._level}{bullet} ")
        self.lines.words(text)

    def _next_number(self, attributes: dict[str, str]) -> str:
        del self._counts[self._level + 1 :]
        self._counts += [0] * (self._level + 1 - len(self._counts))
        self._counts[self._level] = (self._counts[self._level] or number_or(attributes.get("startAt"), 1) - 1) + 1
        kind = attributes.get("type", "")
        form = next((form for start, form in FORMS.items() if kind.startswith(start)), "decimal")
        number = written(self._counts[self._level], form)
        if kind.endswith("ParenBoth"):
            return f"({number})"
        return number + (")" if kind.endswith("ParenR") else "" if kind.endswith("Plain") else ".")

    @property
    def _is_list(self) -> bool:
        return self._kind in LISTS and self._kind != "subTitle"

    def _end_shape(self, text: str) -> None:
        kind, self._kind = self._kind, None
        if kind in AROUND:
            return
        if kind in TITLES and not self.title:
            self.title = " ".join(text.split())
        else:
            self._texts.append(text)
