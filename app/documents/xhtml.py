"""Markup to text: paragraphs, headings, lists and tables as lines; no scripts, no styles, nothing from outside.

The parser is HTML's own forgiving one, as many books are not well-formed XML. It resolves the named entities of HTML
and no others; markup that declares entities is refused.
"""

import re
import unicodedata
from html import escape
from html.parser import HTMLParser
from typing import NamedTuple

from app.documents.plain import NO_CONTROLS
from app.documents.prose import LETTER_TABLE, SOFT_HYPHEN

BLOCKS = frozenset([
    "address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details", "div", "dl", "dt",
    "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr",
    "legend", "main", "nav", "ol", "p", "pre", "section", "summary", "table", "ul",
])  # fmt: skip
DROPPED = frozenset(["audio", "head", "iframe", "rp", "rt", "script", "style", "svg", "template", "video"])
IMAGES = frozenset(["image", "img", "picture", "svg"])
CELL_BORDER = " | "


class EntitiesDeclared(Exception):
    """The markup declares entities of its own."""


class Read(NamedTuple):
    """The text of one piece of markup, and whether it shows images."""

    text: str
    has_image: bool


def read_markup(markup: str) -> Read:
    """The text of an XHTML or HTML document: paragraphs with an empty line between, line breaks kept.

    Raises:
        EntitiesDeclared: before anything is parsed.
        AssertionError: html.parser gave up on a malformed declaration.
    """
    if "<!ENTITY" in markup:
        raise EntitiesDeclared
    # html.parser takes these sections for comments in some versions of Python
    plain = re.sub(r"<!\[CDATA\[(.*?)\]\]>", lambda section: escape(section[1]), markup, flags=re.DOTALL)
    reader = _Reader()
    reader.feed(plain)
    reader.close()
    return Read(clean(reader.lines.text()), reader.has_image)


def clean(text: str) -> str:
    """Plain letters: no ligatures, no invisible hyphens, no control characters."""
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    letters = text.translate(LETTER_TABLE).replace(SOFT_HYPHEN, "").translate(NO_CONTROLS)
    return unicodedata.normalize("NFC", letters).strip("\n")


class _Lines:
    """Text as it is put together: words with one space between, and borders of one or two line ends."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._gap = 0  # line ends before the next word
        self._space = False  # a space before the next word
        self._prefix = ""  # what begins the next line or cell
        self._joined = False  # the next word stands beside the prefix, whatever begins in between

    def text(self) -> str:
        """All of it."""
        return "".join(self._pieces)

    def border(self, num_lines: int) -> None:
        """A block begins or ends here."""
        if not self._joined:
            self._gap, self._space = max(self._gap, num_lines), False

    def line_break(self) -> None:
        """A line ends; two of them make an empty line."""
        if not self._joined:
            self._gap, self._space = min(2, self._gap + 1), False

    def row(self, num_lines: int) -> None:
        """A row of a table begins."""
        self._gap, self._space, self._prefix, self._joined = num_lines, False, "", True

    def cell(self) -> None:
        """Another cell of the row begins, on the row's line."""
        begins_line = self._joined and self._gap > 0  # the cells before it are empty
        if not begins_line:
            self._gap = 0
        self._prefix += CELL_BORDER if self._prefix or not begins_line else CELL_BORDER.lstrip()
        self._space, self._joined = False, True

    def item(self, marker: str) -> None:
        """An item of a list begins."""
        self.border(1)
        self._prefix, self._joined = marker, True

    def end_of_prefixed(self) -> None:
        """What the prefix was meant for ends, perhaps without a word."""
        self._prefix, self._joined = "", False

    def words(self, text: str) -> None:
        """Running text: any white space is one space."""
        words = " ".join(text.split())
        if words:
            self._space |= text[0].isspace()
            self._put(words)
        if text and text[-1].isspace():
            self._space = True

    def verbatim(self, text: str) -> None:
        """Text whose line ends and spaces mean something."""
        if text:
            self._put(text)

    def _put(self, text: str) -> None:
        while self._gap and self._pieces and not self._pieces[-1].rstrip():
            self._pieces.pop()
        if self._gap and self._pieces:
            self._pieces += [self._pieces.pop().rstrip(), "\n" * self._gap]
        elif self._space and self._pieces and not self._prefix:
            self._pieces.append(" ")
        self._pieces += [self._prefix, text]
        self._gap, self._space, self._prefix, self._joined = 0, False, "", False


