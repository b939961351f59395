"""WordprocessingML to lines: the text of the final document as a reader sees it (ECMA-376, part 1, section 17).

Without tracked deletions, hidden text, comments and field codes. Notes get numbers where they are called and at their
text; numbers of lists and headings are counted as in Word.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple
from xml.etree import ElementTree

from app.documents.archive import Refused
from app.documents.lines import Lines, Marked
from app.documents.numbering import Numbering, number_or, value

TAB = "    "
HEADING_LEVELS = range(9)  # outline level 9 is running text
# Deleted or moved away; fallbacks for older programs; pronunciations of characters.
LEFT_OUT = frozenset(["del", "moveFrom", "Fallback", "rt"])
ELSEWHERE = frozenset(["altChunk", "subDoc"])  # text in other files
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


@dataclass(slots=True)
class Table:
    """The state of the table being read."""

    num_rows: int = 0
    num_cells: int = 0  # of the row so far


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


class Body:
    """Receives the events of a part of a Word file (see `strict_xml.Handler`) and sends their meaning to `lines`."""

    def __init__(self, styles: dict[str, Style], numbering: Numbering, root: str = "document") -> None:
        self.has_image = False
        self.refers_elsewhere = False
        self.calls: list[NoteCall] = []  # in the order of their numbers
        self._numbers: dict[NoteCall, int] = {}
        self.notes: dict[str, str] = {}  # texts of footnotes.xml or endnotes.xml by identifier
        self.title = ""
        self._styles, self._numbering, self._root = styles, numbering, root
        self._lines = Lines()
        self._outer: list[Lines] = []  # lines outside of the open text boxes
        self._boxes: list[str] = []  # texts of boxes, added after their paragraph
        self._path: list[str] = []
        self._left_out = 0  # depth of the element that is skipped; 0: none
        self._properties: ElementTree.TreeBuilder | None = None
        self._paragraphs: list[Paragraph] = []
        self._continues = False
        self._after_code = False
        self._tables: list[Table] = []
        self._hidden: list[bool] = []  # for each open run
        self._note = ""

    def marked(self) -> Marked:
        """All text so far, and its headings."""
        return self._lines.marked()

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """An element begins."""
        if not self._path and tag != self._root:
            raise Refused("no container")
        self._path.append(tag)
        parent = self._path[-2] if len(self._path) > 1 else ""
        if self._left_out:
            return
        if self._properties:
            self._properties.start(tag, attributes)
            return
        if parent == "p" and tag != "pPr":
            self._begin_paragraph()
        if tag in LEFT_OUT:
            self._left_out = len(self._path)
        elif tag == "pPr" and parent == "p":
            self._properties = ElementTree.TreeBuilder()
            self._properties.start(tag, attributes)
        elif parent == "r" and tag in IN_RUN:
            if not (self._hidden and self._hidden[-1]):
                self._start_in_run(tag, attributes)
        elif parent == "rPr" and tag == "vanish" and self._hidden:
            self._hidden[-1] = attributes.get("val", "") not in OFF
        else:
            self._start_block(tag, attributes)
        self.has_image |= tag in ("blip", "imagedata")
        self.refers_elsewhere |= tag in ELSEWHERE

    def end(self, tag: str) -> None:
        """An element ends."""
        depth = len(self._path)
        self._path.pop()
        if self._left_out:
            self._left_out = 0 if self._left_out == depth else self._left_out
            return
        if self._properties:
            self._properties.end(tag)
            if tag == "pPr" and self._path[-1] == "p":
                properties, self._properties = self._properties.close(), None
                self._begin_paragraph(properties)
            return
        match tag:
            case "p" if self._paragraphs:
                self._end_paragraph()
            case "r" if self._hidden:
                self._hidden.pop()
            case "tr" | "tbl":
                self._end_of_table(tag)
            case "txbxContent" if self._outer:
                self._boxes.append(self._lines.marked().text)
                self._lines = self._outer.pop()
            case "footnote" | "endnote" if self._note:
                self.notes[self._note] = self._lines.marked().text
                self._lines, self._note = Lines(), ""

    def data(self, text: str) -> None:
        """Text, perhaps only a part."""
        if self._left_out or self._properties or self._path[-1] != "t" or (self._hidden and self._hidden[-1]):
            return
        self._text(text)
        if self._paragraphs and self._paragraphs[-1].style.is_title and len(self.title) < 1_000:
            self.title += text

    def _text(self, text: str) -> None:
        if self._paragraphs and self._paragraphs[-1].style.is_code:
            self._lines.verbatim(text)
        else:
            self._lines.words(text)

    def _start_in_run(self, tag: str, attributes: dict[str, str]) -> None:
        match tag:
            case "tab" | "ptab":
                self._text(TAB)
            case "br" if attributes.get("type") in ("page", "column"):
                self._lines.border(2)
            case "br" | "cr":
                self._lines.line_break()
            case "noBreakHyphen":
                self._lines.words("-")
            case "sym":
                self._lines.words(symbol(attributes))
            case "footnoteReference" | "endnoteReference":
                self._lines.words(f"[{self._number_of(NoteCall(NOTES[tag], attributes.get('id', '')))}]")

    def _start_block(self, tag: str, attributes: dict[str, str]) -> None:
        match tag:
            case "p":
                self._paragraphs.append(Paragraph())
            case "r":
                self._hidden.append(False)
            case "tbl":
                self._tables.append(Table())
                self._lines.border(2)
            case "tr" if self._tables:
                table = self._tables[-1]
                self._lines.row(1 if table.num_rows else 2)
                table.num_rows, table.num_cells = table.num_rows + 1, 0
            case "tc" if self._tables:
                self._tables[-1].num_cells += 1
                if self._tables[-1].num_cells > 1:
                    self._lines.cell()
            case "txbxContent":
                self._outer.append(self._lines)
                self._lines = Lines()
            case "footnote" | "endnote" if "type" not in attributes and tag in self._root:
                self._lines, self._note = Lines(), attributes.get("id", "")

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
            self._lines.item(f"{'  ' * place.level}{marker} ")
            return
        self._lines.border(1 if paragraph.style.is_code and self._after_code else 2)
        if is_heading and paragraph.style.heading is not None:
            self._lines.heading(paragraph.style.heading + 1)
            self._lines.words(f"{marker} " if marker else "")

    def _end_paragraph(self) -> None:
        self._begin_paragraph()
        paragraph = self._paragraphs.pop()
        self._lines.end_of_heading()
        if paragraph.is_item:
            self._lines.end_of_prefixed()
        self._continues, self._after_code = paragraph.goes_on, paragraph.style.is_code
        if paragraph.style.is_code and not paragraph.is_item:
            self._lines.line_break()  # and an empty line of a program stays one
        elif not paragraph.goes_on:
            self._lines.border(1 if paragraph.is_item else 2)
        if not self._outer:
            for text in self._boxes:
                self._lines.border(2)
                self._lines.verbatim(text)
                self._lines.border(2)
            self._boxes.clear()

    def _end_of_table(self, tag: str) -> None:
        self._lines.end_of_prefixed()
        self._lines.border(1 if tag == "tr" else 2)
        if tag == "tbl":
            del self._tables[-1:]

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
