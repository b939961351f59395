"""Markup to text: paragraphs, headings, lists and tables as lines; no scripts, no styles, nothing from outside.

Uses HTML's forgiving parser, because many books are not well-formed XML. It resolves only the named entities of HTML;
markup that declares entities is refused.
"""

import re
from collections.abc import Iterator
from html import escape
from html.parser import HTMLParser
from typing import BinaryIO

from app.documents.archive import MAX_TOTAL_BYTES, Refused, read_most
from app.documents.charset import decode_markup
from app.documents.elements import Text
from app.documents.messages import Message
from app.documents.metadata import MAX_AUTHORS, authors_in
from app.documents.numbering import BULLET, FORMS, written

BLOCKS = frozenset([
    "address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details", "div", "dl", "dt",
    "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr",
    "legend", "main", "nav", "ol", "p", "pre", "section", "summary", "table", "ul",
])  # fmt: skip
DROPPED = frozenset(
    ["annotation", "audio", "head", "iframe", "rp", "rt", "script", "style", "svg", "template", "title", "video"]
)
IN_HEAD = frozenset(["base", "link", "meta", "noscript", "script", "style", "template", "title"])
# Parts of a web page outside its text. Only elements that must be closed: an unclosed one would swallow the page.
AROUND = frozenset(["button", "dialog", "footer", "nav", "noscript", "select", "textarea"])
HIDEABLE = frozenset(["aside", "div", "form", "header", "section", "span", "table", "ul"])
ROLES_AROUND = frozenset(["contentinfo", "dialog", "navigation", "search"])
QUOTED = frozenset(["article", "blockquote", "main", "section"])  # footers inside these belong to the text
IMAGES = frozenset(["image", "img", "picture", "svg"])
SECTION = "<![CDATA["
LINE_NUMBERS = frozenset(["linenos", "linenodiv", "lineno"])  # classes of Pygments: numbers beside a program's lines
VERSE = frozenset(["line", "verse", "poetry-line", "poem-line", "verse-line"])  # classes of a block that is one line
ANCHORS = frozenset("#¶§")  # the text of a link from a heading to itself
# Signs before the parts of formulas that stand above, below or under something (MathML 3, 3.3 and 3.4).
FORMULAS = {
    "mfrac": ("", "/"), "msqrt": ("√",), "msub": ("", "_"), "msup": ("", "^"), "msubsup": ("", "_", "^"),
    "munder": ("", "_"), "munderover": ("", "_", "^"),
}  # fmt: skip
HEADINGS = {f"h{level}": level for level in range(1, 7)}
Attributes = list[tuple[str, str | None]]


