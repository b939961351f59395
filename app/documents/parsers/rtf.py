"""Rich Text Format: the text that a reader sees (Microsoft, RTF specification 1.9.1).

Without headers, footers, comments, hidden and deleted text. Headings are paragraphs with an outline level, of their own
or of their style; numbers of lists are those that the writing program left; notes follow the text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from app.documents.archive import Refused, read_most
from app.documents.charset import as_symbols
from app.documents.elements import LONGEST_TITLE, Text
from app.documents.lines import Lines, clean
from app.documents.messages import Message
from app.documents.metadata import authors_in

TOKEN = re.compile(
    r"\\([a-zA-Z]{1,32})(-?\d{1,10})? ?|\\'([0-9a-fA-F]{2})|\\([^a-zA-Z])|([{}])|[\r\n]+|([^\\{}\r\n]+)|\\$", re.DOTALL
)
# Behind \*, but read; the first of them is no group of its own in files of StarWriter.
STARRED = frozenset(
    ["cs", "footnote", "fldrslt", "nesttableprops", "shpinst", "shppict", "shptxt", "moMath", "moMathPara"]
)
SKIPPED = frozenset(
    [
        "annotation", "atnauthor", "atnid", "background", "bkmkend", "bkmkstart", "category",
        "colortbl", "comment", "company", "datafield", "do", "doccomm", "fldinst", "filetbl", "fontemb", "footer",
        "footerf", "footerl", "footerr", "formfield", "ftncn", "ftnsep", "ftnsepc", "aftncn", "aftnsep",
        "aftnsepc", "generator", "header", "headerf", "headerl", "headerr", "hlinkbase", "keywords",
        "listoverridetable", "listtable", "manager", "nonesttables", "nonshppict", "objclass", "objdata", "objname",
        "operator", "pntxta", "pntxtb", "revtbl", "rsidtbl", "rxe", "shprslt", "sp", "subject", "tc",
        "template", "themedata", "txe", "userprops", "xe", "mmathPict",
    ]
)  # fmt: skip
TEXT_OF = {"listtext": "marker", "pntext": "marker", "title": "title", "author": "author"}
TEXT_OF |= {"fonttbl": "fonts", "stylesheet": "styles"}
SIGNS = {
    "emdash": "—", "endash": "–", "bullet": "•", "lquote": "\u2018", "rquote": "\u2019",
    "ldblquote": "“", "rdblquote": "”", "tab": " ", "emspace": " ", "enspace": " ", "qmspace": " ",
}  # fmt: skip
ESCAPED = {"{": "{", "}": "}", "\\": "\\", "~": " ", "_": "-", "\t": " "}
CHARSETS = {  # of fonts
    2: "cp1252", 77: "mac-roman", 128: "cp932", 129: "cp949", 130: "johab", 134: "gbk", 136: "big5hkscs", 161: "cp1253",
    162: "cp1254", 163: "cp1258", 177: "cp1255", 178: "cp1256", 186: "cp1257", 204: "cp1251", 222: "cp874",
    238: "cp1250", 254: "cp437", 255: "cp850",
}  # fmt: skip
PAGES = {
    **dict.fromkeys((437, 850, 852, 855, 857, 858, 860, 861, 862, 863, 864, 865, 866, 874, 932, 949, 950), ""),
    **dict.fromkeys(range(1250, 1259), ""),
    936: "gbk", 1361: "johab", 10000: "mac-roman", 10007: "mac-cyrillic", 65001: "utf-8",
}  # fmt: skip
MARKERS = str.maketrans({code: "•" for code in (*range(0xF020, 0xF100), 0xB7)})
SYMBOLS = "Symbol"  # the name of a font, and as a codec its letters
MOST_BASES = 20  # styles below a style
MAX_BYTES = 200_000_000  # pictures are written as digits


def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file."""
    encoded = read_most(stream, MAX_BYTES)
    rtf = Rtf(encoded[max(0, encoded.find(b"{\\rtf")) :].decode("latin-1"))
    rtf.title, rtf.authors = clean(rtf.title), authors_in(clean("".join(rtf.authors)))
    yield from rtf.messages()


