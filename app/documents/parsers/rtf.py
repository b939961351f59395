"""Rich Text Format: the text that a reader sees (Microsoft, RTF specification 1.9.1).

Without headers, footers, comments, hidden and deleted text. Headings are paragraphs with an outline level, of their own
or of their style; numbers of lists are those that the writing program left; notes follow the text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from app.documents.archive import Refused, read_most
from app.documents.elements import with_notes
from app.documents.lines import Lines, clean
from app.documents.messages import Message, whole

TOKEN = re.compile(
    r"\\([a-zA-Z]{1,32})(-?\d{1,10})? ?|\\'([0-9a-fA-F]{2})|\\([^a-zA-Z])|([{}])|[\r\n]+|([^\\{}\r\n]+)|\\$", re.DOTALL
)
# Behind \*, but read; the first of them is no group of its own in files of StarWriter.
STARRED = frozenset(["cs", "footnote", "fldrslt", "shpinst", "shppict", "shptxt", "moMath", "moMathPara"])
SKIPPED = frozenset(
    [
        "annotation", "atnauthor", "atnid", "author", "background", "bkmkend", "bkmkstart", "category",
        "colortbl", "comment", "company", "datafield", "do", "doccomm", "fldinst", "filetbl", "fontemb", "footer",
        "footerf", "footerl", "footerr", "formfield", "ftncn", "ftnsep", "ftnsepc", "aftncn", "aftnsep",
        "aftnsepc", "generator", "header", "headerf", "headerl", "headerr", "keywords", "listoverridetable",
        "listtable", "manager", "nonshppict", "objclass", "objdata", "objname", "operator", "pntxta", "pntxtb",
        "revtbl", "rsidtbl", "rxe", "shprslt", "sp", "subject", "tc", "template", "themedata", "txe", "userprops",
        "xe", "mmathPict",
    ]
)  # fmt: skip
TEXT_OF = {"listtext": "marker", "pntext": "marker", "title": "title", "fonttbl": "fonts", "stylesheet": "styles"}
SIGNS = {
    "emdash": "—", "endash": "–", "bullet": "•", "lquote": "\u2018", "rquote": "\u2019",
    "ldblquote": "“", "rdblquote": "”", "tab": " ", "emspace": " ", "enspace": " ", "qmspace": " ",
}  # fmt: skip
ESCAPED = {"{": "{", "}": "}", "\\": "\\", "~": " ", "_": "-", "\t": " "}
CHARSETS = {  # of fonts
    2: "symbol", 77: "mac-roman", 128: "cp932", 129: "cp949", 130: "johab", 134: "gbk", 136: "big5hkscs", 161: "cp1253",
    162: "cp1254", 163: "cp1258", 177: "cp1255", 178: "cp1256", 186: "cp1257", 204: "cp1251", 222: "cp874",
    238: "cp1250", 254: "cp437", 255: "cp850",
}  # fmt: skip
PAGES = {
    **dict.fromkeys((437, 850, 852, 855, 857, 858, 860, 861, 862, 863, 864, 865, 866, 874, 932, 949, 950), ""),
    **dict.fromkeys(range(1250, 1259), ""),
    936: "gbk", 1361: "johab", 10000: "mac-roman", 10007: "mac-cyrillic", 65001: "utf-8",
}  # fmt: skip
MARKERS = str.maketrans({code: "•" for code in (*range(0xF020, 0xF100), 0xB7)})
MOST_BASES = 20  # styles below a style
MAX_BYTES = 200_000_000  # pictures are written as digits


def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file."""
    encoded = read_most(stream, MAX_BYTES)
    rtf = Rtf(encoded[max(0, encoded.find(b"{\\rtf")) :].decode("latin-1"))
    text, headings = rtf.place.lines.marked()
    yield from whole(clean(rtf.title), with_notes(text, rtf.notes), headings, has_image=rtf.has_image)


@dataclass(slots=True, kw_only=True)
class Group:
    """What holds up to the end of a group."""

    reads: str = "text"  # or the name of what its text is: fonts, styles, title, marker; "": nothing
    codec: str = ""  # of the current font; "": the document's
    fallback: int = 1  # characters after \\u that stand for it
    hidden: bool = False
    deleted: bool = False
    is_note: bool = False  # the group of a note itself, not those inside


@dataclass(slots=True)
class Paragraph:
    """The properties of the paragraph being read, which hold until \\pard."""

    style: int = 0
    outline: int | None = None
    in_table: bool = False
    list_level: int = 0


