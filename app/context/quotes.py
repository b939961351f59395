"""Finds the quotations of an answer that are in the book word for word, and their places.

White space, typographic quotes, dashes and ellipses may differ, as may the case of the first letter and the closing
sign. Everything else must agree; otherwise the quotation counts as not found.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from app.documents.stretches import by_stretches

LEAST_WORDS = 4  # shorter ones are more often names and emphasis
MOST_WORDS = 400  # of a quotation; a longer one is searched by its beginning
MOST_QUOTES = 40
PAIRS = (("“", "”"), ('"', '"'), ("«", "»"), ("„", "“"), ("„", "”"))
QUOTED = re.compile("|".join(f"{a}([^{a}{b}\n]+(?:\n[^{a}{b}\n]+)*){b}" for a, b in PAIRS))
ALIKE = {
    "'": "\u2018\u2019\u201a\u201b`\u00b4",
    '"': "\u201c\u201d\u201e\u201f\u00ab\u00bb",
    "-": "\u2010\u2011\u2012\u2013\u2014\u2015\u2212",
}
SPACES = "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
FOLDED = {ord(char): sign for sign, chars in {**ALIKE, " ": SPACES}.items() for char in chars}
GAP = re.compile(r"\s{2,}")
ELISION = re.compile(r"\s*(?:\[\s*(?:…|\.\.\.)\s*\]|…|\.{3,}|\. \. \.)\s*")
ENDING = ".,;:!?…"


@dataclass(frozen=True, slots=True)
class Quote:
    """A quotation and its characters [start, end) in the text; None: not found."""

    words: str
    start: int | None = None
    end: int | None = None
    places: tuple[tuple[int, int], ...] = field(default=(), compare=False)  # characters [start, end) of the answer


def quotes_in(answer: str, text: str) -> tuple[Quote, ...]:
    """The distinct quotations of at least LEAST_WORDS words in an answer, searched in a text.

    Cost: one pass over the text, and one search of it for each quotation.
    """
    places: dict[str, list[tuple[int, int]]] = {}
    for match in QUOTED.finditer(answer):
        words = next(filter(None, match.groups()), "").split()
        if len(words) >= LEAST_WORDS:
            places.setdefault(" ".join(words), []).append(match.span())
    found = list(places.items())[:MOST_QUOTES]
    folded = Folded(text if found else "")
    return tuple(replace(_find(words, folded), places=tuple(spans)) for words, spans in found)


def _find(words: str, text: "Folded") -> Quote:
    """Search a quotation with gaps: its parts must follow each other in the text."""
    start: int | None = None
    end = 0
    for part in filter(None, ELISION.split(words)):
        place = text.find(part, end)
        if place is None:
            return Quote(words)
        start, end = place.start if start is None else start, place.stop
    return Quote(words, start, end) if start is not None else Quote(words)


class Folded:
    """A text with one space for any white space and one sign for similar signs.

    One plain search finds words in it, and repetitive texts do not slow it down.
    """

    def __init__(self, text: str) -> None:
        pieces: list[str] = []
        self._starts = [0]  # of stretches between gaps, in the folded text
        self._sources = [0]  # of the same stretches, in the original text
        start = 0
        for gap in GAP.finditer(text):
            pieces.append(text[start : gap.start()] + " ")
            start = gap.end()
            self._starts.append(self._starts[-1] + len(pieces[-1]))
            self._sources.append(start)
        self._text = by_stretches(fold, "".join([*pieces, text[start:]]))

    def find(self, words: str, start: int = 0) -> range | None:
        """The first match of the words at or after `start`, as characters of the original text; None: no match.

        Ignores the case of the first letter, and the signs at the end.
        """
        wanted = fold(" ".join((words.rstrip(ENDING).split() or words.split())[:MOST_WORDS]))
        low = _across(start, self._sources, self._starts)
        firsts = {one for one in (wanted[0], wanted[0].lower(), wanted[0].upper()) if len(one) == 1}
        places = [at for first in firsts if (at := self._text.find(first + wanted[1:], low)) >= 0]
        if not places:
            return None
        at = min(places)
        last = _across(at + len(wanted) - 1, self._starts, self._sources)
        return range(_across(at, self._starts, self._sources), last + 1)


def _across(char: int, here: Sequence[int], there: Sequence[int]) -> int:
    """Map a character's offset to the other text, given the starts of stretches in both."""
    at = bisect_right(here, char) - 1
    return there[at] + char - here[at]


def fold(text: str) -> str:
    """Replace similar signs by one, and any white space by a space."""
    return text.translate(FOLDED)
