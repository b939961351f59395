"""Word files: the text of the final document as a reader sees it (ECMA-376, part 1, section 17).

Without tracked deletions, hidden text, comments and field codes. Notes get numbers where they are called and at their
text; numbers of lists and headings are counted as in Word.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import BinaryIO, NamedTuple
from xml.etree.ElementTree import Element

from app.documents.archive import MAX_TOTAL_BYTES, Archive, Refused
from app.documents.elements import Reader, with_notes
from app.documents.messages import Message, whole
from app.documents.metadata import MAX_AUTHORS
from app.documents.numbering import Numbering, number_or, read_numbering, value
from app.documents.relations import DAMAGED, optional, related
from app.documents.strict_xml import texts_of

TAB = "    "
HEADING_LEVELS = range(9)  # outline level 9 is running text
# Deleted or moved away; fallbacks for older programs; pronunciations of characters.
LEFT_OUT = frozenset(["del", "moveFrom", "Fallback", "rt"])
NOTE_PARTS = {"footnote": "footnotes", "endnote": "endnotes"}
NOTES = {"footnoteReference": "footnote", "endnoteReference": "endnote"}
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
    body.read(archive.read(main))
    text, headings = body.lines.marked()
    notes, is_complete = read_notes(archive, parts, body)
    properties = optional(archive, package.get("core-properties"))
    yield from whole(
        next(filter(None, [*texts_of(properties, "title"), body.title]), ""),
        with_notes(text, notes),
        headings,
        has_image=body.has_image,
        damaged=body.refers_elsewhere or not is_complete,
        authors=[name for names in texts_of(properties, "creator") for name in names.split(";")][:MAX_AUTHORS],
        language=next(iter(texts_of(properties, "language")), ""),
    )


def read_notes(archive: Archive, parts: Mapping[str, str], body: "Body") -> tuple[list[str], bool]:
    """The texts of all notes that the body calls, by their numbers; and whether none is missing."""
    texts: dict[tuple[str, str], str] = {}
    for kind in {call.kind for call in body.calls}:
        part = Body({}, {}, NOTE_PARTS[kind])
        with suppress(*DAMAGED):
            part.read(archive.read(parts.get(NOTE_PARTS[kind], "")))
        texts |= {(kind, note_id): text for note_id, text in part.notes.items()}
    found = [(number, texts.get(call)) for call, number in body.calls.items()]
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


class NoteCall(NamedTuple):
    """A call of a note in the text."""

    kind: str
    note_id: str


def read_styles(root: Element | None) -> dict[str, Style]:
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


def read_style(element: Element, base: Style) -> Style:
    """One style, based on another. Built-in styles have English names in every language."""
    name = value(element, "name").lower()
    properties = element.find("pPr")
    style = base if properties is None else with_properties(base, properties)
    if name.startswith("heading ") and style.heading is None:
        style = replace(style, heading=number_or(name.removeprefix("heading "), 10) - 1)
    fonts = element.find("rPr/rFonts")
    is_code = name in CODE_STYLES or (style.is_code if fonts is None else is_monospaced(fonts))
    return replace(style, is_title=name == "title", is_code=is_code)


def is_monospaced(fonts: Element) -> bool:
    """Whether Latin letters are all as wide."""
    return any(word in fonts.get("ascii", "").lower() for word in MONOSPACED)


def with_properties(style: Style, properties: Element) -> Style:
    """A style with the changes of a paragraph's or a style's own properties."""
    if outline := value(properties, "outlineLvl"):
        style = replace(style, heading=number_or(outline, 9))
    numbering = properties.find("numPr")
    if numbering is not None:
        inherited = style.place or ListPlace("0", 0)
        list_id = value(numbering, "numId") or inherited.list_id
        style = replace(style, place=ListPlace(list_id, number_or(value(numbering, "ilvl"), inherited.level)))
    return style


class Body(Reader):
    """The text of a part of a Word file."""

    left_out = LEFT_OUT

    def __init__(self, styles: dict[str, Style], lists: dict[str, Numbering], root: str = "document") -> None:
        super().__init__()
        self.roots = frozenset([root])
        self.refers_elsewhere = False
        self.calls: dict[NoteCall, int] = {}  # of notes, with their numbers
        self.notes: dict[str, str] = {}  # texts of footnotes.xml or endnotes.xml by identifier
        self.title = ""
        self._styles, self._lists = styles, lists
        self._style = Style()  # of the paragraph
        self._continues = False  # the end of the last paragraph was deleted, so the next one goes on with it
        self._after_code = False
        self._hidden = False  # the run

    def on_p(self, element: Element) -> None:
        """A paragraph."""
        properties = element.find("pPr")
        style, goes_on = Style(), False
        if properties is not None:
            style = with_properties(self._styles.get(value(properties, "pStyle"), Style()), properties)
            mark = properties.find("rPr")
            goes_on = mark is not None and any(mark.find(tag) is not None for tag in ("del", "moveFrom"))
        is_item = self._begin_paragraph(style)
        outer, self._style = self._style, style
        self.children(element)
        self._style = outer
        self.lines.end_of_heading()
        if is_item:
            self.lines.end_of_prefixed()
        self._continues, self._after_code = goes_on, style.is_code
        if style.is_code and not is_item:
            self.lines.line_break()  # and an empty line of a program stays one
        elif not goes_on:
            self.lines.border(1 if is_item else 2)
        self.add_boxes()

    def _begin_paragraph(self, style: Style) -> bool:
        """Borders, the number and the level of a paragraph; whether it is an item of a list."""
        place = style.place
        marker = self._lists.get(place.list_id, Numbering()).marker(place.level) if place else ""
        is_heading = style.heading in HEADING_LEVELS
        is_item = bool(marker) and not is_heading
        if self._continues:
            return is_item
        if is_item and place:
            self.lines.item(f"{'  ' * place.level}{marker} ")
            return True
        self.lines.border(1 if style.is_code and self._after_code else 2)
        if is_heading and style.heading is not None:
            self.lines.heading(style.heading + 1)
            self.lines.words(f"{marker} " if marker else "")
        return False

    def on_pPr(self, element: Element) -> None:
        """Properties, which `on_p` has read."""

    def on_r(self, element: Element) -> None:
        """A run."""
        vanish = element.find("rPr/vanish")
        outer, self._hidden = self._hidden, vanish is not None and vanish.get("val", "") not in OFF
        self.children(element)
        self._hidden = outer

    def on_t(self, element: Element) -> None:
        """Text of a run."""
        text = element.text or ""
        self._text(text)
        if self._style.is_title and not self._hidden and len(self.title) < 1_000:
            self.title += text

    def _text(self, text: str, *, verbatim: bool = True) -> None:
        """Text; in a program as it is, unless it is none of the program."""
        if self._hidden:
            return
        if verbatim and self._style.is_code:
            self.lines.verbatim(text)
        else:
            self.lines.words(text)

    def on_tab(self, element: Element) -> None:
        """A step to the right."""
        self._text(TAB)

    def on_br(self, element: Element) -> None:
        """The end of a line, a column or a page."""
        if self._hidden:
            return
        if element.get("type") in ("page", "column"):
            self.lines.border(2)
        else:
            self.lines.line_break()

    def on_noBreakHyphen(self, element: Element) -> None:
        """A hyphen."""
        self._text("-", verbatim=False)

    def on_sym(self, element: Element) -> None:
        """A sign of a font of signs."""
        self._text(symbol(element.attrib), verbatim=False)

    def on_footnoteReference(self, element: Element) -> None:
        """The call of a note."""
        call = NoteCall(NOTES[element.tag], element.get("id", ""))
        if not self._hidden:
            self.lines.words(f"[{self.calls.setdefault(call, len(self.calls) + 1)}]")

    def on_footnote(self, element: Element) -> None:
        """A note, in a part of notes; those with a type are lines between notes and text."""
        if "type" not in element.attrib and element.get("id") and f"{element.tag}s" in self.roots:
            self.notes[element.attrib["id"]] = self.aside(element)

    def on_altChunk(self, element: Element) -> None:
        """Text in another file."""
        self.refers_elsewhere = True
        self.children(element)

    on_ptab, on_cr, on_subDoc, on_txbxContent = on_tab, on_br, on_altChunk, Reader.box
    on_endnote, on_endnoteReference = on_footnote, on_footnoteReference
    on_tbl, on_tr, on_tc, on_blip, on_imagedata = Reader.table, Reader.row, Reader.cell, Reader.image, Reader.image


def symbol(attributes: dict[str, str]) -> str:
    """The character of a symbol font in plain letters; if there is none, the sign for a lost character."""
    code = attributes.get("char", "")
    try:
        char = chr(int(code, 16) & 0xFF if code.upper().startswith("F0") else int(code, 16))
    except (ValueError, OverflowError):
        return "�"
    return SYMBOL.get(char, "�") if attributes.get("font") == "Symbol" else "�"
