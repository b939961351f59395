"""OpenDocument text: the final text as a reader sees it (OpenDocument 1.3, part 3).

Without tracked deletions, hidden text and comments. Numbers of headings and lists are counted, as they are not part of
the text; notes follow the text.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

from app.documents.archive import MAX_TOTAL_BYTES, Archive, Refused
from app.documents.elements import Elements, Table, with_notes
from app.documents.messages import Message, whole
from app.documents.numbering import MAX_LEVELS, Level, Numbering, number_or
from app.documents.relations import DAMAGED, optional
from app.documents.strict_xml import feed, whole_text

FORMS = {"1": "decimal", "a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman", "": "none"}
IMAGES = frozenset(["image", "object", "object-ole", "plugin"])
LEVELS = frozenset(
    ["list-level-style-number", "list-level-style-bullet", "list-level-style-image", "outline-level-style"]
)
IN_LINE = frozenset(["a", "h", "p", "span"])
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
    with suppress(*DAMAGED):  # only numbers and titles need them
        feed(archive.read(STYLES), Text(styles))
    body = Text(styles)
    feed(archive.read(CONTENT), body)
    text, headings = body.marked()
    meta = optional(archive, META)
    titles = [] if meta is None else [whole_text(element) for element in meta.iter("title")]
    title = next(filter(None, titles), body.title)
    yield from whole(title, with_notes(text, body.notes), headings, has_image=body.has_image)


class Styles:
    """What the styles of a file say about its text."""

    def __init__(self) -> None:
        self.hidden: set[str] = set()
        self.parents: dict[str, str] = {}
        self.lists: dict[str, list[Level]] = {}

    def is_title(self, name: str) -> bool:
        """Whether a paragraph style is the built-in one for titles, or directly based on it."""
        return "Title" in (name, self.parents.get(name))


class Text(Elements):
    """The text of content.xml; of styles.xml only the styles."""

    root = frozenset(["document-content", "document-styles"])
    left_out = frozenset(
        [
            "annotation", "covered-table-cell", "desc", "forms", "hidden-text", "note-citation", "number", "ruby-text",
            "script", "scripts", "tracked-changes",
        ]
    )  # fmt: skip

    def __init__(self, styles: Styles) -> None:
        super().__init__()
        self.title = ""
        self.notes: list[str] = []
        self._num_notes = 0
        self._note_numbers: list[int] = []  # of the open notes
        self._styles = styles
        self._style = ""  # that is being defined
        self._in_body = False
        self._numbering = Numbering({}, {OUTLINE: OUTLINE})
        self._lists: list[str] = []  # the open ones, by their numbering
        self._last_list: dict[str, str] = {}  # the last numbering of each list style, and by its identifier
        self._num_lists = 0
        self._tables = Table()
        self._paragraphs: list[bool] = []  # for each open one: whether its text is the title

    def leaves_out(self, tag: str, attributes: dict[str, str]) -> bool:
        """Hidden text, and what only tells how a list of contents is made."""
        if not self._in_body:
            return tag == "master-styles"
        if tag == "title":  # of a drawing, and no field of the text
            return self.parent not in IN_LINE
        hidden = tag == "span" and attributes.get("style-name", "") in self._styles.hidden
        return hidden or tag.endswith("-source") or attributes.get("display") == "none"

    def begin(self, tag: str, attributes: dict[str, str]) -> None:
        """An element begins that is read."""
        if not self._in_body:
            self._in_body = tag == "body"
            self._numbering.levels[OUTLINE] = self._styles.lists.get(OUTLINE, ())
            self._begin_style(tag, attributes)
            return
        match tag:
            case "p" | "h":
                self._begin_paragraph(tag, attributes)
            case "s" | "tab":
                self.lines.words(" ")
            case "line-break":
                self.lines.line_break()
            case "note":
                self._num_notes += 1
                self._note_numbers.append(self._num_notes)
                self.lines.words(f"[{self._num_notes}]")
                self.aside()
            case "text-box":
                self.aside()
            case "list":
                self._begin_list(attributes)
            case "list-item":
                self._begin_item(attributes)
            case "table":
                self._tables.begin(self.lines)
            case "table-row":
                self._tables.row(self.lines)
            case "table-cell":
                self._tables.cell(self.lines)
            case _ if tag in IMAGES:
                self.has_image = True

    def finish(self, tag: str) -> None:
        """An element ends that is read."""
        if not self._in_body:
            return
        match tag:
            case "p" | "h" if self._paragraphs:
                self._end_paragraph()
            case "note" if self._note_numbers:
                self.notes.append(f"[{self._note_numbers.pop()}] {self.text_of_aside()}")
            case "text-box":
                self.end_of_box()
                if not self._paragraphs:
                    self.add_boxes()
            case "list":
                del self._lists[-1:]
                self.lines.border(1)
            case "list-item":
                self.lines.end_of_prefixed()
                self.lines.border(1)
            case "table-row":
                self._tables.end_of_row(self.lines)
            case "table":
                self._tables.end(self.lines)

    def words(self, text: str) -> None:
        """Text of paragraphs: other white space only lays out the file."""
        if not self._paragraphs:
            return
        self.lines.words(text)
        if self._paragraphs[-1] and len(self.title) < 1_000:
            self.title += text

    def _begin_style(self, tag: str, attributes: dict[str, str]) -> None:
        name = attributes.get("name", "")
        if tag == "style":
            self._style = name
            self._styles.parents[name] = attributes.get("parent-style-name", "")
        elif tag == "text-properties" and attributes.get("display") == "none":
            self._styles.hidden.add(self._style)
        elif tag in ("list-style", "outline-style"):
            self._style = OUTLINE if tag == "outline-style" else f"list {name}"
            self._styles.lists[self._style] = [Level(format="none")] * MAX_LEVELS
        elif tag in LEVELS and self._style in self._styles.lists:
            level = number_or(attributes.get("level"), 0) - 1
            if 0 <= level < MAX_LEVELS:
                self._styles.lists[self._style][level] = level_of(tag, level, attributes)

    def _begin_list(self, attributes: dict[str, str]) -> None:
        style = attributes.get("style-name", "")
        self.lines.border(1)
        if self._lists and not style:
            self._lists.append(self._lists[-1])
            return
        goes_on = attributes.get("continue-list") or (style if attributes.get("continue-numbering") == "true" else "")
        name = self._last_list.get(goes_on, "")
        if not name:
            self._num_lists += 1
            name = f"{self._num_lists} {style}"
            self._numbering.levels[name] = self._styles.lists.get(f"list {style}") or [Level()] * MAX_LEVELS
            self._numbering.shared[name] = name
        self._last_list[style] = self._last_list[attributes.get("id", style)] = name
        self._lists.append(name)

    def _begin_item(self, attributes: dict[str, str]) -> None:
        if not self._lists:
            return
        level, name = len(self._lists) - 1, self._lists[-1]
        if level < MAX_LEVELS and (start := number_or(attributes.get("start-value"), -1)) >= 0:
            self._numbering.counts.setdefault(name, [None] * MAX_LEVELS)[level] = start - 1
        marker = self._numbering.marker(name, level)
        self.lines.item("  " * min(level, MAX_LEVELS) + (f"{marker} " if marker else ""))

    def _begin_paragraph(self, tag: str, attributes: dict[str, str]) -> None:
        self._paragraphs.append(not self.title and self._styles.is_title(attributes.get("style-name", "")))
        self.lines.border(1 if self._lists and tag == "p" else 2)
        if tag == "h" and not self._note_numbers:
            level = number_or(attributes.get("outline-level"), 1)
            self.lines.heading(max(1, level))
            marker = "" if attributes.get("is-list-header") == "true" else self._numbering.marker(OUTLINE, level - 1)
            self.lines.words(f"{marker} " if marker else "")

    def _end_paragraph(self) -> None:
        self._paragraphs.pop()
        self.lines.end_of_heading()
        self.lines.border(1 if self._lists else 2)
        if not self._paragraphs:
            self.add_boxes()


def level_of(tag: str, level: int, attributes: dict[str, str]) -> Level:
    """One level of a list style, in the terms of `numbering`."""
    if tag in ("list-level-style-bullet", "list-level-style-image"):
        return Level()
    shown = min(max(1, number_or(attributes.get("display-levels"), 1)), level + 1)
    numbers = ".".join(f"%{number + 1}" for number in range(level - shown + 1, level + 1))
    return Level(
        format=FORMS.get(attributes.get("num-format", ""), "decimal"),
        pattern=attributes.get("num-prefix", "")[:20] + numbers + attributes.get("num-suffix", "")[:20],
        start=number_or(attributes.get("start-value"), 1),
    )
