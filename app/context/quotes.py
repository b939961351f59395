"""Quotations in an answer: which of them stand in the book, word for word, and where.

White space, typographic quotes, dashes and ellipses may differ, a quotation may begin with another case and end with a
sign of its own. Everything else must agree: a quotation that does not is shown as not found.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from app.documents.stretches import by_stretches

LEAST_WORDS = 4  # shorter ones are names and emphasis more often than quotations
MOST_WORDS = 400  # of one that is looked for: a longer one is looked for by its beginning
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
    """A quotation, and the characters [start, end) of the text where it stands; None: nowhere."""

    words: str
    start: int | None = None
    end: int | None = None
    places: tuple[int, ...] = field(default=(), compare=False)  # characters of the answer behind its closing signs


def quotes_in(answer: str, text: str) -> tuple[Quote, ...]:
    """The quotations of at least LEAST_WORDS words in an answer, each once, looked up in a text.

    Cost: one pass over the text, and one search of it for each.
    """
    places: dict[str, list[int]] = {}
    for match in QUOTED.finditer(answer):
        words = next(filter(None, match.groups()), "").split()
        if len(words) >= LEAST_WORDS:
            places.setdefault(" ".join(words), []).append(match.end())
    found = list(places.items())[:MOST_QUOTES]
    folded = Folded(text if found else "")
    return tuple(replace(_find(words, folded), places=tuple(ends)) for words, ends in found)


def _find(words: str, text: "Folded") -> Quote:
    """A quotation with gaps stands where its parts do, one behind the other."""
    start: int | None = None
    end = 0
    for part in filter(None, ELISION.split(words)):
        place = text.find(part, end)
        if place is None:
            return Quote(words)
        start, end = place.start if start is None else start, place.stop
    return Quote(words, start, end) if start is not None else Quote(words)


class Folded:
    """A text with one space for all white space and one sign for all that are alike.

    Words are found in it by one plain search, which takes no longer in a text that repeats itself.
    """

    def __init__(self, text: str) -> None:
        pieces: list[str] = []
        self._starts = [0]  # of stretches between gaps, in the folded text
        self._sources = [0]  # of the same, in the text
        start = 0
        for gap in GAP.finditer(text):
            pieces.append(text[start : gap.start()] + " ")
            start = gap.end()
            self._starts.append(self._starts[-1] + len(pieces[-1]))
            self._sources.append(start)
        self._text = by_stretches(fold, "".join([*pieces, text[start:]]))

    def find(self, words: str, start: int = 0) -> range | None:
        """The characters of the text where words first stand, from one of its characters on; None: nowhere.

        The first letter may be of another case, and the signs at the end are not looked at.
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
    """Where a character of one text stands in the other, by where stretches begin in both."""
    at = bisect_right(here, char) - 1
    return there[at] + char - here[at]


def fold(text: str) -> str:
    """Signs that are alike as one, any white space as a space."""
    return text.translate(FOLDED)
