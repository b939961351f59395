"""From the lines of printed pages to running text: letters, words, paragraphs.

Pure functions, independent of PDF. No word is lost, and every returned character belongs to one page.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from app.documents.document import by_stretches

SOFT_HYPHEN = "\N{SOFT HYPHEN}"
LETTER_TABLE = str.maketrans(
    {  # signs of fonts and typesetters for plain letters
        **{sign: unicodedata.normalize("NFKC", sign) for sign in map(chr, range(0xFB00, 0xFB07))},  # ligatures
        **dict.fromkeys("\N{HYPHEN}\N{NON-BREAKING HYPHEN}", "-"),
        **dict.fromkeys("\N{ZERO WIDTH SPACE}\N{WORD JOINER}\N{ZERO WIDTH NO-BREAK SPACE}", ""),
    }
)
LINE_END = re.compile(r"[\r\v\f\x85\u2028\u2029]")
INNER_SOFT_HYPHEN = re.compile(rf"{SOFT_HYPHEN}(?![^\S\n]*+$)", re.MULTILINE)  # at a line's end the word continues
ODD_SPACE = re.compile(r"[^\S\n]{2,}|[^\S\n ]")
NO_CONTROLS = {code: None for code in (*range(32), 127) if chr(code) not in "\t\n\f"}
CONTROL = re.compile(r"[\x00-\t\x0b-\x1f\x7f-\x9f]")
SENTENCE_ENDS, CLOSING = tuple(".!?:…\u3002\uff01\uff1f"), "\"'”’»)]"
LEADER, MIN_LEADERS = ".·…", 4
LEADERS = re.compile(rf"(?:[{LEADER}] ?){{{MIN_LEADERS}}} *\w+$")  # an entry of a list of contents and its page
BULLET = re.compile(r"[•‣▪◦●]")
NUMBER_WORDS = "One|Two|Three|Four|Five|Six|Seven|Eight|Nine|Ten|Eleven|Twelve"
HEADING = re.compile(
    rf"(?:chapter|part|book)\s+(?:\d+|[ivxlc]+|(?:{NUMBER_WORDS})(?:teen|ty)?)\b.{{0,40}}$", re.IGNORECASE
)
WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
HYPHENATED, LETTER = re.compile(r"\w-$"), re.compile(r"\w")
MOST_MARKS = 30  # on one letter, as in Unicode's stream-safe format (UAX 15, section 13)
HEAP = re.compile(rf"[^\w\s!-~]{{{MOST_MARKS + 1},}}+")  # a mark is no letter, no space and no ASCII sign
LONGEST_WORD = 200  # characters before a hyphen that are examined
CELL_BORDER = " | "  # between the cells of a table's row
# Chinese and Japanese letters and marks: as wide as two of ours, and without spaces between words.
WIDE = re.compile(r"[\u2e80-\u312f\u3190-\u9fff\uf900-\ufaff\uff01-\uff60\U00020000-\U0003ffff]")
FULL_LINE = 0.85  # of the usual width: a shorter line ends on purpose if the next line's first word had fitted
NEVER_FULL = 1_000_000  # characters; the width of a page on which every line ends on purpose
MIN_LINES = 5  # fewer do not show a page's width


class Row(NamedTuple):
    """A line with text, and its page."""

    page: int  # index
    line: str
    after_blank: bool  # a blank line separates it from the line before


def clean_lines(page_text: str) -> list[str]:
    """A page's lines in plain letters: no ligatures, control characters or odd spaces. Blank lines stay, as ""."""
    text = page_text
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # pairs up or replaces surrogates
    text = by_stretches(plain_letters, text.replace("\r\n", "\n"))
    return [line.strip() for line in text.split("\n")]


def plain_letters(text: str) -> str:
    """Lines without signs that only printing needs."""
    text = LINE_END.sub("\n", text)
    if text.isascii():
        return CONTROL.sub("", ODD_SPACE.sub(" ", text))
    text = INNER_SOFT_HYPHEN.sub("", text.translate(LETTER_TABLE))
    return composed(CONTROL.sub("", ODD_SPACE.sub(" ", text)))


def composed(text: str) -> str:
    """Letters and their marks as one character where one exists (NFC).

    Of too many marks only the first stay: sorting marks takes quadratic time.
    """
    return unicodedata.normalize("NFC", HEAP.sub(without_heap, text))


def without_heap(found: re.Match[str]) -> str:
    """Characters that are no letters, with at most MOST_MARKS marks on each."""
    kept: list[str] = []
    num_marks = 0
    for char in found[0]:
        num_marks = num_marks + 1 if unicodedata.combining(char) else 0
        if num_marks <= MOST_MARKS:
            kept.append(char)
    return "".join(kept)


