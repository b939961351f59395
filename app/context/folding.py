"""Texts as Find compares them, stretch by stretch: without case and accents, or with both.

Every folded character keeps the offset of the character it comes from. Similar quotes and dashes are one sign;
white space of any kind and length is one space, and none between characters of Chinese and Japanese, where a line may
end anywhere. Cost: a few numpy passes over each stretch, whatever the text is, and memory for one stretch.
"""

import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.documents.document import bounds

SPACE = 0x20
ALIKE = {
    "'": "\u2018\u2019\u201a\u201b`\u00b4",
    '"': "\u201c\u201d\u201e\u201f\u00ab\u00bb",
    "-": "\u2010\u2011\u2012\u2013\u2014\u2015\u2212",
}
SPACES = "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
FOLDED = {ord(char): sign for sign, chars in {**ALIKE, " ": SPACES}.items() for char in chars}
TATWEEL = "\u0640"  # lengthens an Arabic word
# Unicode parts none of these letters; \u0131 is an i without a dot:
STROKES = {"ø": "o", "ł": "l", "đ": "d", "ħ": "h", "ŧ": "t", "\u0131": "i", "æ": "ae", "œ": "oe"}
UNSPACED = ((0x2E80, 0x3140), (0x3190, 0xA000), (0xF900, 0xFB00), (0xFF00, 0xFFF0), (0x20000, 0x40000))


@cache
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


def _fold_all(text: str, exact: bool) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Folded characters of a text, and for each the offset of its source."""
    table = {ord(char): fold_char(char, exact=exact) for char in set(text)}
    lengths = np.zeros(max(table, default=0) + 1, np.uint8)
    for code, alike in table.items():
        lengths[code] = len(alike)
    sources = np.repeat(np.arange(len(text)), lengths[to_codes(text)])
    return to_codes(text.translate(table)), sources


def fold_signs(text: str) -> str:
    """Replace similar signs by one, and any white space by a space."""
    return text.translate(FOLDED)


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
        more, places = _fold_all(text[start:end], exact)
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