@dataclass(slots=True)
class Style:
    """A paragraph style."""

    name: str = ""
    outline: int | None = None
    base: int | None = None


@dataclass(slots=True)
class Place:
    """A text with its notes apart: lines, and how far its paragraph and its row are."""

    lines: Lines = field(default_factory=Lines)
    begun: bool = False
    row_open: bool = False
    num_rows: int = 0  # in succession
    marker: str = ""
    is_item: bool = False
    paragraph: Paragraph = field(default_factory=Paragraph)


class Rtf:
    """Reads the tokens of a file; then `place`, `title` and `notes` are what it holds."""

    def __init__(self, source: str) -> None:
        """Read everything.

        Args:
            source: the bytes of the file, one character each.
        Raises:
            Refused: the file ends before its end.
        """
        self.title = ""
        self.has_image = False
        self.notes: list[str] = []
        self._num_notes = 0
        self._codec = "cp1252"
        self._fonts: dict[int, str] = {}
        self._styles: dict[int, Style] = {}
        self._number = 0  # of the font or style that is being defined
        self.place = Place()
        self._outer: list[tuple[Place, int]] = []
        self._group = Group()
        self._stack: list[Group] = []
        self._pending = bytearray()  # characters that are not decoded yet
        self._skip = 0  # characters that stand for the last \\u
        self._star = False
        self._read(source)

    def _read(self, source: str) -> None:
        at = 0
        while match := TOKEN.match(source, at):
            at = match.end()
            word, number, code, sign, brace, text = match.groups()
            if code or text:
                self._chars(bytes.fromhex(code) if code else text.encode("latin-1"))
                continue
            self._flush()
            if word == "bin":
                at += max(0, int(number or 0))
            elif word:
                self._word(word, None if number is None else int(number))
            elif brace == "{":
                self._begin_group()
            elif brace:
                self._end_group()
                if not self._stack:
                    break  # what follows is no part of the document
            elif sign:
                self._sign(sign)
        if self._stack:
            raise Refused("cut off")

    def _chars(self, encoded: bytes) -> None:
        skipped = min(self._skip, len(encoded))
        self._skip -= skipped
        if self._group.reads:
            self._pending += encoded[skipped:]

    def _flush(self) -> None:
        if self._pending:
            codec = self._group.codec or self._codec
            text = self._pending.decode("cp1252" if codec == "symbol" else codec, "replace")
            self._pending.clear()
            self._put(text)

    def _put(self, text: str) -> None:
        """Text, to where the group's text belongs."""
        group, place = self._group, self.place
        match group.reads:
            case "text" if not (group.hidden or group.deleted):
                if not place.begun and not text.isspace():
                    self._begin_paragraph()
                if place.begun:
                    place.lines.words(text)
            case "marker":
                place.marker += text
            case "title" if len(self.title) < 1_000:
                self.title += text
            case "styles":
                style = self._styles.setdefault(self._number, Style())
                style.name += text[:100]

    def _sign(self, sign: str) -> None:
        if sign == "*":
            self._star = True
        elif sign in "\r\n":
            self._end_paragraph()
        elif sign in ESCAPED:
            self._put(ESCAPED[sign])

    def _word(self, word: str, number: int | None) -> None:
        starred, self._star = self._star, False
        if not self._group.reads:
            return
        if (
            word in SKIPPED
            or (starred and word not in STARRED and word not in TEXT_OF)
            or (word.startswith("m") and word.endswith("Pr"))
        ):
            self._group.reads = ""
        elif word == "pict":
            self.has_image, self._group.reads = True, ""
        elif word in TEXT_OF:
            self._group.reads, self._group.hidden, self._number = TEXT_OF[word], False, 0
        elif word == "footnote":
            self._begin_note()
        elif word == "shptxt":
            self._end_paragraph()  # of a box
        elif self._group.reads == "text":
            self._word_in_text(word, number)
        else:
            self._word_of_table(word, number)
        self._character(word, number)

    def _character(self, word: str, number: int | None) -> None:
        """Words about characters, which hold in all texts."""
        match word:
            case "u" if number is not None:
                self._put(chr(number % 0x10000))
                self._skip = self._group.fallback
            case "uc":
                self._group.fallback = min(max(0, number or 0), 9)
            case "ansicpg" if number in PAGES:
                self._codec = PAGES[number] or f"cp{number}"
            case "mac":
                self._codec = "mac-roman"
            case "pc" | "pca":
                self._codec = "cp437" if word == "pc" else "cp850"
            case "f" if self._group.reads != "fonts":
                self._group.codec = self._fonts.get(number or 0, "")
            case "v":
                self._group.hidden = number != 0
            case "deleted":
                self._group.deleted = number != 0
            case "plain":
                self._group.hidden, self._group.deleted, self._group.codec = False, False, ""
            case _ if word in SIGNS:
                self._put(SIGNS[word])

    def _word_of_table(self, word: str, number: int | None) -> None:
        """Words that define a font or a style."""
        if self._group.reads == "fonts":
            if word == "f":
                self._number = number or 0
            elif word == "fcharset" and number in CHARSETS:
                self._fonts[self._number] = CHARSETS[number]
        elif self._group.reads == "styles":
            if word in ("s", "cs", "ds", "ts"):
                self._number = number or 0 if word == "s" else -1
                self._styles[self._number] = Style()
            elif word in ("outlinelevel", "sbasedon"):
                style = self._styles.setdefault(self._number, Style())
                if word == "sbasedon":
                    style.base = number
                else:
                    style.outline = number

    def _word_in_text(self, word: str, number: int | None) -> None:
        place, paragraph = self.place, self.place.paragraph
        match word:
            case "par":
                self._end_paragraph()
            case "line":
                place.lines.line_break()
            case "page" | "column" | "sect":
                self._end_paragraph()
                place.lines.border(2)
            case "cell" | "nestcell":
                self._open_row()
                place.lines.end_of_heading()
                place.lines.cell()
                place.begun, place.marker = False, ""
            case "row" | "nestrow":
                place.lines.end_of_prefixed()
                place.lines.border(1)
                place.row_open = place.begun = False
            case "pard":
                place.paragraph, place.marker = Paragraph(), ""
            case "s":
                paragraph.style = number or 0
            case "outlinelevel":
                paragraph.outline = number
            case "intbl":
                paragraph.in_table = True
            case "ilvl":
                paragraph.list_level = min(max(0, number or 0), 8)

    def _open_row(self) -> None:
        place = self.place
        if not place.row_open:
            place.lines.row(1 if place.num_rows else 2)
            place.row_open, place.num_rows = True, place.num_rows + 1

    def _begin_paragraph(self) -> None:
        place = self.place
        place.begun = True
        if place.paragraph.in_table:
            self._open_row()
            place.lines.words(self._taken_marker())
            return
        place.num_rows, place.row_open = 0, False
        level, marker = self._outline(place.paragraph), self._taken_marker()
        place.is_item = bool(marker) and level is None
        if level is not None:
            place.lines.border(2)
            place.lines.heading(level + 1)
            place.lines.words(marker)
        elif place.is_item:
            place.lines.item("  " * place.paragraph.list_level + marker)
        else:
            place.lines.border(2)

    def _taken_marker(self) -> str:
        marker, self.place.marker = self.place.marker.translate(MARKERS).strip(), ""
        return f"{marker} " if marker else ""

    def _end_paragraph(self) -> None:
        place = self.place
        place.lines.end_of_heading()
        place.lines.border(1 if place.is_item else 2)
        place.begun, place.marker = False, ""

    def _outline(self, paragraph: Paragraph) -> int | None:
        """The outline level of a paragraph, its style or what that is based on, 0 the highest; None: running text."""
        outline = paragraph.outline
        number: int | None = paragraph.style
        for _ in range(MOST_BASES):
            style = None if number is None else self._styles.get(number)
            if outline is not None or style is None:
                break
            heading = re.fullmatch(r"heading ([1-9]);?", style.name.strip().lower())
            outline = int(heading[1]) - 1 if heading and style.outline is None else style.outline
            number = style.base
        return outline if outline is not None and 0 <= outline < 9 else None

    def _begin_note(self) -> None:
        self._num_notes += 1
        self._put(f"[{self._num_notes}]")
        self._outer.append((self.place, self._num_notes))
        self.place = Place()
        self._group.is_note = True

    def _begin_group(self) -> None:
        self._skip = 0
        self._stack.append(self._group)
        self._group = replace(self._group, is_note=False)
        if self._group.reads == "styles":
            self._number = -1  # a style that no paragraph has, unless it has a number

    def _end_group(self) -> None:
        self._skip, self._star = 0, False
        if self._group.is_note:
            text = self.place.lines.marked().text
            self.place, number = self._outer.pop()
            self.notes.append(f"[{number}] {text}")
        if self._stack:
            self._group = self._stack.pop()
