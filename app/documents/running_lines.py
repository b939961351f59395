"""Headers, footers and page numbers: lines at the edge of pages that repeat, or that count the pages.

A line is a running line if the same words are at the same edge of several pages near each other, possibly except for a
number that grows with the page ("12 The Harbour", "Page 7 of 90"). Books change headers with the chapter and between
left and right pages, so pages are compared with their neighbourhood, not with the whole book. Edges are removed from
outside in. Short pages do not count: the slides of a talk may repeat a title, which belongs to the text.
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from typing import Literal, NamedTuple

Edge = Literal["top", "bottom"]

MAX_PEELED = 3  # running lines at one edge
NEIGHBOURHOOD = 4  # pages to either side
MIN_REPEATS = 3  # pages of a neighbourhood, including this one, for a line with words
MIN_NUMBERS = 2  # the same for a line that is only a page number
FULL_PAGE = 8  # lines; shorter pages do not make a line with words a running line
ROMAN = re.compile(r"(?=.)(x{0,3}l?x{0,3})(ix|iv|v?i{0,3})", re.IGNORECASE)  # up to 89: front matter


class Key(NamedTuple):
    """Equal for two lines on different pages if they are the same running line."""

    template: str  # the line, with one number replaced by "#" if `offset` is given
    offset: int | None  # that number minus the index of the page


def drop_running_lines(pages: Sequence[Sequence[str]]) -> list[list[str]]:
    """The lines of each page without headers, footers and page numbers. Blank lines next to them stay."""
    rest = [list(page) for page in pages]
    edges: tuple[Edge, Edge] = ("top", "bottom")
    numbered = {index for edge in edges for index in find_running(rest, edge, only_numbers=True)}
    for edge in edges:
        for _ in range(MAX_PEELED):
            running = find_running(rest, edge, numbered)
            for index in running:
                outer = outermost(rest[index], edge)
                rest[index] = rest[index][outer + 1 :] if edge == "top" else rest[index][:outer]
            if not running:
                break
    return rest


def find_running(
    pages: Sequence[Sequence[str]], edge: Edge, numbered: Container[int] = (), *, only_numbers: bool = False
) -> list[int]:
    """Indices of the pages whose outermost line at an edge is a running line.

    Args:
        numbered: pages with a page number alone in its line; what counts beside words there ("Sonnet 18") is text.
        only_numbers: leave out lines with words.
    """
    seen: defaultdict[Key, list[int]] = defaultdict(list)  # ascending page indices
    possible = [
        {
            key
            for key in keys(page, edge, index)
            if is_number(key) or not (only_numbers or (key.offset is not None and index in numbered))
        }
        for index, page in enumerate(pages)
    ]
    for index, (page, found) in enumerate(zip(pages, possible, strict=True)):
        is_full = sum(map(bool, page)) >= FULL_PAGE
        for key in found:
            if is_full or is_number(key):
                seen[key].append(index)
    return [
        index
        for index, found in enumerate(possible)
        if any(repeats(seen[key], index) >= (MIN_NUMBERS if is_number(key) else MIN_REPEATS) for key in found)
    ]


def keys(page: Sequence[str], edge: Edge, index: int) -> Iterator[Key]:
    """All keys under which the outermost line of a page could recur on another page."""
    if not any(page):
        return
    line = page[outermost(page, edge)].casefold()
    yield Key(line, None)
    numbers = list(re.finditer(r"\d{1,5}", line))
    for number in numbers[:1] + numbers[1:][-1:]:
        yield Key(f"{line[: number.start()]}#{line[number.end() :]}", int(number.group()) - index)
    words = line.split(" ")
    for at in {0, len(words) - 1}:
        if value := roman_value(words[at]):
            yield Key(" ".join([*words[:at], "#", *words[at + 1 :]]), value - index)


def is_number(key: Key) -> bool:
    """Whether the line is only a number that grows with the page, perhaps between dashes."""
    return key.offset is not None and not re.search(r"[^\W_]", key.template)


def repeats(indices: Sequence[int], index: int) -> int:
    """The number of the ascending page indices in a page's neighbourhood."""
    return bisect_right(indices, index + NEIGHBOURHOOD) - bisect_left(indices, index - NEIGHBOURHOOD)


def roman_value(line: str) -> int | None:
    """The value of a line that is a small Roman number; None: it is not."""
    if not ROMAN.fullmatch(line):
        return None
    digits = [{"i": 1, "v": 5, "x": 10, "l": 50}[letter] for letter in line]
    return sum(-one if one < following else one for one, following in zip(digits, [*digits[1:], 0], strict=True))


def outermost(page: Sequence[str], edge: Edge) -> int:
    """The index of the line nearest to an edge of a page that has any text."""
    order = range(len(page)) if edge == "top" else range(len(page) - 1, -1, -1)
    return next(index for index in order if page[index])
