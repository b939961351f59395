"""Quotations in an answer: which of them stand in the book, word for word, and where.

White space, typographic quotes, dashes and ellipses may differ, a quotation may begin with another case and end with a
sign of its own. Everything else must agree: a quotation that does not is shown as not found.
"""

import re
from dataclasses import dataclass, field, replace

LEAST_WORDS = 4  # shorter ones are names and emphasis more often than quotations
MOST_WORDS = 400  # of one that is looked for: a longer one is looked for by its beginning
MOST_QUOTES = 40
PAIRS = (("“", "”"), ('"', '"'), ("«", "»"), ("„", "“"), ("„", "”"))
QUOTED = re.compile("|".join(f"{a}([^{a}{b}\n]+(?:\n[^{a}{b}\n]+)*){b}" for a, b in PAIRS))
# What stands for the same sign, as sets of a regular expression: apostrophes, quotes, dashes.
ALIKE = ("'\u2018-\u201b`\u00b4", '"\u201c-\u201f\u00ab\u00bb', r"\-\u2010-\u2015\u2212")
SAME = tuple(f"[{kind}]" for kind in ALIKE)
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

    Cost: one search of the text for each.
    """
    places: dict[str, list[int]] = {}
    for match in QUOTED.finditer(answer):
        words = next(filter(None, match.groups()), "").split()
        if len(words) >= LEAST_WORDS:
            places.setdefault(" ".join(words), []).append(match.end())
    found = list(places.items())[:MOST_QUOTES]
    return tuple(replace(_find(words, text), places=tuple(ends)) for words, ends in found)


def _find(words: str, text: str) -> Quote:
    """A quotation with gaps stands where its parts do, one behind the other."""
    start: int | None = None
    end = 0
    for part in filter(None, ELISION.split(words)):
        match = pattern(part).search(text, end)
        if match is None:
            return Quote(words)
        start, end = match.start() if start is None else start, match.end()
    return Quote(words, start, end) if start is not None else Quote(words)


def pattern(words: str) -> re.Pattern[str]:
    """Finds the words whatever stands for white space, quotes and dashes between and in them."""
    parts = words.rstrip(ENDING).split()[:MOST_WORDS] or words.split()
    first, *rest = [_word(part) for part in parts]
    letter = parts[0][0]
    if letter.isalpha() and letter.upper() != letter.lower() and len(letter.upper()) == len(letter.lower()) == 1:
        first = f"[{letter.lower()}{letter.upper()}]" + _word(parts[0][1:])
    return re.compile(r"\s+".join([first, *rest]))


def _word(word: str) -> str:
    return "".join(next((kind for kind in SAME if re.match(kind, char)), re.escape(char)) for char in word)