def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a web page: one text."""
    markup = decode_markup(read_most(stream, MAX_TOTAL_BYTES))
    if markup is None:
        raise Refused("damaged")
    yield from read_markup(markup, as_web_page=True).messages()


def read_markup(markup: str, *, as_web_page: bool = False) -> "Markup":
    """The text of an XHTML or HTML document: paragraphs with an empty line between, line breaks kept.

    Args:
        as_web_page: leave out the parts around the text of a web page: navigation, footers, forms, hidden elements.
    Raises:
        Refused: it declares entities; before anything is parsed.
        AssertionError: html.parser gave up on a malformed declaration.
    """
    if "<!ENTITY" in markup:
        raise Refused("entities")
    reader = Markup(as_web_page)
    reader.feed(without_sections(markup))  # some versions of Python treat these sections as comments
    reader.close()
    never_closed = reader.dropped in AROUND | HIDEABLE
    if as_web_page and (never_closed or not reader.lines.marked().text):
        return read_markup(markup)  # what was dropped contains the text
    return reader


def without_sections(markup: str) -> str:
    """Markup with CDATA sections as ordinary text; an unclosed one stays. Cost: one pass."""
    pieces: list[str] = []
    done = 0
    while (start := markup.find(SECTION, done)) >= 0 and (end := markup.find("]]>", start + len(SECTION))) >= 0:
        pieces += [markup[done:start], escape(markup[start + len(SECTION) : end])]
        done = end + 3
    return "".join([*pieces, markup[done:]])


class Markup(HTMLParser, Text):
    """Sends the meaning of the markup to `lines`."""

    def __init__(self, as_web_page: bool) -> None:
        HTMLParser.__init__(self, convert_charrefs=True)
        Text.__init__(self)
        self._has_body = False
        self._as_web_page = as_web_page
        self._in_title = self._in_link = False
        self._quoted = 0  # open elements whose footers belong to the text
        self.dropped = ""  # the element that is being skipped
        self._depth = 0  # open elements of that name
        self._pre = 0
        self._pre_begins = False
        self._verse = ""  # the element that is one line of verse
        self._raised = ""  # the element whose letters are above the line
        self._formula: list[list[str]] = []  # of each open element of a formula: its name, and signs of its next parts
        self._lists: list[tuple[int, str]] = []  # the number of the last item and its form; "": an unnumbered list

    def handle_starttag(self, tag: str, attrs: Attributes) -> None:
        """An element begins."""
        tag = tag.rpartition(":")[2]
        self.has_image |= tag in IMAGES
        self._read_head(tag, {name: value or "" for name, value in attrs})
        if tag == "body" or (self.dropped == "head" and tag not in IN_HEAD):
            self.dropped = ""  # a head need not be closed
        if tag == "title" and self.dropped in ("", "head"):
            self._in_title = not self.title
        classes = set((dict(attrs).get("class") or "").split())
        around = self._as_web_page and self._is_around(tag, attrs)
        if self.dropped or tag in DROPPED or around or (tag in ("td", "span") and classes & LINE_NUMBERS):
            self._drop(tag)
            return
        self._quoted += tag in QUOTED
        if tag in BLOCKS:
            self._border(tag, is_verse=tag in ("div", "p") and bool(classes & VERSE))
        if tag in HEADINGS:
            self.lines.heading(HEADINGS[tag])
        self._in_link |= tag == "a"
        values = dict(attrs)
        if tag == "sup" or (tag == "a" and "noteref" in f"{values.get('epub:type')} {values.get('role')}"):
            self._raised = self._raised or tag
        if self._formula or tag == "math":
            self._begin_part(tag)
        match tag:
            case "br" if self._pre:
                self.lines.verbatim("\n")
            case "br":
                self.lines.line_break()
            case "pre":
                self._pre, self._pre_begins = self._pre + 1, True
            case "ul":
                self._lists.append((0, ""))
            case "ol":
                form = FORMS.get(dict(attrs).get("type") or "1", "decimal")
                self._lists.append((number_in(attrs, "start", 1) - 1, form))
            case "li":
                self.lines.item(max(0, len(self._lists) - 1), self._marker(attrs))
            case "table":
                self.lines.table()
            case "tr":
                self.lines.row()
            case "td" | "th":
                self.lines.cell()

    def _read_head(self, tag: str, values: dict[str, str]) -> None:
        """What a web page states of its authors and its language."""
        self._has_body |= tag == "body"
        if tag in ("html", "body"):
            self.language = self.language or values.get("lang") or values.get("xml:lang") or ""
        elif tag == "meta" and not self._has_body and values.get("name", "").lower() in ("author", "dc.creator"):
            self.authors = [*self.authors, *authors_in(values.get("content", ""))][:MAX_AUTHORS]

    def handle_endtag(self, tag: str) -> None:
        """An element ends."""
        tag = tag.rpartition(":")[2]
        if tag == "title":
            self._in_title = False
        if self.dropped:
            self._depth -= tag == self.dropped
            self.dropped = self.dropped if self._depth else ""
            return
        self._quoted -= tag in QUOTED and self._quoted > 0
        self._in_link &= tag != "a"
        self._raised = "" if tag == self._raised else self._raised
        if self._formula and tag == self._formula[-1][0]:
            del self._formula[-1]
            self.lines.words(")" if tag == "mrow" and self._formula and self._formula[-1][0] in FORMULAS else "")
        if tag in HEADINGS:
            self.lines.end_of_heading()
        match tag:
            case "pre":
                self._pre = max(0, self._pre - 1)
            case "ul" | "ol":
                del self._lists[-1:]
            case "table":
                self.lines.end_of_table()
        if tag in ("li", "tr", "table", "ul", "ol"):
            self.lines.end_of_prefixed()
        if tag in BLOCKS:
            self._border(tag, is_verse=tag == self._verse)
        elif tag in ("li", "tr"):
            self.lines.border(1)

    def handle_data(self, data: str) -> None:
        """Text."""
        if self._in_title:
            self.add_title(data)
        if self.dropped:
            return
        if self._pre:
            self.lines.verbatim(data.removeprefix("\n") if self._pre_begins else data)
            self._pre_begins = False
        elif self._raised:
            self.lines.raised(data, in_link=self._in_link)
        elif not (self._in_link and self.lines.in_heading and data.strip() in ANCHORS):
            self.lines.words(data)

    def _border(self, tag: str, *, is_verse: bool) -> None:
        """A block begins or ends. Between lines of verse, and blocks within a program, there is no empty line."""
        self._verse, self._raised = tag if is_verse else "", ""
        self._formula.clear()
        within = tag in ("dt", "dd") or (tag in ("ol", "ul") and self._lists) or (self._pre and tag != "pre")
        self.lines.border(1 if within or is_verse else 2)

    def _begin_part(self, tag: str) -> None:
        """An element of a formula, behind the sign that its place has."""
        outer, *signs = self._formula[-1] if self._formula else [""]
        if outer in FORMULAS:
            self.lines.words((signs[0] if signs else "") + ("(" if tag == "mrow" else ""))
            del self._formula[-1][1:2]
        self._formula.append([tag, *FORMULAS.get(tag, ())])

    def _is_around(self, tag: str, attributes: Attributes) -> bool:
        if tag in AROUND:
            return tag != "footer" or not self._quoted
        if tag not in HIDEABLE:
            return False
        values = dict(attributes)
        hidden = values.get("hidden", "until-found") != "until-found" or values.get("aria-hidden") == "true"
        return hidden or (values.get("role") or "").lower() in ROLES_AROUND

    def _drop(self, tag: str) -> None:
        if not self.dropped:
            self.dropped, self._depth = tag, 1
        elif tag == self.dropped:
            self._depth += 1

    def _marker(self, attributes: Attributes) -> str:
        last, form = self._lists[-1] if self._lists else (0, "")
        if not form:
            return BULLET
        number = number_in(attributes, "value", last + 1)
        self._lists[-1] = number, form
        return f"{written(number, form)}."


def number_in(attributes: Attributes, name: str, default: int) -> int:
    """The number that an attribute gives; the default where it gives none."""
    value = dict(attributes).get(name) or ""
    return int(value) if re.fullmatch(r"-?\d{1,6}", value, re.ASCII) else default
