"""Word files: the text of the final document as a reader sees it (ECMA-376, part 1, section 17).

Without tracked deletions, hidden text, comments and field codes. Notes get numbers where they are called and at their
text; numbers of lists and headings are counted as in Word.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import BinaryIO, NamedTuple
from xml.etree import ElementTree

from app.documents.archive import MAX_TOTAL_BYTES, Archive, Refused
from app.documents.elements import Elements, Table, with_notes
from app.documents.messages import Message, whole
from app.documents.metadata import MAX_AUTHORS
from app.documents.numbering import Numbering, number_or, read_numbering, value
from app.documents.package import texts_of
from app.documents.relations import DAMAGED, optional, related
from app.documents.strict_xml import feed

TAB = "    "
HEADING_LEVELS = range(9)  # outline level 9 is running text
# Deleted or moved away; fallbacks for older programs; pronunciations of characters.
LEFT_OUT = frozenset(["del", "moveFrom", "Fallback", "rt"])
ELSEWHERE = frozenset(["altChunk", "subDoc"])  # text in other files
NOTE_PARTS = {"footnote": "footnotes", "endnote": "endnotes"}
NOTES = {"footnoteReference": "footnote", "endnoteReference": "endnote"}
IN_RUN = frozenset(["tab", "ptab", "br", "cr", "noBreakHyphen", "sym", *NOTES])
# Styles and fonts of programs: their lines and spaces stay.
CODE_STYLES = frozenset(["html preformatted", "preformatted text", "source code", "code", "macro", "macro text"])
MONOSPACED = ("mono", "courier", "consol", "menlo", "monaco", "typewriter", "fixed", "terminal", "source code")
OFF = frozenset(["0", "false", "off"])
# The Greek letters that the font Symbol shows for Latin ones.
SYMBOL = dict(
    zip(
        "abgdezhqiklmnxoprstufcywABGDEZHQIKLMNXOPRSTUFCYW",
        "αβγδεζηθικλμνξοπρστυφχψωΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩ",
        strict=True,
    )
)


def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file."""
    archive = Archive(stream, MAX_TOTAL_BYTES)  # a long book is one entry
    package = related(archive, "")
    main = package.get("officeDocument", "word/document.xml")
    if main not in archive:
        raise Refused("no container")
    parts = related(archive, main)
    body = Body(
        read_styles(optional(archive, parts.get("styles"))), read_numbering(optional(archive, parts.get("numbering")))
    )
    feed(archive.read(main), body)
    text, headings = body.marked()
    notes, is_complete = read_notes(archive, parts, body)
    properties = optional(archive, package.get("core-properties"))
    stated = {tag: [] if properties is None else texts_of(properties, tag) for tag in ("title", "creator", "language")}
    yield from whole(
        next(filter(None, [*stated["title"], body.title]), ""),
        with_notes(text, notes),
        headings,
        has_image=body.has_image,
        damaged=body.refers_elsewhere or not is_complete,
        authors=[name for names in stated["creator"] for name in names.split(";")][:MAX_AUTHORS],
        language=next(iter(stated["language"]), ""),
    )


def read_notes(archive: Archive, parts: Mapping[str, str], body: "Body") -> tuple[list[str], bool]:
    """The texts of all notes that the body calls, by their numbers; and whether none is missing."""
    texts: dict[tuple[str, str], str] = {}
    for kind in {call.kind for call in body.calls}:
        part = Body({}, read_numbering(None), NOTE_PARTS[kind])
        try:
            feed(archive.read(parts.get(NOTE_PARTS[kind], "")), part)
        except DAMAGED:
            continue
        texts |= {(kind, note_id): text for note_id, text in part.notes.items()}
    found = [(number, texts.get(call)) for number, call in enumerate(body.calls, 1)]
    notes = [f"[{number}] {text}" for number, text in found if text]
    return notes, all(text is not None for _, text in found)


class ListPlace(NamedTuple):
    """The list of a paragraph, and its level there."""

    list_id: str
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """The relevant properties of a paragraph style."""

    heading: int | None = None  # outline level, 0: the highest
    is_title: bool = False
    is_code: bool = False
    place: ListPlace | None = None


@dataclass(slots=True)
class Paragraph:
    """The state of the paragraph being read."""

    style: Style = field(default_factory=Style)
    begun: bool = False
    is_item: bool = False
    goes_on: bool = False  # its end was deleted, so the next paragraph continues it


