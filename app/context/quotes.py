"""Finds the quotations of an answer that are in the book word for word, and their places.

White space, typographic quotes, dashes, ellipses and characters that are not seen may differ, as may the case of the
first letter and the closing sign. Everything else must agree; otherwise the quotation counts as not found.
"""

import re
from dataclasses import dataclass, field, replace

import numpy as np

from app.context.folding import fold, folded

LEAST_WORDS = 4  # shorter ones are more often names and emphasis
MOST_WORDS = 400  # of a quotation; a longer one is searched by its beginning
MOST_QUOTES = 40
PAIRS = (("“", "”"), ('"', '"'), ("«", "»"), ("„", "“"), ("„", "”"))
QUOTED = re.compile("|".join(f"{a}([^{a}{b}\n]+(?:\n[^{a}{b}\n]+)*){b}" for a, b in PAIRS))
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
        pieces = list(folded(text, exact=True))
        self._text = "".join(piece.text for piece in pieces)
        self._sources = np.concatenate([np.zeros(0, np.int64), *(piece.sources for piece in pieces)])

    def find(self, words: str, start: int = 0) -> range | None:
        """The first match of the words at or after `start`, as characters of the original text; None: no match.

        Ignores the case of the first letter, and the signs at the end.
        """
        wanted = fold(" ".join((words.rstrip(ENDING).split() or words.split())[:MOST_WORDS]), exact=True)
        low = int(np.searchsorted(self._sources, start))
        firsts = {one for one in (wanted[:1], wanted[:1].lower(), wanted[:1].upper()) if len(one) == 1}
        places = [at for first in firsts if (at := self._text.find(first + wanted[1:], low)) >= 0]
        if not places:
            return None
        at = min(places)
        return range(int(self._sources[at]), int(self._sources[at + len(wanted) - 1]) + 1)