@dataclass(slots=True, kw_only=True)
class Group:
    """What holds up to the end of a group."""

    reads: str = "text"  # or the name of what its text is: fonts, styles, title, author, marker; "": nothing
    font: int | None = None  # None: the document's default
    fallback: int = 1  # characters after \\u that stand for it
    hidden: bool = False
    deleted: bool = False
    raised: bool = False  # above the line
    is_note: bool = False  # the group of a note itself, not those inside


@dataclass(slots=True)
class Paragraph:
    """The properties of the paragraph being read, which hold until \\pard, or of a style."""

    style: int | None = None  # that it has, or is based on
    name: str = ""
    outline: int | None = None
    in_table: bool = False
    list_level: int = 0


@dataclass(slots=True)
class Place:
    """How far the text is, or a note in it."""

    begun: bool = False  # the paragraph
    in_table: bool = False
    row_open: bool = False
    marker: str = ""
    is_item: bool = False
    paragraph: Paragraph = field(default_factory=lambda: Paragraph(0))


class Rtf(Text):
    """Reads the tokens of a file."""

    def __init__(self, source: str) -> None:
        """Read everything.

        Args:
            source: the bytes of the file, one character each.
        Raises:
            Refused: the file ends before its end.
        """
        super().__init__()
        self._codec = "cp1252"
        self._fonts: dict[int | None, str] = {}  # codecs; "": the document's
        self._default: int | None = None  # the default font
        self._styles: dict[int | None, Paragraph] = {}
        self._number = 0  # of the font or style that is being defined
        self._place = Place()
        self._outer: list[tuple[str, Lines, Place]] = []  # of open notes, with what is around them
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
            if match.lastindex is None:
                continue  # the end of a line of the file, perhaps inside a letter
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
            codec = self._codec_now
            pending = bytes(self._pending)
            self._pending.clear()
            self._put(as_symbols(pending) if codec == SYMBOLS else pending.decode(codec, "replace"))

    def _put(self, text: str) -> None:
        """Text, to where the group's text belongs."""
        group, place = self._group, self._place
        match group.reads:
            case "text" if not (group.hidden or group.deleted):
                if not place.begun and not text.isspace():
                    self._begin_paragraph()
                if place.begun:
                    (self.lines.raised if group.raised else self.lines.words)(text)
            case "marker":
                place.marker += text
            case "title":
                self.add_title(text)
            case "author":
                self.authors = ["".join([*self.authors, text])[:LONGEST_TITLE]]
            case "styles":
                self._style.name += text[:100]
            case "fonts" if text.strip(" ;") == SYMBOLS:
                self._fonts[self._number] = SYMBOLS

    def _sign(self, sign: str) -> None:
        if sign == "*":
            self._star = True
        elif sign in "\r\n":
            self._end_paragraph()
        elif sign in ESCAPED:
            self._put(ESCAPED[sign])

    def _word(self, word: str, number: int | None) -> None:
        starred, self._star = self._star, False
        group, place = self._group, self._place
        unknown = starred and word not in STARRED and word not in TEXT_OF
        match group.reads, word:
            case "", _:
                pass
            case _ if unknown or word in SKIPPED or (word.startswith("m") and word.endswith("Pr")):
                group.reads = ""
            case _, "pict":
                self.has_image, group.reads = True, ""
            case _ if word in TEXT_OF:
                group.reads, group.hidden, self._number = TEXT_OF[word], False, 0
            case _, "footnote":
                self._begin_note()
            case _, "shptxt":
                self._end_paragraph()  # of a box
            case "fonts", "f":
                self._number = number or 0
            case "fonts", "fcharset" if number in CHARSETS:
                self._fonts[self._number] = CHARSETS[number]
            case "styles", "s" | "cs" | "ds" | "ts":
                self._number = number or 0 if word == "s" else -1
                self._styles[self._number] = Paragraph()
            case "styles", "outlinelevel":
                self._style.outline = number
            case "styles", "sbasedon":
                self._style.style = number
            case "text", "par":
                self._end_paragraph()
            case "text", "line":
                self.lines.line_break()
            case "text", "page" | "column" | "sect":
                self._end_paragraph()
                self.lines.border(2)
            case "text", "cell" | "nestcell":
                self._open_row()
                self.lines.end_of_heading()
                self.lines.cell()
                place.begun, place.marker = False, ""
            case "text", "row" | "nestrow":
                self.lines.end_of_prefixed()
                self.lines.border(1)
                place.row_open = place.begun = False
            case "text", "pard":
                place.paragraph, place.marker = Paragraph(0), ""
            case "text", "s":
                place.paragraph.style = number or 0
            case "text", "outlinelevel":
                place.paragraph.outline = number
            case "text", "intbl":
                place.paragraph.in_table = True
            case "text", "ilvl":
                place.paragraph.list_level = max(0, number or 0)
            case _, "u" if number is not None:
                letter = chr(number % 0x10000)
                is_sign = self._codec_now == SYMBOLS and "\uf020" <= letter <= "\uf0ff"
                self._put(as_symbols(bytes([ord(letter) % 0x100])) if is_sign else letter)
                self._skip = group.fallback
            case _, "uc":
                group.fallback = min(max(0, number or 0), 9)
            case _, "ansicpg" if number in PAGES:
                self._codec = PAGES[number] or f"cp{number}"
            case _, "mac" | "pc" | "pca":
                self._codec = {"mac": "mac-roman", "pc": "cp437", "pca": "cp850"}[word]
            case _, "f":
                group.font = number or 0
            case _, "deff":
                self._default = number or 0
            case _, "v":
                group.hidden = number != 0
            case _, "super" | "nosupersub" | "sub":
                group.raised = word == "super" and number != 0
            case _, "deleted":
                group.deleted = number != 0
            case _, "plain":
                group.hidden, group.deleted, group.raised, group.font = False, False, False, None
            case _ if word in SIGNS:
                self._put(SIGNS[word])

    @property
    def _codec_now(self) -> str:
        """Of the group's font, else of the document."""
        return self._fonts.get(self._default if self._group.font is None else self._group.font) or self._codec

    @property
    def _style(self) -> Paragraph:
        """The style that is being defined."""
        return self._styles.setdefault(self._number, Paragraph())

    def _open_row(self) -> None:
        place = self._place
        if not place.in_table:
            self.lines.table()
        if not place.row_open:
            self.lines.row()
            self.lines.cell()
        place.in_table = place.row_open = True

    def _begin_paragraph(self) -> None:
        place = self._place
        place.begun = True
        marker, place.marker = place.marker.translate(MARKERS).strip(), ""
        if place.paragraph.in_table:
            self._open_row()
            self.lines.words(f"{marker} " if marker else "")
            return
        if place.in_table:
            self.lines.end_of_table()
            place.in_table = place.row_open = False
        level = self._outline(place.paragraph)
        place.is_item = bool(marker) and level is None
        if place.is_item:
            self.lines.item(place.paragraph.list_level, marker)
            return
        self.lines.border(2)
        if level is not None:
            self.lines.heading(level + 1, marker)

    def _end_paragraph(self) -> None:
        place = self._place
        self.lines.end_of_heading()
        self.lines.border(1 if place.is_item else 2)
        place.begun, place.marker = False, ""

    def _outline(self, paragraph: Paragraph) -> int | None:
        """The outline level of a paragraph, its style or what that is based on, 0 the highest; None: running text."""
        for _ in range(MOST_BASES):
            heading = re.fullmatch(r"heading ([1-9]);?", paragraph.name.strip().lower())
            outline = int(heading[1]) - 1 if heading and paragraph.outline is None else paragraph.outline
            if outline is not None or paragraph.style not in self._styles:
                return outline if outline in range(9) else None
            paragraph = self._styles[paragraph.style]
        return None

    def _begin_note(self) -> None:
        note = str(len(self.calls))
        self.calls[note] = len(self.calls) + 1
        self._put(f"[{self.calls[note]}]")
        self._outer.append((note, self.lines, self._place))
        self.lines, self._place = Lines(), Place()
        self._group.is_note, self._group.raised = True, False

    def _begin_group(self) -> None:
        self._skip = 0
        self._stack.append(self._group)
        self._group = replace(self._group, is_note=False)
        if self._group.reads == "styles":
            self._number = -1  # a style that no paragraph has, unless it has a number

    def _end_group(self) -> None:
        self._skip, self._star = 0, False
        if self._group.is_note:
            text = self.lines.marked().text
            note, self.lines, self._place = self._outer.pop()
            self.notes[note] = text
        if self._stack:
            self._group = self._stack.pop()
