"""Numbers that programs show before paragraphs: not part of the text, but computed from rules (ECMA-376, 17.9)."""

import re
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, field, replace
from xml.etree import ElementTree

MAX_MARKER = 60  # characters
MAX_LEVELS = 9
ROMAN = ((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"), (10, "x"),
         (9, "ix"), (5, "v"), (4, "iv"), (1, "i"))  # fmt: skip
BULLET = "•"
OFF = frozenset(["0", "false", "off"])
# Those of OpenDocument and of web pages, in Word's terms.
FORMS = {"1": "decimal", "a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman", "": "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The numbering of one level of a list."""

    format: str = "bullet"
    pattern: str = ""  # "%1.%2": the numbers of the first two levels
    start: int = 1
    is_legal: bool = False  # Roman numbers and letters, too, are shown as digits
    restarts_below: int = MAX_LEVELS  # a paragraph of one of so many levels, from the highest, restarts it


@dataclass(slots=True)
class Numbering:
    """A list, or several that count together."""

    levels: MutableSequence[Level] = field(default_factory=list)
    counts: list[int | None] = field(default_factory=lambda: [None] * MAX_LEVELS)  # the last number of each level

    def restart(self, level: int) -> None:
        """Count from the start again, at a level and those below."""
        self.counts[level:] = [None] * (MAX_LEVELS - level)

    def marker(self, level: int) -> str:
        """The number before the next paragraph at a level; "": none."""
        if not 0 <= level < len(self.levels):
            return ""
        before = self.counts[level]
        own = self.levels[level]
        self.counts[level] = own.start if before is None else before + 1
        for lower in range(level + 1, len(self.levels)):
            if level < self.levels[lower].restarts_below:
                self.counts[lower] = None
        if own.format == "bullet":
            return BULLET
        if own.format == "none":
            return ""

        def number(place: re.Match[str]) -> str:
            index = int(place[1]) - 1
            if index >= len(self.levels):
                return ""
            count, form = self.counts[index], self.levels[index].format
            form = "decimal" if own.is_legal and form != "decimalZero" else form
            return written(self.levels[index].start if count is None else count, form)

        return re.sub(r"%([1-9])", number, own.pattern)[:MAX_MARKER].strip()


def read_numbering(root: ElementTree.Element | None) -> dict[str, Numbering]:
    """The lists that numbering.xml defines, by their numbers; those of a kind count together unless they restart."""
    if root is None:
        return {}
    kinds: dict[str, Numbering] = {}
    styles: dict[str, Numbering] = {}  # kinds by the style that other kinds name
    for entry in root.iter("abstractNum"):
        kind = Numbering(read_levels(entry, [Level()] * MAX_LEVELS))
        kinds[entry.get("abstractNumId", "")] = styles[value(entry, "styleLink") or "-"] = kind
    for entry in root.iter("abstractNum"):
        if (link := value(entry, "numStyleLink")) in styles:
            kinds[entry.get("abstractNumId", "")] = styles[link]
    lists: dict[str, Numbering] = {}
    for entry in root.iter("num"):
        kind = kinds.get(value(entry, "abstractNumId"), Numbering())
        levels = read_levels(entry, kind.levels)
        restarts = any(True for _ in entry.iter("startOverride"))
        lists[entry.get("numId", "")] = Numbering(levels) if restarts else Numbering(levels, kind.counts)
    return lists


def read_levels(kind: ElementTree.Element, usual: Sequence[Level]) -> list[Level]:
    """The levels that a kind of list defines, or those in which a list differs from its kind, `usual`."""
    levels = list(usual)
    for entry in kind.iter():
        level = number_or(entry.get("ilvl"), -1)
        if 0 <= level < len(levels) and entry.tag == "lvl":
            levels[level] = Level(
                format=value(entry, "numFmt") or "decimal",
                pattern=value(entry, "lvlText")[:MAX_MARKER],
                start=number_or(value(entry, "start"), 1),
                is_legal=is_on(entry.find("isLgl")),
                restarts_below=number_or(value(entry, "lvlRestart"), MAX_LEVELS),
            )
        elif 0 <= level < len(levels):
            levels[level] = replace(levels[level], start=number_or(value(entry, "startOverride"), levels[level].start))
    return levels


def is_on(switch: ElementTree.Element | None) -> bool:
    """Whether a property that is on or off is on."""
    return switch is not None and switch.get("val", "") not in OFF


def value(element: ElementTree.Element, name: str) -> str:
    """The val attribute of a child; "" if there is none."""
    child = element.find(name)
    return "" if child is None else child.get("val", "")


def number_or(text: str | None, default: int) -> int:
    """A small number, or the default."""
    return int(text) if text and re.fullmatch(r"\d{1,6}", text, re.ASCII) else default


def written(number: int, form: str) -> str:
    """A number in one of Word's forms; unknown forms give digits."""
    if form in ("lowerLetter", "upperLetter") and 1 <= number <= 26 * 4:
        letters = chr(ord("a") + (number - 1) % 26) * ((number - 1) // 26 + 1)  # z is followed by aa
        return letters if form == "lowerLetter" else letters.upper()
    if form in ("lowerRoman", "upperRoman") and 1 <= number < 4000:
        roman = ""
        for size, letters in ROMAN:
            roman += letters * (number // size)
            number %= size
        return roman if form == "lowerRoman" else roman.upper()
    return f"{number:02d}" if form == "decimalZero" else str(number)
