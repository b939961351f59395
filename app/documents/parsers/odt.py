"""OpenDocument text: the final text as a reader sees it (OpenDocument 1.3, part 3).

Without tracked deletions, hidden text and comments. Numbers of headings and lists are counted, as they are not part of
the text; notes follow the text.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO
from xml.etree.ElementTree import Element

from app.documents.archive import MAX_TOTAL_BYTES, Archive, BadEntry, Refused
from app.documents.charset import decode_markup
from app.documents.elements import Reader
from app.documents.messages import Message
from app.documents.numbering import FORMS, MAX_LEVELS, Level, Numbering, number_or
from app.documents.parsers.html import read_markup
from app.documents.strict_xml import optional, stated

BULLETS = frozenset(["list-level-style-bullet", "list-level-style-image"])
LEVELS = BULLETS | {"list-level-style-number", "outline-level-style"}
IN_LINE = frozenset(["a", "h", "p", "span"])
SIGNS = {"s": " ", "tab": " "}
RAISED = re.compile("super|[1-9]")  # a position of text
FORMULA, MAX_HEAD = re.compile(r"<(?:\w{1,20}:)?math[\s>]"), 1_000  # characters
OUTLINE = "outline"
CONTENT, STYLES, META, MANIFEST = "content.xml", "styles.xml", "meta.xml", "META-INF/manifest.xml"


def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file."""
    archive = Archive(stream, MAX_TOTAL_BYTES)  # a long book is one entry
    manifest = optional(archive, MANIFEST)
    if manifest is not None and next(manifest.iter("encryption-data"), None) is not None:
        raise Refused("password")
    if CONTENT not in archive:
        raise Refused("no container")
    styles = Styles()
    styles.add(optional(archive, STYLES))  # only numbers and titles need them
    body = Body(styles, archive)
    body.read(archive.read(CONTENT))
    title, body.authors, body.language = stated(optional(archive, META))
    body.title = title or body.title
    yield from body.messages()


class Styles:
    """What the styles of a file say about its text."""

    def __init__(self) -> None:
        self.hidden: set[str] = set()
        self.raised: set[str] = set()  # above the line
        self.parents: dict[str, str] = {}
        self.lists: dict[str, list[Level]] = {}

    def add(self, root: Element | None) -> None:
        """Those of a part of the file."""
        parts = [] if root is None else [part for part in root if part.tag not in ("body", "master-styles")]
        for style in (element for part in parts for element in part.iter()):
            name = style.get("name", "")
            if style.tag == "style":
                self.parents[name] = style.get("parent-style-name", "")
                for properties in style.iter("text-properties"):
                    if properties.get("display") == "none":
                        self.hidden.add(name)
                    if RAISED.match(properties.get("text-position", "")):
                        self.raised.add(name)
            elif style.tag in ("list-style", "outline-style"):
                self.lists[OUTLINE if style.tag == "outline-style" else f"list {name}"] = levels_of(style)

    def is_title(self, name: str) -> bool:
        """Whether a paragraph style is the built-in one for titles, or directly based on it."""
        return "Title" in (name, self.parents.get(name))