class _Reader(HTMLParser):
    """Tells `lines` what the markup means."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines = _Lines()
        self.has_image = False
        self._dropped = ""  # the element inside which nothing is read
        self._depth = 0  # of elements of that name
        self._pre = 0
        self._pre_begins = False
        self._lists: list[int | None] = []  # the number of the last item; None: a list without numbers
        self._tables: list[int] = []  # the number of rows so far
        self._cells = 0  # of the row so far

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        tag = tag.rpartition(":")[2]
        self.has_image |= tag in IMAGES
        if tag == "body":
            self._dropped = ""
        if self._dropped or tag in DROPPED:
            self._drop(tag)
            return
        if tag in BLOCKS:
            self.lines.border(1 if tag in ("dt", "dd") or (tag in ("ol", "ul") and self._lists) else 2)
        match tag:
            case "br":
                self._break()
            case "pre":
                self._pre, self._pre_begins = self._pre + 1, True
            case "ul" | "ol":
                self._lists.append(None if tag == "ul" else start_of(attrs) - 1)
            case "li":
                self.lines.item(self._marker())
            case "table":
                self._tables.append(0)
            case "tr":
                self._row()
            case "td" | "th":
                self._cells += 1
                if self._cells > 1:
                    self.lines.cell()

    def handle_endtag(self, tag: str) -> None:
        """An element ends."""
        tag = tag.rpartition(":")[2]
        if self._dropped:
            self._depth -= tag == self._dropped
            self._dropped = self._dropped if self._depth else ""
            return
        match tag:
            case "pre":
                self._pre = max(0, self._pre - 1)
            case "ul" | "ol":
                del self._lists[-1:]
            case "table":
                del self._tables[-1:]
        if tag in ("li", "tr", "table", "ul", "ol"):
            self.lines.end_of_prefixed()
        if tag in BLOCKS:
            self.lines.border(1 if tag in ("dt", "dd") or (tag in ("ol", "ul") and self._lists) else 2)
        elif tag in ("li", "tr"):
            self.lines.border(1)

    def handle_data(self, data: str) -> None:
        """Text."""
        if self._dropped:
            return
        if self._pre:
            self.lines.verbatim(data.removeprefix("\n") if self._pre_begins else data)
            self._pre_begins = False
        else:
            self.lines.words(data)

    def _drop(self, tag: str) -> None:
        if not self._dropped:
            self._dropped, self._depth = tag, 1
        elif tag == self._dropped:
            self._depth += 1

    def _break(self) -> None:
        if self._pre:
            self.lines.verbatim("\n")
        else:
            self.lines.line_break()

    def _row(self) -> None:
        self._cells = 0
        first = not self._tables or self._tables[-1] == 0
        if self._tables:
            self._tables[-1] += 1
        self.lines.row(2 if first else 1)

    def _marker(self) -> str:
        indent = "  " * max(0, len(self._lists) - 1)
        number = self._lists[-1] if self._lists else None
        if number is None:
            return f"{indent}• "
        self._lists[-1] = number + 1
        return f"{indent}{number + 1}. "


def start_of(attributes: list[tuple[str, str | None]]) -> int:
    """The number that a list begins with."""
    value = dict(attributes).get("start") or ""
    return int(value) if re.fullmatch(r"-?\d{1,6}", value, re.ASCII) else 1
