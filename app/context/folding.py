"""Texts as Find compares them, stretch by stretch: without case and accents, or with both.

Every folded character keeps the offset of the character it comes from. Quotes and dashes are those of `quotes.py`;
white space of any kind and length is one space, and none between characters of Chinese and Japanese, where a line may
end anywhere. Cost: a few numpy passes over each stretch, whatever the text is, and memory for one stretch.
"""

import threading
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.context.quotes import fold as fold_signs
from app.documents.stretches import bounds

NUM_CODES = 0x110000
UNKNOWN = 255  # no character folds to so many
SPACE = 0x20
TATWEEL = "\u0640"  # lengthens an Arabic word
# Unicode parts none of these letters; \u0131 is an i without a dot:
STROKES = {"ø": "o", "ł": "l", "đ": "d", "ħ": "h", "ŧ": "t", "\u0131": "i", "æ": "ae", "œ": "oe"}
UNSPACED = ((0x2E80, 0x3140), (0x3190, 0xA000), (0xF900, 0xFB00), (0xFF00, 0xFFF0), (0x20000, 0x40000))


def fold_char(char: str, *, exact: bool) -> str:
    """One character as Find compares it; empty for what is not seen.

    Args:
        exact: keep case and accents; composed and decomposed forms are still the same.
    """
    if unicodedata.category(char) == "Cf" or char == TATWEEL:
        return ""
    sign = fold_signs(char)
    if exact:
        return unicodedata.normalize("NFD", sign)
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", sign).casefold()).casefold()
    return fold_signs("".join(STROKES.get(one, one) for one in plain if not is_accent(one)))


def is_accent(char: str) -> bool:
    """A mark above, below or within a letter. Not the vowels of Indic and Thai script, nor the voicing of kana."""
    place = unicodedata.combining(char)
    return place >= 200 or 10 <= place <= 35  # 10 to 35: the points of Hebrew, Arabic and Syriac


def is_unspaced(code: int) -> bool:
    """A character of a script that has no spaces between words and no hyphens at line ends."""
    return any(first <= code < end for first, end in UNSPACED)


class Folded(NamedTuple):
    """A piece of the folded text."""

    text: str
    sources: NDArray[np.int64]  # [len(text)], offsets in the text


class _Table:
    """What each character folds to. Characters are looked up when they are first seen."""

    def __init__(self, exact: bool) -> None:
        self._exact, self._lock = exact, threading.Lock()
        self._pool = np.zeros(0, np.uint32)  # the folded characters of all known characters
        self._first = np.zeros(NUM_CODES, np.int32)  # in the pool
        self._length = np.full(NUM_CODES, UNKNOWN, np.uint8)

    def __call__(self, codes: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Folded characters of characters [n], and for each the index of its source in `codes`."""
        lengths = self._length[codes]
        if (lengths == UNKNOWN).any():
            self._learn(np.unique(codes[lengths == UNKNOWN]))
            lengths = self._length[codes]
        sources = np.repeat(np.arange(len(codes)), lengths)
        ends = np.cumsum(lengths, dtype=np.int64)
        within = np.arange(len(sources)) - (ends - lengths)[sources]
        return self._pool[self._first[codes][sources] + within], sources

    def _learn(self, codes: NDArray[np.uint32]) -> None:
        folded = [fold_char(chr(code), exact=self._exact) for code in codes]
        lengths = np.array([len(one) for one in folded], np.uint8)
        with self._lock:  # lengths come last: they tell another thread that the rest is there
            first = len(self._pool) + np.cumsum(lengths, dtype=np.int32) - lengths
            self._pool = np.concatenate([self._pool, to_codes("".join(folded))])
            self._first[codes] = first
            self._length[codes] = lengths


@cache
def _table(exact: bool) -> _Table:
    return _Table(exact)


def to_codes(text: str) -> NDArray[np.uint32]:
    """Characters as numbers."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def from_codes(codes: NDArray[np.uint32]) -> str:
    """Numbers as characters."""
    return codes.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


def folded(text: str, *, exact: bool, overlap: int = 0) -> Iterator[Folded]:
    """The folded text in pieces.

    Args:
        overlap: how many characters from the end of a piece the next one repeats.
    """
    codes, sources = np.zeros(0, np.uint32), np.zeros(0, np.int64)
    for start, end in bounds(text):
        more, places = _table(exact)(to_codes(text[start:end]))
        codes, sources = np.concatenate([codes, more]), np.concatenate([sources, places + start])
        kept = _spaces_kept(codes)
        codes, sources = codes[kept], sources[kept]
        # whether a last space stays depends on what follows
        num_ready = len(codes) - (end < len(text) and len(codes) > 0 and codes[-1] == SPACE)
        yield Folded(from_codes(codes[:num_ready]), sources[:num_ready])
        rest = max(0, num_ready - overlap)
        codes, sources = codes[rest:], sources[rest:]


def fold(text: str, *, exact: bool) -> str:
    """A short text at once."""
    return "".join(piece.text for piece in folded(text, exact=exact))


def _spaces_kept(codes: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """All but spaces after a space, and spaces between two characters of a script without spaces."""
    space = codes == SPACE
    keep = np.ones(len(codes), np.bool_)
    keep[1:] = ~(space[1:] & space[:-1])
    if len(codes) and codes.max() >= UNSPACED[0][0]:
        single = np.flatnonzero(keep)
        unspaced = np.zeros(len(codes), np.bool_)
        for first, end in UNSPACED:
            unspaced |= (codes >= first) & (codes < end)
        between = space[single][1:-1] & unspaced[single][:-2] & unspaced[single][2:]
        keep[single[1:-1][between]] = False
    return keep
