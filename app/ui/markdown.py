"""Text of readers and models as Markdown in which no HTML and no image can be.

Code and mathematics come out as they were written: Markdown escapes code itself, so there nothing may be escaped twice.
What is taken for code here must be code for Markdown too, or HTML would slip through; where that is not certain, the
text is escaped, and the worst that happens is a visible entity in a piece of code.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

# The page's delimiters of mathematics, in the order in which the chat takes them out before it reads Markdown.
MATH = (("$$", "$$"), ("\\[", "\\]"), ("\\(", "\\)"))
MARK = re.compile("\0([0-9]+)\0")  # stands for mathematics; the text itself has no such character
PLACE = re.compile("\ufdd0([0-9]+)\ufdd0")  # where something of ours comes in; nor has it this one
FENCE = re.compile(r"( {0,3})(`{3,}|~{3,})(.*)")
LINE = re.compile(r"[^\n]*\n|[^\n]+")  # Markdown's lines: what else breaks a line in Unicode is text
TICKS = re.compile("`+")
CODE_INDENTS = ("    ", "\t")  # of lines that may be code


def literal(text: str, inserted: Mapping[int, str] | None = None) -> str:
    """Text as Markdown: tags and image marks show as they are written; code, lists, emphasis, mathematics work.

    Args:
        inserted: HTML of ours, by the number of the text's characters that stand before it. It is left out in code and
            mathematics, and where it is not certain that there is none.
    """
    inserted = inserted or {}
    places = sorted(inserted)
    text = _with_places(text.replace("\0", "\ufffd").replace("\ufdd0", "\ufffd"), places)
    text, formulas = _without_math(text.replace("\r\n", "\n").replace("\r", "\n"))
    escaped = "".join(_bare(part) if is_code else _escape_prose(part) for is_code, part in _blocks(text))
    while MARK.search(escaped):  # one of the later delimiters may hold one of the earlier
        escaped = MARK.sub(lambda mark: formulas[int(mark[1])], escaped)
    return PLACE.sub(lambda place: inserted[places[int(place[1])]], escaped)


def plain(text: str) -> str:
    """Text for HTML inside of Markdown, on one line, in which Markdown finds no sign of its own."""
    words = " ".join(text.split())
    return "".join(char if char.isalnum() or char == " " else f"&#{ord(char)};" for char in words)


def _with_places(text: str, places: Sequence[int]) -> str:
    pieces = [text[start:end] for start, end in pairwise([0, *places, len(text)])]
    return pieces[0] + "".join(f"\ufdd0{number}\ufdd0{piece}" for number, piece in enumerate(pieces[1:]))


def _bare(text: str) -> str:
    """Without anything of ours."""
    return PLACE.sub("", text)


def _without_math(text: str) -> tuple[str, list[str]]:
    """The text with marks in place of mathematics, and what they stand for, escaped: it is never read as Markdown."""
    formulas: list[str] = []

    for left, right in MATH:
        pieces: list[str] = []
        done = 0
        for start, end in _enclosed(text, left, right):
            pieces += [text[done:start], f"\0{len(formulas)}\0"]
            formulas.append(_escape(_bare(text[start:end])))
            done = end
        text = "".join([*pieces, text[done:]])
    return text, formulas


def _enclosed(text: str, left: str, right: str) -> Iterator[tuple[int, int]]:
    """Where a pair of delimiters with anything between them stands. Cost: one pass, closed or not."""
    start = text.find(left)
    while start >= 0:
        end = text.find(right, start + len(left) + 1)
        if end < 0:
            return
        end += len(right)
        yield start, end
        start = text.find(left, end)


def _blocks(text: str) -> Iterator[tuple[bool, str]]:
    """Pieces of the text, each with whether it is a fenced block."""
    prose: list[str] = []
    code: list[str] = []
    fence = indent = ""
    for line in LINE.findall(text):
        bare = line.rstrip(" \t\n")
        if fence and bare and not line.startswith(indent):  # an item of a list has ended, and its block with it
            yield True, "".join(code)
            fence = ""
        found = FENCE.fullmatch(bare)
        if fence:
            code.append(line)
            if found and found[2].startswith(fence) and not found[3]:
                yield True, "".join(code)
                fence = ""
        elif found and not (found[2][0] == "`" and "`" in found[3]):
            yield False, "".join(prose)
            prose, code, indent, fence = [], [line], found[1], found[2]
        else:
            prose.append(line)
    yield (True, "".join(code)) if fence else (False, "".join(prose))


def _escape_prose(text: str) -> str:
    """Everything but fenced blocks: code spans stay in paragraphs where all of them are sure to be some."""
    return "".join(map(_escape_paragraph, re.split(r"(\n[ \t]*\n)", text)))


def _escape_paragraph(text: str) -> str:
    escaped: list[str] = []
    for line in LINE.findall(text):
        pieces = _spans(_bare(line) if line.startswith(CODE_INDENTS) else line)
        if pieces is None:
            return _escape(_bare(text))
        escaped += [_bare(piece) if is_code else _escape(piece) for is_code, piece in pieces]
    return "".join(escaped)


def _spans(line: str) -> list[tuple[bool, str]] | None:
    """Pieces of a line, each with whether it is a code span; None where a backtick has no partner in the line.

    Then a span may begin in one line and end in another, or in another cell of a table, and blocks decide which.
    """
    pieces: list[tuple[bool, str]] = []
    done = 0
    while opening := TICKS.search(line, done):
        before = line[done : opening.start()]
        if (len(before) - len(before.rstrip("\\"))) % 2:  # escaped: the run begins one further
            return None
        closing = next((one for one in TICKS.finditer(line, opening.end()) if one[0] == opening[0]), None)
        if closing is None or "|" in line[opening.end() : closing.start()]:
            return None
        pieces += [(False, before), (True, line[opening.start() : closing.end()])]
        done = closing.end()
    return [*pieces, (False, line[done:])]


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("![", "!&#91;")
