"""PresentationML to lines: what a slide shows, its title apart, and its speaker's notes (ECMA-376, part 1, 19)."""

from typing import ClassVar

from app.documents.elements import Elements, Table
from app.documents.numbering import BULLET, number_or, written

TITLES = frozenset(["title", "ctrTitle"])
LISTS = frozenset(["body", "obj", "", "subTitle"])  # placeholders whose paragraphs are items, unless they say otherwise
AROUND = frozenset(["dt", "ftr", "hdr", "sldNum", "sldImg"])  # placeholders that repeat from slide to slide
IMAGES = frozenset(["blip", "chart", "oleObj"])
MOST_LEVELS = 8
FORMS = {"alphaLc": "lowerLetter", "alphaUc": "upperLetter", "romanLc": "lowerRoman", "romanUc": "upperRoman"}


class Slide(Elements):
    """The text of one slide, of the notes to it, or of a diagram on it."""

    root: ClassVar = frozenset(["sld", "notes", "dataModel"])
    left_out: ClassVar = frozenset(["Fallback", "extLst", "custDataLst"])

    def __init__(self, *, as_notes: bool = False) -> None:
        super().__init__()
        self.title = ""
        self._as_notes = as_notes
        self._kind: str | None = None  # of the placeholder being read; None: a shape of its own
        self._texts: list[str] = []  # of the shapes, in the order of the file
        self._in_shape = 0
        self._bullet: str | None = None  # what the paragraph says of it
        self._counts: list[int] = []  # of the numbered paragraphs in succession, by level
        self._level = 0
        self._begun = False
        self._tables = Table()

    def text(self) -> str:
        """The text of all shapes but the title, with blank lines between them."""
        return "\n\n".join(text for text in self._texts if text)

    def leaves_out(self, tag: str, attributes: dict[str, str]) -> bool:
        """Fields that repeat from slide to slide."""
        return tag == "fld" and attributes.get("type", "").startswith(("slidenum", "datetime"))

    def begin(self, tag: str, attributes: dict[str, str]) -> None:
        """An element begins that is read."""
        match tag:
            case "sp" | "graphicFrame" | "pt":
                self._in_shape += 1
                self._kind, self._counts = None, []
                self.aside()
            case "ph":
                self._kind = attributes.get("type", "")
            case "p":
                self._bullet, self._level, self._begun = None, 0, False
                self.lines.border(1 if self._is_list else 2)
            case "pPr":
                self._level = min(number_or(attributes.get("lvl"), 0), MOST_LEVELS)
            case "buNone":
                self._bullet = ""
            case "buChar" | "buBlip":
                self._bullet = BULLET
            case "buAutoNum":
                self._bullet = self._next_number(attributes)
            case "br":
                self.lines.line_break()
            case "tbl":
                self._tables.begin(self.lines)
            case "tr":
                self._tables.row(self.lines)
            case "tc":
                self._tables.cell(self.lines)
            case _ if tag in IMAGES:
                self.has_image = True

    def finish(self, tag: str) -> None:
        """An element ends that is read."""
        match tag:
            case "sp" | "graphicFrame" | "pt" if self._in_shape:
                self._in_shape -= 1
                self._end_shape(self.text_of_aside())
            case "p":
                if self._begun:
                    self.lines.end_of_prefixed()
                self.lines.border(1 if self._is_list else 2)
            case "tr":
                self._tables.end_of_row(self.lines)
            case "tbl":
                self._tables.end(self.lines)

    def words(self, text: str) -> None:
        """Text of paragraphs."""
        if self.path[-1] != "t" or not self._in_shape:
            return
        if not self._begun and text.strip():
            self._begun = True
            bullet = (BULLET if self._is_list else "") if self._bullet is None else self._bullet
            del self._counts[self._level + (bullet not in ("", BULLET)) :]
            if bullet and "tc" not in self.path[-6:] and not self._as_notes:
                self.lines.item(f"{'  ' * self._level}{bullet} ")
        self.lines.words(text)

    def _next_number(self, attributes: dict[str, str]) -> str:
        del self._counts[self._level + 1 :]
        self._counts += [0] * (self._level + 1 - len(self._counts))
        self._counts[self._level] = (self._counts[self._level] or number_or(attributes.get("startAt"), 1) - 1) + 1
        kind = attributes.get("type", "")
        form = next((form for start, form in FORMS.items() if kind.startswith(start)), "decimal")
        number = written(self._counts[self._level], form)
        if kind.endswith("ParenBoth"):
            return f"({number})"
        return number + (")" if kind.endswith("ParenR") else "" if kind.endswith("Plain") else ".")

    @property
    def _is_list(self) -> bool:
        return self._kind in LISTS and self._kind != "subTitle"

    def _end_shape(self, text: str) -> None:
        kind, self._kind = self._kind, None
        if kind in AROUND:
            return
        if kind in TITLES and not self.title:
            self.title = " ".join(text.split())
        else:
            self._texts.append(text)
