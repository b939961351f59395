"""Chapters and sub-chapters from headings, and the headings of plain text, of Markdown and of lists of contents.

Pure functions of a text. Offsets are exact: a chapter's text begins with its heading.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, groupby, islice, pairwise

from app.documents.document import BEGINNING, Chapter, bounds
from app.documents.messages import Heading, Opened, PageRead

MIN_CHAPTERS = 2  # a single heading divides nothing
MAX_CHAPTERS, MAX_HEADINGS = 5_000, 50_000
MAX_LEVEL = 9  # of headings, as word processors have them; lower ones count as the ninth
MAX_DEPTH = 4  # of sub-chapters
SHORT_START = 300  # letters and signs before the first sub-chapter, such as a motto, that are no part of their own
LONGEST_HEADING = 300  # characters; anything longer is text that was only marked as a heading
MAX_TITLE = 120  # characters of a displayed title
MAX_LINE = 100  # characters; a longer line is a paragraph
TITLE_LINE = 60  # characters of a title line below a line with the number
CONTENTS_RUN = 4  # so many headings in a row are a list of contents; fewer are one in several lines
JOINT = " · "  # between the lines of one heading
MAX_SCANNED = 200_000_000  # letters read in the search for titles: under a second, whatever the file
MAX_PLACES = 20  # occurrences of one title on a page that are examined

KINDS = (
    "chapter|chapitre|kapitel|capítulo|capitulo|capitolo|hoofdstuk|part|partie|parte|teil|book|buch|livre|libro|volume|"
    "canto|act|letter|section"
)
CHAPTERS = frozenset(KINDS.split("|")[:7])
PARTS = frozenset(["part", "partie", "parte", "teil", "book", "buch", "livre", "libro", "volume"])
TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
ONES = "one|two|three|four|five|six|seven|eight|nine"
TEENS = "ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen"
NUMBER = rf"(?:\d{{1,4}}|[ivxlc]{{1,9}}|(?:{TENS})(?:[- ](?:{ONES}))?|{TEENS}|{ONES}|the (?:first|last))"
NAMES = "prologue|epilogue|introduction|foreword|preface|interlude|conclusion|afterword|appendix(?: [a-z0-9])?"
CHINESE = "第[ \t]*[0-9一二三四五六七八九十百千零\u3007两]{1,8}[ \t]*[章回卷部]"
KIND = re.compile(rf"({KINDS})\s+{NUMBER}\b|{CHINESE}", re.IGNORECASE)
HEADING_LINE = re.compile(
    rf"^[ \t]*+(?=[^\W_])(?P<line>(?:(?P<kind>{KINDS})[ \t]+{NUMBER}\b"
    rf"|(?:{NAMES})(?=[.:]?[ \t]*$)|(?P<chinese>{CHINESE}))"
    rf"(?P<rest>[^\n]{{0,{MAX_LINE}}}))$",
    re.IGNORECASE | re.MULTILINE,
)
# After the number: nothing, a sign and a title, or a title; "Chapter 3 of the book says" is no heading.
REST = re.compile(r"[.:–—-]*\s*|\s*[.:–—-]+\s*\S.*|\s+(?P<title>\S).*")
SECTION = re.compile(r"\s*\d{1,4}\.\d")  # the number of a section, below the heading of its chapter
OPENING = "\"'(\u201c\u2018\u00ab"  # quotation marks and a bracket that a title may begin with
# After the dots of a list of contents. Tried once for every run of spaces and of dots, which is given back by none.
PAGE_NUMBER = re.compile(r"(?<!\s)(?:\s*+(?<![.·…])[.·…]{2,}+\s*+|\s{2,}+|\t)\d++\s*+$")
LEADING_NUMBER = re.compile(rf"(?:(?:{KINDS})\s+)?{NUMBER}\b[.:)\s–—-]*|(?<!\d)\d++(?:\.\d+)*[.:)\s]+", re.IGNORECASE)
FENCE = re.compile(r" {0,3}(?:`{3,}|~{3,})")
ATX = re.compile(r" {0,3}(#{1,6})[ \t]+(?=\S)")
UNDERLINE = re.compile(r" {0,3}(=+|-{2,})[ \t]*$")


def make_chapters(text: str, page_starts: Sequence[int], *sources: Iterable[Heading]) -> tuple[Chapter, ...]:
    """Chapters by the first source that has any. Each extends to the next; text before the first belongs to none.

    Args:
        page_starts: the offset of each page.
        sources: headings, the most trusted source first.
    """
    for source in sources:
        headings = in_order(source)
        chosen = tidy(text, chapter_level(headings))
        if len(chosen) >= MIN_CHAPTERS:
            return divided(text, page_starts, chosen, len(text), headings, MAX_DEPTH)
    return ()


def divided(
    text: str, page_starts: Sequence[int], chosen: Sequence[Heading], end: int, headings: Sequence[Heading], depth: int
) -> tuple[Chapter, ...]:
    """Chapters that begin at the chosen headings, the last one up to `end`, with their sub-chapters.

    Args:
        headings: all there are, in order; those of a lower level than a chapter's own divide it.
        depth: so many levels of sub-chapters.
    """
    bounds = pairwise([*(heading.char_start for heading in chosen), end])
    chapters = []
    for heading, (start, stop) in zip(chosen, bounds, strict=True):
        inside = headings[bisect_left(headings, start, key=begins) : bisect_left(headings, stop, key=begins)]
        lower = [one for one in inside if one.level > heading.level and one.char_start >= heading.char_end]
        sections = sub_chapters(text, page_starts, heading, stop, lower, depth) if lower and depth else ()
        chapters.append(
            Chapter(
                title=shorten(heading.title),
                first_page=bisect_right(page_starts, start),
                char_start=start,
                char_end=stop,
                sections=sections,
            )
        )
    return tuple(chapters)


def sub_chapters(
    text: str, page_starts: Sequence[int], chapter: Heading, end: int, headings: Sequence[Heading], depth: int
) -> tuple[Chapter, ...]:
    """The sub-chapters of a chapter up to `end`: its highest headings that make several parts of it; () without any.

    What stands before the first is a part of its own, unless it is short.
    """
    for level in sorted({heading.level for heading in headings})[:MAX_DEPTH]:
        chosen = tidy(text, [heading for heading in headings if heading.level == level])
        if not chosen:
            continue
        first = Heading(chapter.char_start, chapter.char_end, level, BEGINNING)
        if len(text[chapter.char_end : chosen[0].char_start].strip()) > SHORT_START:
            chosen.insert(0, first)
        else:
            chosen[0] = chosen[0]._replace(char_start=chapter.char_start)
        if len(chosen) > 1:
            return divided(text, page_starts, chosen, end, headings, depth - 1)
    return ()


def begins(heading: Heading) -> int:
    """Where a heading begins."""
    return heading.char_start


def in_order(source: Iterable[Heading]) -> list[Heading]:
    """The headings of a source that may be one, as the text has them, with at most MAX_LEVEL levels."""
    short = (
        heading if heading.level <= MAX_LEVEL else heading._replace(level=MAX_LEVEL)
        for heading in islice(source, MAX_HEADINGS)
        if len(heading.title) <= LONGEST_HEADING and has_letters(heading.title)
    )
    return sorted(short, key=lambda heading: (heading.char_start, heading.level))


def tidy(text: str, headings: Iterable[Heading]) -> list[Heading]:
    """Headings of one level and higher ones without repeats, several lines as one, without lists of contents."""
    runs: list[list[Heading]] = []
    for heading in headings:
        bare = runs and not has_letters(text[runs[-1][-1].char_end : heading.char_start])
        if bare and heading.char_start < runs[-1][-1].char_end:
            continue  # a repeat of the same place
        if bare:
            runs[-1].append(heading)
        else:
            runs.append([heading])
    last = {key(run[-1].title): number for number, run in enumerate(runs)}  # last run that ends with each title
    chosen = [
        one for number, run in enumerate(runs) if (one := as_one(run, comes_again=last[key(run[-1].title)] > number))
    ]
    return chosen[:MAX_CHAPTERS]


def as_one(run: Sequence[Heading], *, comes_again: bool) -> Heading | None:
    """One heading from headings without text between them. Of a list of contents only the last may be a heading.

    Args:
        comes_again: the last title of the run occurs again later.
    """
    last = run[-1]
    kinds = [kind for heading in run if (kind := kind_of(heading.title))]
    if len(run) < CONTENTS_RUN and len(set(kinds)) == len(kinds):
        return Heading(run[0].char_start, last.char_end, last.level, JOINT.join(heading.title for heading in run))
    closes_list = comes_again and key(last.title) not in {key(heading.title) for heading in run[:-1]}
    return None if closes_list else last


def chapter_level(headings: Sequence[Heading]) -> list[Heading]:
    """Headings down to chapter level: that of most named chapters, else the highest that divides the text."""
    counts = Counter(heading.level for heading in headings)
    named = Counter(heading.level for heading in headings if kind_of(heading.title) in CHAPTERS)
    best = max(named, key=lambda level: (named[level], -level), default=0)
    if named[best] < MIN_CHAPTERS:
        best = min((level for level in counts if counts[level] >= MIN_CHAPTERS), default=0)
    chosen = [heading for heading in headings if heading.level <= best]
    is_title = bool(chosen) and chosen[0].level < best and counts[chosen[0].level] == 1
    return chosen[1:] if is_title else chosen


def kind_of(title: str) -> str | None:
    """The kind that a title names, "part" or "chapter", in any language; None: neither."""
    match = KIND.match(title)
    return (match[1] or "chapter").lower() if match else None


def key(title: str) -> str:
    """Equal for two mentions of one heading."""
    return letters(PAGE_NUMBER.sub("", title))


def letters(text: str) -> str:
    """Only the letters and digits, in lower case."""
    return "".join(char for char in text if char.isalnum()).casefold()


def has_letters(text: str) -> bool:
    """Whether the text has any letter or digit."""
    return any(map(str.isalnum, text))


def shorten(title: str) -> str:
    """A title cut to a length that can be shown."""
    title = " ".join(PAGE_NUMBER.sub("", title).split())
    return title if len(title) <= MAX_TITLE else title[: MAX_TITLE - 1].rstrip() + "…"


# -------------------- in plain text


def text_headings(text: str, page_starts: Sequence[int] = ()) -> Iterator[Heading]:
    """Lines that look like the heading of a chapter, alone in their paragraph or at the top of a page."""
    tops = frozenset(page_starts)
    listed_to = -1  # end of the last heading: lists of contents have no empty lines
    for match in heading_lines(text):
        start = match.start()
        begins = start in tops or start == listed_to or not line_before(text, start).strip()
        if begins and len(match["line"]) <= MAX_LINE and (heading := read_line(text, match)):
            listed_to = heading.char_end + 1
            yield heading


def heading_lines(text: str) -> Iterator[re.Match[str]]:
    """Lines that begin like a heading."""
    for start, end in bounds(text):
        for match in HEADING_LINE.finditer(text, start, end):
            if match.end() == len(text) or text[match.end()] == "\n":  # a longer line is cut at a stretch
                yield match


def read_line(text: str, match: re.Match[str]) -> Heading | None:
    """The heading in a line and perhaps the next one; None: the line begins a sentence."""
    start, end, line, rest = match.start("line"), match.end("line"), match["line"].rstrip(), match["rest"]
    kind = (match["kind"] or "").lower()
    level = 1 if kind in PARTS else 3 if kind == "section" else 2
    below, to = line_at(text, end + 1), end + 1
    if not has_letters(rest):
        is_apart = not below.strip() and bool(kind or match["chinese"])
        if is_apart:
            to += len(below) + 1
            below = line_at(text, to)
        to += len(below)
        title = below.strip()
        is_title = has_letters(title) and len(title) <= TITLE_LINE and not line_at(text, to + 1).strip()
        if is_apart and is_title:  # and no paragraph
            is_title = title[-1].isalnum() and not title[0].islower() and to < len(text)
        if is_title and not HEADING_LINE.match(below):
            return Heading(start, to, level, f"{line} {title}")
        return Heading(start, end, level, line)
    follows = REST.fullmatch(rest)
    sentence = not follows or (follows["title"] and not (follows["title"].isupper() or follows["title"] in OPENING))
    if (sentence and not match["chinese"]) or line[-1] in ",;":
        return None
    alone = not below.strip() or below.lstrip()[0].isupper() or HEADING_LINE.match(below) or SECTION.match(below)
    return Heading(start, end, level, line) if alone else None


def line_before(text: str, start: int) -> str:
    """The line before the one at `start`."""
    return text[text.rfind("\n", 0, max(0, start - 1)) + 1 : start] if start else ""


def line_at(text: str, start: int) -> str:
    """The line that begins at `start`."""
    end = text.find("\n", start)
    return text[start : len(text) if end < 0 else end]


# -------------------- in Markdown


def markdown_headings(text: str) -> Iterator[Heading]:
    """ATX and setext headings (CommonMark 0.31, sections 4.2 and 4.3)."""
    start, fenced, before, before_start = 0, "", "", 0
    in_front_matter = text.startswith("---\n")
    for line in text.splitlines(keepends=True):
        bare, begins = line.rstrip("\r\n"), start
        start += len(line)
        if in_front_matter:
            in_front_matter = begins == 0 or bare.rstrip() != "---"
            continue
        fence = FENCE.match(bare)
        if fence and (not fenced or bare.lstrip().startswith(fenced)):
            fenced, before = ("" if fenced else fence.group().strip()), ""
            continue
        if fenced:
            continue
        underline = UNDERLINE.match(bare) if before else None
        if heading := ATX.match(bare):
            yield Heading(begins, begins + len(bare), len(heading[1]), without_closing_signs(bare[heading.end() :]))
            before = ""
        elif underline:
            level = 1 if underline[1].startswith("=") else 2
            yield Heading(before_start, begins + len(bare), level, before.strip())
            before = ""
        else:
            # only a paragraph of one line; a list, a quotation or a table cannot be a heading
            alone = bool(bare.strip()) and not re.match(r"\s*(?:[-*+>|]|\d+[.)]\s)|    ", bare)
            before, before_start = (bare if alone else ""), begins


def without_closing_signs(title: str) -> str:
    """A heading without the number signs that may close it: "Notes" from "Notes ##", but "C#" stays."""
    title = title.rstrip()
    words = title.rstrip("#")
    return words.rstrip() if words.endswith((" ", "\t")) else title


# -------------------- in a list of contents


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

        Prefers the first match at the beginning of a line; else the first that ends a line as short as a heading.
        """
        for wanted in (letters(title), letters(LEADING_NUMBER.sub("", title, count=1))):
            places = list(islice(self._places(wanted, start), MAX_PLACES)) if wanted else []
            begins = [at for at in places if at == 0 or "\n" in self._text[self.chars[at - 1] : self.chars[at]]]
            if found := begins or [at for at in places if self._ends_short_line(at + len(wanted))]:
                return range(found[0], found[0] + len(wanted))
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

    def _ends_short_line(self, end: int) -> bool:
        last = self.chars[end - 1] + 1
        rest = self._text[last : self.chars[end] if end < len(self.chars) else len(self._text)]
        stops = end == len(self.chars) or "\n" in rest
        return stops and last - (self._text.rfind("\n", 0, last) + 1) <= MAX_LINE


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