class Body(Reader):
    """The text of content.xml."""

    roots = frozenset(["document-content"])
    left_out = frozenset(
        [
            "annotation", "covered-table-cell", "desc", "forms", "hidden-text", "note-citation", "number", "ruby-text",
            "script", "scripts", "tracked-changes",
        ]
    )  # fmt: skip
    signs = SIGNS

    def __init__(self, styles: Styles, archive: Archive) -> None:
        super().__init__()
        self._archive = archive
        self._styles = styles
        self._outline = Numbering()
        self._lists: list[Numbering] = []  # the open ones
        self._last_list: dict[str, Numbering] = {}  # of each list style, and by its identifier
        self._paragraphs: list[bool] = []  # for each open one: whether its text is the title

    def visit(self, element: Element) -> None:
        """Read an element, unless it is hidden, or tells how a list of contents is made, or describes a drawing."""
        hidden = element.tag == "span" and element.get("style-name", "") in self._styles.hidden
        described = element.tag == "title" and self.path[-1:] and self.path[-1] not in IN_LINE
        if not (hidden or described or element.tag.endswith("-source") or element.get("display") == "none"):
            super().visit(element)

    def on_document_content(self, element: Element) -> None:
        """The whole file: styles, then the text."""
        self._styles.add(element)
        self._outline.levels = self._styles.lists.get(OUTLINE, [])
        for body in element.iterfind("body"):
            self.children(body)

    def on_p(self, element: Element) -> None:
        """A paragraph, or a heading with its number; in a note there is none."""
        self._paragraphs.append(not self.title and self._styles.is_title(element.get("style-name", "")))
        self.lines.border(1 if self._lists and element.tag == "p" else 2)
        if element.tag == "h" and "note" not in self.path:
            level = max(1, number_or(element.get("outline-level"), 1))
            has_number = element.get("is-list-header") != "true"
            self.lines.heading(level, self._outline.marker(level - 1) if has_number else "")
        self.children(element)
        self._paragraphs.pop()
        self.lines.end_of_heading()
        self.lines.border(1 if self._lists else 2)
        if not self._paragraphs:
            self.add_boxes()

    def on_span(self, element: Element) -> None:
        """A piece of a paragraph with a style of its own."""
        (self.raised if element.get("style-name") in self._styles.raised else self.children)(element)

    def on_line_break(self, element: Element) -> None:
        """The end of a line."""
        self.lines.line_break()

    def on_note(self, element: Element) -> None:
        """A note, where it is called."""
        note = str(len(self.calls))
        self.call(note)
        self.notes[note] = self.aside(element)

    def on_text_box(self, element: Element) -> None:
        """A box, in a paragraph or beside one."""
        self.box(element)
        if not self._paragraphs:
            self.add_boxes()

    def on_object(self, element: Element) -> None:
        """An object of another program: the text of a formula, else a picture."""
        name, markup = self._archive.find("", f"{element.get('href', '')}/{CONTENT}"), ""
        if name:
            with suppress(BadEntry, AssertionError):
                markup = decode_markup(self._archive.read(name)) or ""
        if FORMULA.search(markup[:MAX_HEAD]):
            self.put(read_markup(markup).lines.marked().text)
        else:
            self.image(element)

    def on_list(self, element: Element) -> None:
        """A list; one in another has its numbering, unless it names one."""
        style = element.get("style-name", "")
        self.lines.border(1)
        self._lists.append(self._lists[-1] if self._lists and not style else self._numbering_of(style, element))
        self.children(element)
        self._lists.pop()
        self.lines.border(1)

    def _numbering_of(self, style: str, element: Element) -> Numbering:
        """The numbering of a list: a new one, or that of the list that it continues."""
        goes_on = element.get("continue-list") or (style if element.get("continue-numbering") == "true" else "")
        levels = self._styles.lists.get(f"list {style}") or [Level()] * MAX_LEVELS
        numbering = self._last_list.get(goes_on) or Numbering(levels)
        self._last_list[style] = self._last_list[element.get("id", style)] = numbering
        return numbering

    def on_list_item(self, element: Element) -> None:
        """An item with its number."""
        if self._lists:
            level, numbering = len(self._lists) - 1, self._lists[-1]
            if level < MAX_LEVELS and (start := number_or(element.get("start-value"), -1)) >= 0:
                numbering.counts[level] = start - 1
            self.lines.item(level, numbering.marker(level))
        self.children(element)
        self.lines.end_of_prefixed()
        self.lines.border(1)

    def words(self, text: str) -> None:
        """Text of paragraphs: other white space only lays out the file."""
        if self._paragraphs:
            self.put(text)
            if self._paragraphs[-1]:
                self.add_title(text)

    on_h, on_table, on_table_row, on_table_cell = on_p, Reader.table, Reader.row, Reader.cell
    on_image = on_object_ole = on_plugin = Reader.image


def levels_of(style: Element) -> list[Level]:
    """The levels of a list style."""
    levels = [Level(format="none")] * MAX_LEVELS
    for entry in style.iter():
        level = number_or(entry.get("level"), 0) - 1
        if entry.tag in LEVELS and 0 <= level < MAX_LEVELS:
            levels[level] = Level() if entry.tag in BULLETS else numbered_level(level, entry.attrib)
    return levels


def numbered_level(level: int, attributes: dict[str, str]) -> Level:
    """One level of a list style, in the terms of `numbering`."""
    shown = min(max(1, number_or(attributes.get("display-levels"), 1)), level + 1)
    numbers = ".".join(f"%{number + 1}" for number in range(level - shown + 1, level + 1))
    return Level(
        format=FORMS.get(attributes.get("num-format", ""), "decimal"),
        pattern=attributes.get("num-prefix", "")[:20] + numbers + attributes.get("num-suffix", "")[:20],
        start=number_or(attributes.get("start-value"), 1),
    )