class NoteCall(NamedTuple):
    """A call of a note in the text."""

    kind: str
    note_id: str


def read_styles(root: ElementTree.Element | None) -> dict[str, Style]:
    """The paragraph styles by identifier, with inherited properties."""
    elements = {} if root is None else {element.get("styleId", ""): element for element in root.iter("style")}
    styles: dict[str, Style] = {}
    for style_id in elements:
        chain: dict[str, None] = {}  # in order
        while style_id in elements and style_id not in chain and style_id not in styles:
            chain[style_id] = None
            style_id = value(elements[style_id], "basedOn")
        for each in reversed(chain):
            base = styles.get(value(elements[each], "basedOn"), Style())
            styles[each] = read_style(elements[each], base)
    if any(element.get("default") == "1" and styles[key].is_code for key, element in elements.items()):
        return {key: replace(style, is_code=False) for key, style in styles.items()}  # a manuscript from a typewriter
    return styles


def read_style(element: ElementTree.Element, base: Style) -> Style:
    """One style, based on another. Built-in styles have English names in every language."""
    name = value(element, "name").lower()
    properties = element.find("pPr")
    style = base if properties is None else with_properties(base, properties)
    if name.startswith("heading ") and style.heading is None:
        style = replace(style, heading=number_or(name.removeprefix("heading "), 10) - 1)
    fonts = element.find("rPr/rFonts")
    is_code = name in CODE_STYLES or (style.is_code if fonts is None else is_monospaced(fonts))
    return replace(style, is_title=name == "title", is_code=is_code)


def is_monospaced(fonts: ElementTree.Element) -> bool:
    """Whether Latin letters are all as wide."""
    return any(word in fonts.get("ascii", "").lower() for word in MONOSPACED)


def with_properties(style: Style, properties: ElementTree.Element) -> Style:
    """A style with the changes of a paragraph's or a style's own properties."""
    if outline := value(properties, "outlineLvl"):
        style = replace(style, heading=number_or(outline, 9))
    numbering = properties.find("numPr")
    if numbering is not None:
        inherited = style.place or ListPlace("0", 0)
        list_id = value(numbering, "numId") or inherited.list_id
        style = replace(style, place=ListPlace(list_id, number_or(value(numbering, "ilvl"), inherited.level)))
    return style