def unwrap(pages: Sequence[Sequence[str]]) -> tuple[str, list[int]]:
    """Join the lines of pages into paragraphs: whole words, one line for each paragraph, a blank line after it.

    Args:
        pages: the lines of each page as `clean_lines` gives them.
    Returns:
        The text, and the offset of each page.
    """
    rows = list(printed_rows(pages))
    widths = usual_widths(pages)
    words = frozenset(WORD.findall("\n".join(row.line for row in rows).casefold()))
    pieces, starts, length = list[str](), dict[int, int](), 0
    for row, following in zip_longest(rows, rows[1:]):
        starts.setdefault(row.page, length)
        piece = join(row.line, following, widths[row.page], words) if following else row.line
        pieces.append(piece.removesuffix(SOFT_HYPHEN))
        length += len(pieces[-1])
    return "".join(pieces), fill_empty_pages(starts, len(pages), length)


def join(line: str, following: Row, width: int, words: frozenset[str]) -> str:
    """`line`, on a page usually `width` characters wide, with what joins it to the next row."""
    if following.after_blank:
        return line.removesuffix(SOFT_HYPHEN) + "\n\n"
    num_leaders = line.count(".") if line.isascii() else sum(map(line.count, LEADER))
    is_entry = num_leaders >= MIN_LEADERS and LEADERS.search(line)
    if is_entry or CELL_BORDER in following.line:
        return line.removesuffix(SOFT_HYPHEN) + "\n"
    if line.endswith(SOFT_HYPHEN):
        return line
    if line.endswith("-") and HYPHENATED.search(line) and LETTER.match(following.line):
        return join_hyphenated(line, following.line, words)
    if CELL_BORDER in line:
        return line + "\n"
    ends_sentence = line.rstrip(CLOSING).endswith(SENTENCE_ENDS)
    is_wide = WIDE.match(following.line) is not None
    first = 2 if is_wide else len(following.line.split(" ", 1)[0])
    ends_early = printed_width(line) + 1 + first <= FULL_LINE * width
    if HEADING.match(following.line) and (ends_early or ends_sentence):
        return line + "\n\n"
    if ends_early or BULLET.match(following.line):
        return line + ("\n\n" if ends_sentence else "\n")
    return line if line.endswith("—") or (is_wide and WIDE.match(line[-1])) else line + " "


def join_hyphenated(line: str, following: str, words: frozenset[str]) -> str:
    """A line that ends in a hyphen, without it if it only marks the line's end. The document's own words decide."""
    tail = WORD.match(following)
    head = re.search(rf"(?:{WORD.pattern})-$", line[-LONGEST_WORD:])
    if not (head and tail and following[0].islower()):
        return line  # Anglo-Saxon, 1990-1995
    kept = (head.group() + tail.group()).casefold()  # as in well-known
    compound, _, last = head.group()[:-1].casefold().rpartition("-")
    known = (f"{compound}-{last}" if compound else last) + tail.group().casefold() in words
    return line if not known and (kept in words or compound) else line[:-1]


def printed_rows(pages: Sequence[Sequence[str]]) -> Iterator[Row]:
    """The lines that are not blank, in order, each with whether a significant blank line precedes it."""
    edges_count = sum(not all(page[:1] + page[-1:]) for page in map(list, pages)) <= len(pages) / 2  # otherwise layout
    after_blank = False
    for number, page in enumerate(pages):
        filled = [index for index, line in enumerate(page) if line]
        for index, line in enumerate(page):
            if line:
                yield Row(number, line, after_blank)
                after_blank = False
            elif filled and filled[0] < index < filled[-1]:
                after_blank = True
            else:
                after_blank |= edges_count


def usual_widths(pages: Sequence[Sequence[str]]) -> list[int]:
    """For each page the length, in characters, that one line in ten exceeds: the width of its text."""
    filled = [[line for line in page if line] for page in pages]
    everywhere = [line for page in filled for line in page]
    usual = nine_tenths(everywhere)
    return [NEVER_FULL if is_verse(page) else nine_tenths(page) if len(page) >= MIN_LINES else usual for page in filled]


def is_verse(lines: Sequence[str]) -> bool:
    """Whether nearly all lines begin with a capital, as in verse and lists: there each line ends on purpose."""
    return len(lines) > 3 and sum(line[0].isupper() for line in lines) > 0.8 * len(lines)


def printed_width(line: str) -> int:
    """The width of a line, in letters of ours."""
    return len(line) if line.isascii() else len(line) + len(WIDE.findall(line))


def nine_tenths(lines: Sequence[str]) -> int:
    """The length that one line in ten reaches or exceeds."""
    lengths = sorted(map(printed_width, lines))
    return lengths[len(lengths) * 9 // 10] if lengths else 0


def fill_empty_pages(starts: Mapping[int, int], num_pages: int, num_chars: int) -> list[int]:
    """An offset for every page: a page without text begins and ends where the next one begins."""
    filled, following = list[int](), num_chars
    for page in reversed(range(num_pages)):
        following = starts.get(page, following)
        filled.append(following)
    return filled[::-1]
