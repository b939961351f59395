"""Word files: the text of the final document as a reader sees it (ECMA-376, part 1, section 17).

Without tracked deletions, hidden text, comments and field codes. Notes get numbers where they are called and at their
text; numbers of lists and headings are counted as in Word.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import BinaryIO
from xml.etree.ElementTree import Element

from app.documents.archive import MAX_TOTAL_BYTES, Archive, Refused
from app.documents.charset import SYMBOL
from app.documents.elements import Reader
from app.documents.messages import Message
from app.documents.numbering import Numbering, is_on, number_or, read_numbering, value
from app.documents.strict_xml import DAMAGED, optional, related, stated

SIGNS = {"noBreakHyphen": "-", "ptab": "    ", "tab": "    "}
OF_EQUATIONS = {"num": "", "den": "/", "sub": "_", "sup": "^"}  # parts that stand above or below others, with a sign
BRACKETS = (("begChr", "("), ("sepChr", "|"), ("endChr", ")"))  # of equations, unless they name others
HEADING_LEVELS = range(9)  # outline level 9 is running text
MOST_BASES = 20  # styles below a style
# Deleted or moved away; fallbacks for older programs; pronunciations of characters.
LEFT_OUT = frozenset(["del", "moveFrom", "Fallback", "rt"])
# Styles and fonts of programs: their lines and spaces stay.
CODE_STYLES = frozenset(["html preformatted", "preformatted text", "source code", "code", "macro", "macro text"])
MONOSPACED = ("mono", "courier", "consol", "menlo", "monaco", "typewriter", "fixed", "terminal", "source code")
WINGDINGS = dict(zip(b"JL\xa8\xd8\xdf\xe0\xe8\xef\xf0\xfb\xfc\xfe", "☺☹◻➢←→➔⇦⇨✗✓☑", strict=True))  # the usual ones


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
    read_notes(archive, parts, body)
    title, body.authors, body.language = stated(optional(archive, package.get("core-properties")))
    body.title = title or body.title
    body.damaged |= len(body.notes) < len(body.calls)
    yield from body.messages()


def read_notes(archive: Archive, parts: Mapping[str, str], body: "Body") -> None:
    """Give a text the notes that it calls."""
    for kind in {call.partition(" ")[0] for call in body.calls}:
        part = Body({}, {}, kind)
        with suppress(*DAMAGED):
            part.read(archive.read(parts.get(kind, "")))
        body.notes |= {call: text for call, text in part.notes.items() if call in body.calls}


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """The relevant properties of a paragraph or its style."""

    heading: int | None = None  # outline level, 0: the highest
    is_title: bool = False
    is_code: bool = False
    list_id: str = ""
    list_level: int = 0


def read_styles(root: Element | None) -> dict[str, Style]:
    """The paragraph styles by identifier, with inherited properties."""
    elements = {} if root is None else {element.get("styleId", ""): element for element in root.iter("style")}
    styles: dict[str, Style] = {}
    for style_id in elements:
        chain = [style_id]
        while len(chain) < MOST_BASES and (base := value(elements[chain[-1]], "basedOn")) in elements:
            chain.append(base)
        styles[style_id] = Style()
        for each in reversed(chain):
            styles[style_id] = read_style(elements[each], styles[style_id])
    if any(element.get("default") == "1" and styles[key].is_code for key, element in elements.items()):
        return {key: replace(style, is_code=False) for key, style in styles.items()}  # a manuscript from a typewriter
    return styles


def read_style(element: Element, base: Style) -> Style:
    """One style, based on another. Built-in styles have English names in every language."""
    name = value(element, "name").lower()
    style = with_properties(base, element.find("pPr"))
    if name.startswith("heading ") and style.heading is None:
        style = replace(style, heading=number_or(name.removeprefix("heading "), 10) - 1)
    fonts = element.find("rPr/rFonts")
    is_code = style.is_code if fonts is None else any(font in fonts.get("ascii", "").lower() for font in MONOSPACED)
    return replace(style, is_title=name == "title", is_code=is_code or name in CODE_STYLES)


def with_properties(style: Style, properties: Element | None) -> Style:
    """A style with the changes of a paragraph's or a style's own properties."""
    if properties is None:
        return style
    if outline := value(properties, "outlineLvl"):
        style = replace(style, heading=number_or(outline, 9))
    numbering = properties.find("numPr")
    if numbering is not None:
        list_level = number_or(value(numbering, "ilvl"), style.list_level)
        style = replace(style, list_id=value(numbering, "numId") or style.list_id, list_level=list_level)
    return style


class Body(Reader):
    """The text of a part of a Word file."""

    left_out = LEFT_OUT
    signs = SIGNS

    def __init__(self, styles: dict[str, Style], lists: dict[str, Numbering], root: str = "document") -> None:
        super().__init__()
        self.roots = frozenset([root])
        self._styles, self._lists = styles, lists
        self._style = Style()  # of the paragraph
        self._continues = False  # the end of the last paragraph was deleted, so the next one goes on with it
        self._after_code = False
        self._hidden = False  # the run

    def part_of_equation(self, element: Element) -> None:
        """A part of an equation that is no line of its own here: a/(b+c), x^2."""
        letters = "".join(part.text or "" for part in element.iter("t"))
        opens, closes = ("", "") if len(letters) == 1 or letters.isdecimal() else ("(", ")")
        if letters:
            self.put(OF_EQUATIONS[element.tag] + opens)
            self.children(element)
            self.put(closes)

    on_num = on_den = on_sub = on_sup = part_of_equation

    def on_rad(self, element: Element) -> None:
        """A root: √(x), √[3](x)."""
        degree = "".join(part.text or "" for part in element.iterfind("deg//t"))
        self.put("√" + (f"[{degree}](" if degree else "("))
        for part in element.iterfind("e"):
            self.children(part)
        self.put(")")

    def on_nary(self, element: Element) -> None:
        """A sum, an integral and the like, with its limits."""
        self.put(value(element, "naryPr/chr") or "∫")
        self.children(element)

    def on_d(self, element: Element) -> None:
        """Parts of an equation in brackets."""
        own = {sign.tag: sign.get("val", "") for sign in element.iterfind("dPr/*")}
        begin, apart, end = (own.get(name, usual) for name, usual in BRACKETS)
        for number, part in enumerate(element.iterfind("e")):
            self.put(apart if number else begin)
            self.children(part)
        self.put(end)

    def on_p(self, element: Element) -> None:
        """A paragraph."""
        properties = element.find("pPr")
        style, goes_on = Style(), False
        if properties is not None:
            style = with_properties(self._styles.get(value(properties, "pStyle"), Style()), properties)
            goes_on = any(properties.find(f"rPr/{tag}") is not None for tag in ("del", "moveFrom"))
        if goes_on and all(child.find(".//t") is None for child in element if child.tag not in LEFT_OUT):
            return  # deleted with its end
        marker = self._lists.get(style.list_id, Numbering()).marker(style.list_level)
        is_item = bool(marker) and style.heading not in HEADING_LEVELS
        if is_item and not self._continues:
            self.lines.item(style.list_level, marker)
        elif not self._continues:
            self.lines.border(1 if style.is_code and self._after_code else 2)
            if style.heading in HEADING_LEVELS:
                self.lines.heading((style.heading or 0) + 1, marker)
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

    def on_pPr(self, element: Element) -> None:
        """Properties, which `on_p` has read."""

    def on_r(self, element: Element) -> None:
        """A run."""
        outer, self._hidden = self._hidden, is_on(element.find("rPr/vanish"))
        position = element.find("rPr/vertAlign")
        above = position is not None and position.get("val") == "superscript"
        (self.raised if above else self.children)(element)
        self._hidden = outer

    def on_t(self, element: Element) -> None:
        """Text of a run."""
        self.put(element.text or "")
        if self._style.is_title and not self._hidden:
            self.add_title(element.text or "")

    def put(self, text: str) -> None:
        """Text, unless it is hidden; in a program as it is."""
        if not self._hidden:
            (self.lines.verbatim if self._style.is_code else super().put)(text)

    def on_br(self, element: Element) -> None:
        """The end of a line, a column or a page."""
        if self._hidden:
            return
        if element.get("type") in ("page", "column"):
            self.lines.border(2)
        else:
            self.lines.line_break()

    def on_sym(self, element: Element) -> None:
        """A sign of a font of signs in plain letters; if there is none, the sign for a lost character."""
        code = re.fullmatch(r"(?:F0|00)?([0-9A-F]{2})", element.get("char", ""), re.IGNORECASE)
        signs = {"Symbol": SYMBOL, "Wingdings": WINGDINGS}.get(element.get("font", ""), {})
        self.put(signs.get(int(code[1], 16) if code else 0, "�"))

    def on_footnoteReference(self, element: Element) -> None:
        """The call of a note."""
        if not self._hidden:
            self.call(f"{element.tag.removesuffix('Reference')}s {element.get('id')}")

    def on_footnote(self, element: Element) -> None:
        """A note, in a part of notes; those with a type are lines between notes and text."""
        kind = f"{element.tag}s"
        if "type" not in element.attrib and element.get("id") and kind in self.roots:
            self.notes[f"{kind} {element.get('id')}"] = self.aside(element)

    def on_altChunk(self, element: Element) -> None:
        """Text in another file."""
        self.damaged = True
        self.children(element)

    on_cr, on_subDoc, on_txbxContent = on_br, on_altChunk, Reader.box
    on_endnote, on_endnoteReference = on_footnote, on_footnoteReference
    on_tbl, on_tr, on_tc, on_blip, on_imagedata = Reader.table, Reader.row, Reader.cell, Reader.image, Reader.image
