"""Chapters of a file that names them: by its list of contents, else its marked headings, else lines of its text.

An entry of a list of contents points to a page; its title is looked for there, so that a chapter begins with it.
"""

from collections.abc import Iterator, Sequence
from itertools import compress, groupby, islice, pairwise

from app.documents.chapters import LEADING_NUMBER, letters, make_chapters, text_headings
from app.documents.document import Chapter
from app.documents.messages import Heading, Opened, PageRead

MAX_SCANNED = 200_000_000  # letters read in the search for titles: under a second, whatever the file
MAX_PLACES = 20  # occurrences of one title on a page that are examined


def pointed(text: str, pointers: Sequence[Heading]) -> Iterator[Heading]:
    """The headings of a list of contents. One that is not found on its page begins where the page begins.

    Args:
        pointers: its entries, each at the whole page or section to which it points.
    """
    budget = MAX_SCANNED
    in_order = sorted(pointers, key=lambda pointer: (pointer.char_start, pointer.char_end))
    for part, group in groupby(in_order, key=lambda pointer: (pointer.char_start, pointer.char_end)):
        page = Letters(text, *part, budget)
        at = 0
        for pointer in group:
            found = page.find(pointer.title, at) or (page.find(pointer.title, 0) if at else None)
            budget = page.budget
            if found:
                at = found.stop
                yield Heading(page.chars[found.start], page.chars[found.stop - 1] + 1, pointer.level, pointer.title)
            elif page.letters:
                yield Heading(page.chars[0], page.chars[0], pointer.level, pointer.title)


class Letters:
    """The letters of a part of a text with their offsets: titles are found whatever is between words."""

    def __init__(self, text: str, char_start: int, char_end: int, budget: int) -> None:
        part = text[char_start:char_end]
        are_letters = list(map(str.isalnum, part))
        self.chars = list(compress(range(char_start, char_end), are_letters))  # the offset of each letter
        self.letters = "".join(compress(part, are_letters)).casefold()
        if len(self.letters) > len(self.chars):  # one has become two
            self.chars = [at for at in self.chars for _ in text[at].casefold()]
        self.budget = budget  # remaining letters that may be read
        self._text = text

    def find(self, title: str, start: int) -> range | None:
        """The whole words from letter `start` on that match a title, perhaps without its number.

        Prefers the first match at the beginning of a line, else the first.
        """
        for wanted in (letters(title), letters(LEADING_NUMBER.sub("", title, count=1))):
            places = list(islice(self._places(wanted, start), MAX_PLACES)) if wanted else []
            if places:
                at = next(filter(self._begins_line, places), places[0])
                return range(at, at + len(wanted))
        return None

    def _places(self, wanted: str, start: int) -> Iterator[int]:
        while self.budget > 0:
            at = self.letters.find(wanted, start)
            self.budget -= (len(self.letters) if at < 0 else at) - start + 1_000  # plus the cost of the call
            if at < 0:
                return
            if self._divided(at) and self._divided(at + len(wanted)):
                yield at
            start = at + 1

    def _divided(self, at: int) -> bool:
        """Whether any other character separates two letters."""
        return at in (0, len(self.chars)) or self.chars[at] > self.chars[at - 1] + 1

    def _begins_line(self, at: int) -> bool:
        return at == 0 or "\n" in self._text[self.chars[at - 1] : self.chars[at]]


def marked_chapters(
    text: str, page_starts: Sequence[int], opened: Opened, parts: Sequence[PageRead], part_starts: Sequence[int]
) -> tuple[Chapter, ...]:
    """Chapters of a worker's text: by its list of contents, else its headings, else lines of the text.

    Args:
        parts: the worker's pages or sections.
        part_starts: the offset of each in the text.
    """
    bounds = list(pairwise([*part_starts, len(text)]))
    pointers = [
        Heading(*bounds[entry["page"]], entry["level"], entry["title"])
        for entry in opened["outline"]
        if 0 <= entry["page"] < len(bounds)
    ]
    marked = (
        heading._replace(char_start=start + heading.char_start, char_end=start + heading.char_end)
        for part, start in zip(parts, part_starts, strict=True)
        for heading in part["headings"]
    )
    return make_chapters(text, page_starts, pointed(text, pointers), marked, text_headings(text, page_starts))
