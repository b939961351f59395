"""Finds text that was extracted without an error but is wrong: meaningless letters, empty pages.

Programs write the text layers of PDFs without ever reading them. Pure functions from pages to warnings.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise

from app.documents.messages import PageRead

FEW_LETTERS = 20  # a page with fewer is not a text page: blank, a title or a picture
HARDLY_ANY = 150  # letters: a stamp or a caption on a scanned page
MIN_LOST, LOST_SHARE = 5, 0.02  # characters without meaning, on one page
MIN_LETTERS = 200  # fewer do not show a page's language
WORD_LENGTHS = (1.7, 16.0)  # mean of a page; English 4.5, German 6, Finnish 8
VOWEL_SHARES = (0.16, 0.75)  # of Latin letters; English 0.38, Czech 0.40, Hawaiian 0.63
NOT_ASCII = re.compile(r"[^\x00-\x7f]")
GLYPH_NUMBER = re.compile(r"\(cid:\d+\)|/[gG]\d{2,4}\b")  # glyphs without a letter, as written by programs
NO_LETTERS = bytes(code for code in range(128) if not chr(code).isalnum())
LATIN_WORD = re.compile(r"[^\W\d_]+")
VOWELS = frozenset("aeiouyæœø\u0131əɔɛ")


def ranges(indices: Sequence[int]) -> str:
    """Page indices as people write them: 1, 4–6, 9."""
    runs: list[tuple[int, int]] = []
    for index in indices:
        first = runs.pop()[0] if runs and runs[-1][1] == index - 1 else index
        runs.append((first, index))
    return ", ".join(str(a + 1) if a == b else f"{a + 1}–{b + 1}" for a, b in runs)


def num_letters(lines: Iterable[str]) -> int:
    """Letters and digits on a page."""
    return sum(
        len(line.encode().translate(None, NO_LETTERS)) if line.isascii() else sum(map(str.isalnum, line))
        for line in lines
    )


def garbled(text: str, page_starts: Sequence[int], advice: str = "") -> tuple[str, ...]:
    """The warning about pages with meaningless letters, if there are any, and what to do about them."""
    pages = [text[start:end] for start, end in pairwise([*page_starts, len(text)])]
    indices = [index for index, page in enumerate(pages) if is_garbled(page)]
    warning = f"Letters that make no words (a broken text layer or encoding): pages {ranges(indices)}.{advice}"
    return (warning,) * bool(indices)


def is_garbled(page: str) -> bool:
    """Whether a page has lost characters, or words of no language."""
    return has_lost_characters(page) or has_odd_words(page)


def has_lost_characters(page: str) -> bool:
    """Whether more than a few characters mean nothing: replaced, private to a font, or bare glyph numbers."""
    odd: list[str] = NOT_ASCII.findall(page)
    lost = sum(char == "�" or unicodedata.category(char) in ("Co", "Cn") for char in odd)
    lost += len(GLYPH_NUMBER.findall(page))
    return lost >= MIN_LOST and lost > LOST_SHARE * sum(not char.isspace() for char in page)


def has_odd_words(page: str) -> bool:
    """Whether the words of a page of Latin letters are spaced out, joined, or with too few or too many vowels.

    Wrong letter tables mostly shift letters: "The quay" becomes "7KH TXD\\", with a seventh of the vowels.
    """
    latin = [word for word in LATIN_WORD.findall(page) if word.isascii() or is_latin(word[0])]
    count = sum(map(len, latin))
    if count < MIN_LETTERS:
        return False
    shortest, longest = WORD_LENGTHS
    fewest, most = VOWEL_SHARES
    plain = unicodedata.normalize("NFD", "".join(latin)).lower()
    vowels = sum(map(plain.count, VOWELS)) / count
    return not (shortest <= count / len(latin) <= longest and fewest <= vowels <= most)


def is_latin(letter: str) -> bool:
    """Whether a letter is one of the Latin script, accents included."""
    return unicodedata.name(letter, "").startswith("LATIN")


def is_picture(page: PageRead) -> bool:
    """Whether a page shows pictures and no text that could be read."""
    return page["has_image"] and not page.get("recognised") and num_letters([page["text"]]) < FEW_LETTERS


def hardly_any_text(num_letters: Sequence[int], has_image: Sequence[bool]) -> tuple[str, ...]:
    """The warning about a document whose pages mostly have so little text that they look like a scan."""
    poor = [index for index, count in enumerate(num_letters) if count < HARDLY_ANY]
    scanned = [index for index in poor if has_image[index] and num_letters[index] >= FEW_LETTERS]
    if len(scanned) > len(num_letters) / 2:
        return (f"Images with hardly any text (a scan?): pages {ranges(scanned)}.",)
    blank = [index for index in poor if num_letters[index] < FEW_LETTERS and not has_image[index]]
    if len(blank) > max(2, len(num_letters) / 2):
        return (f"Hardly any text: pages {ranges(blank)}.",)
    return ()