class Body(Elements):
    """The text of a part of a Word file."""

    def __init__(self, styles: dict[str, Style], numbering: Numbering, root: str = "document") -> None:
        super().__init__()
        self.root = frozenset([root])
        self.refers_elsewhere = False
        self.calls: list[NoteCall] = []  # in the order of their numbers
        self._numbers: dict[NoteCall, int] = {}
        self.notes: dict[str, str] = {}  # texts of footnotes.xml or endnotes.xml by identifier
        self.title = ""
        self._styles, self._numbering = styles, numbering
        self._properties: ElementTree.TreeBuilder | None = None
        self._paragraphs: list[Paragraph] = []
        self._continues = False
        self._after_code = False
        self._tables = Table()
        self._hidden: list[bool] = []  # for each open run
        self._note = ""

    def leaves_out(self, tag: str, attributes: dict[str, str]) -> bool:
        """What the final document does not show; a paragraph begins with whatever is in it."""
        if self._properties:
            return False
        if self.parent == "p" and tag != "pPr":
            self._begin_paragraph()
        return tag in LEFT_OUT

    def begin(self, tag: str, attributes: dict[str, str]) -> None:
        """An element begins that is read."""
        parent = self.parent
        if self._properties:
            self._properties.start(tag, attributes)
            return
        self.has_image |= tag in ("blip", "imagedata")
        self.refers_elsewhere |= tag in ELSEWHERE
        if tag == "pPr" and parent == "p":
            self._properties = ElementTree.TreeBuilder()
            self._properties.start(tag, attributes)
        elif parent == "r" and tag in IN_RUN:
            if not (self._hidden and self._hidden[-1]):
                self._start_in_run(tag, attributes)
        elif parent == "rPr" and tag == "vanish" and self._hidden:
            self._hidden[-1] = attributes.get("val", "") not in OFF
        else:
            self._start_block(tag, attributes)

    def finish(self, tag: str) -> None:
        """An element ends that is read."""
        if self._properties:
            self._properties.end(tag)
            if tag == "pPr" and self.parent == "p":
                properties, self._properties = self._properties.close(), None
                self._begin_paragraph(properties)
            return
        match tag:
            case "p" if self._paragraphs:
                self._end_paragraph()
            case "r" if self._hidden:
                self._hidden.pop()
            case "tr":
                self._tables.end_of_row(self.lines)
            case "tbl":
                self._tables.end(self.lines)
            case "txbxContent":
                self.end_of_box()
            case "footnote" | "endnote" if self._note:
                self.notes[self._note], self._note = self.text_of_aside(), ""

    def words(self, text: str) -> None:
        """Text of runs."""
        if self._properties or self.path[-1] != "t" or (self._hidden and self._hidden[-1]):
            return
        self._text(text)
        if self._paragraphs and self._paragraphs[-1].style.is_title and len(self.title) < 1_000:
            self.title += text

    def _text(self, text: str) -> None:
        if self._paragraphs and self._paragraphs[-1].style.is_code:
            self.lines.verbatim(text)
        else:
            self.lines.words(text)

    def _start_in_run(self, tag: str, attributes: dict[str, str]) -> None:
        match tag:
            case "tab" | "ptab":
                self._text(TAB)
            case "br" if attributes.get("type") in ("page", "column"):
                self.lines.border(2)
            case "br" | "cr":
                self.lines.line_break()
            case "noBreakHyphen":
                self.lines.words("-")
            case "sym":
                self.lines.words(symbol(attributes))
            case "footnoteReference" | "endnoteReference":
                self.lines.words(f"[{self._number_of(NoteCall(NOTES[tag], attributes.get('id', '')))}]")

    def _start_block(self, tag: str, attributes: dict[str, str]) -> None:
        match tag:
            case "p":
                self._paragraphs.append(Paragraph())
            case "r":
                self._hidden.append(False)
            case "tbl":
                self._tables.begin(self.lines)
            case "tr":
                self._tables.row(self.lines)
            case "tc":
                self._tables.cell(self.lines)
            case "txbxContent":
                self.aside()
            case "footnote" | "endnote" if "type" not in attributes and attributes.get("id") and f"{tag}s" in self.root:
                self.aside()
                self._note = attributes["id"]

    def _begin_paragraph(self, properties: ElementTree.Element | None = None) -> None:
        paragraph = self._paragraphs[-1]
        if paragraph.begun:
            return
        paragraph.begun = True
        if properties is not None:
            style = self._styles.get(value(properties, "pStyle"), Style())
            paragraph.style = with_properties(style, properties)
            mark = properties.find("rPr")
            paragraph.goes_on = mark is not None and any(mark.find(tag) is not None for tag in ("del", "moveFrom"))
        place = paragraph.style.place
        marker = self._numbering.marker(place.list_id, place.level) if place else ""
        is_heading = paragraph.style.heading in HEADING_LEVELS
        paragraph.is_item = bool(marker) and not is_heading
        if self._continues:
            return
        if paragraph.is_item and place:
            self.lines.item(f"{'  ' * place.level}{marker} ")
            return
        self.lines.border(1 if paragraph.style.is_code and self._after_code else 2)
        if is_heading and paragraph.style.heading is not None:
            self.lines.heading(paragraph.style.heading + 1)
            self.lines.words(f"{marker} " if marker else "")

    def _end_paragraph(self) -> None:
        self._begin_paragraph()
        paragraph = self._paragraphs.pop()
        self.lines.end_of_heading()
        if paragraph.is_item:
            self.lines.end_of_prefixed()
        self._continues, self._after_code = paragraph.goes_on, paragraph.style.is_code
        if paragraph.style.is_code and not paragraph.is_item:
            self.lines.line_break()  # and an empty line of a program stays one
        elif not paragraph.goes_on:
            self.lines.border(1 if paragraph.is_item else 2)
        if len(self._outer) == bool(self._note):
            self.add_boxes()

    def _number_of(self, call: NoteCall) -> int:
        if call not in self._numbers:
            self.calls.append(call)
            self._numbers[call] = len(self.calls)
        return self._numbers[call]


def symbol(attributes: dict[str, str]) -> str:
    """The character of a symbol font in plain letters; if there is none, the sign for a lost character."""
    code = attributes.get("char", "")
    try:
        char = chr(int(code, 16) & 0xFF if code.upper().startswith("F0") else int(code, 16))
    except (ValueError, OverflowError):
        return "�"
    return SYMBOL.get(char, "�") if attributes.get("font") == "Symbol" else "�"
