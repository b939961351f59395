"""Text of readers and models as Markdown that can contain neither HTML nor images, nor links with words of their own.

Code and mathematics stay unchanged: Markdown escapes code itself, so code must not be escaped twice. Text that this
module treats as code must be code for Markdown too, or HTML would pass. Where that is not certain the text is escaped;
at worst an entity becomes visible in code.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

# The page's delimiters of mathematics, in the order in which the chat extracts them before it parses Markdown.
MATH = (("$$", "$$"), ("\\[", "\\]"), ("\\(", "\\)"))
MARK = re.compile("\0([0-9]+)\0")  # a placeholder for mathematics; the text itself has no such character
PLACE = re.compile("\ufdd0([0-9]+)\ufdd0")  # a placeholder for inserted HTML; the text has no such character either
FENCE = re.compile(r"( {0,3})(`{3,}|~{3,})(.*)")
LINE = re.compile(r"[^\n]*\n|[^\n]+")  # Markdown's lines: other line breaks of Unicode are text
TICKS = re.compile("`+")
CODE_INDENTS = ("    ", "\t")  # of lines that may be code blocks


def literal(text: str, inserted: Mapping[int, str] | None = None) -> str:
    """Text as Markdown: tags, images and links appear as written; code, lists, emphasis and mathematics work.

    Args:
        inserted: trusted HTML, by the number of the text's characters before it. It is omitted in code and mathematics,
            and where these cannot be excluded.
    """
    inserted = inserted or {}
    places = sorted(inserted)
    text = _with_places(text.replace("\0", "\ufffd").replace("\ufdd0", "\ufffd"), places)
    text, formulas = _without_math(text.replace("\r\n", "\n").replace("\r", "\n"))
    escaped = "".join(_bare(part) if is_code else _escape_prose(part) for is_code, part in _blocks(text))
    while MARK.search(escaped):  # a later delimiter may contain the placeholder of an earlier one
        escaped = MARK.sub(lambda mark: formulas[int(mark[1])], escaped)
    return PLACE.sub(lambda place: inserted[places[int(place[1])]], escaped)


def standalone(text: str) -> str:
    """As `literal`, as a part of a file: nobody knows who reads mathematics in it, and no code block stays open."""
    text = text.replace("\ufdd0", "\ufffd").replace("\r\n", "\n").replace("\r", "\n")
    blocks = list(_blocks(text))
    escaped = "".join(part if is_code else _escape_prose(part) for is_code, part in blocks)
    if not blocks[-1][0]:
        return escaped
    fence = FENCE.match(blocks[-1][1])  # the last one is code only if it was not closed
    return f"{escaped}\n{fence[1]}{fence[2]}" if fence else escaped


def plain(text: str) -> str:
    """Text on one line for HTML inside Markdown, without any sign that Markdown interprets."""
    words = " ".join(text.split())
    return "".join(char if char.isalnum() or char == " " else f"&#{ord(char)};" for char in words)


def _with_places(text: str, places: Sequence[int]) -> str:
    pieces = [text[start:end] for start, end in pairwise([0, *places, len(text)])]
    return pieces[0] + "".join(f"\ufdd0{number}\ufdd0{piece}" for number, piece in enumerate(pieces[1:]))


def _bare(text: str) -> str:
    """Remove our placeholders."""
    return PLACE.sub("", text)


def _without_math(text: str) -> tuple[str, list[str]]:
    """The text with placeholders for mathematics, and the escaped formulas, which Markdown never parses."""
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
    """Ranges of a pair of delimiters with anything between them. Cost: one pass, even if some are not closed."""
    start = text.find(left)
    while start >= 0:
        end = text.find(right, start + len(left) + 1)
        if end < 0:
            return
        end += len(right)
        yield start, end
        start = text.find(left, end)


def _blocks(text: str) -> Iterator[tuple[bool, str]]:
    """Pieces of the text, each with whether it is a fenced code block."""
    prose: list[str] = []
    code: list[str] = []
    fence = indent = ""
    for line in LINE.findall(text):
        bare = line.rstrip(" \t\n")
        if fence and bare and not line.startswith(indent):  # a list item has ended, and its code block with it
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
    """Escape everything but code spans, paragraph by paragraph; where a span is uncertain, the paragraph has none."""
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

    Such a span may cross lines or cells of a table, so only Markdown's block structure decides.
    """
    pieces: list[tuple[bool, str]] = []
    done = 0
    while opening := TICKS.search(line, done):
        before = line[done : opening.start()]
        if (len(before) - len(before.rstrip("\\"))) % 2:  # escaped: the run begins one character later
            return None
        closing = next((one for one in TICKS.finditer(line, opening.end()) if one[0] == opening[0]), None)
        if closing is None or "|" in line[opening.end() : closing.start()]:
            return None
        pieces += [(False, before), (True, line[opening.start() : closing.end()])]
        done = closing.end()
    return [*pieces, (False, line[done:])]


def _escape(text: str) -> str:
    """Without HTML, images, links and their definitions; a bare address is still a link, with itself as its words."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("![", "!&#91;")
    return text.replace("](", "&#93;(").replace("]:", "&#93;:")
