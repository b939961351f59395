"""Text of readers and models as Markdown in a file: neither HTML nor images, nor links with words of their own.

Code stays unchanged: Markdown escapes code itself, so code must not be escaped twice. Text that this module treats as
code must be code for Markdown too, or HTML would pass. Where that is not certain the text is escaped; at worst an
entity becomes visible in code. The page itself renders Markdown with HTML off (`assets/static/js/markdown.js`).
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

PLACE = "\ufdd0"  # around the number of what is inserted; no text has this character, which stands for none
FENCE = re.compile(r"( {0,3})(`{3,}|~{3,})(.*)")
LINE = re.compile(r"[^\n]*\n|[^\n]+")  # Markdown's lines: other line breaks of Unicode are text
TICKS = re.compile("`+")


def standalone(text: str) -> str:
    """Text as a part of a file: tags, images and links appear as written, and no code block stays open."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    blocks = list(_blocks(text))
    escaped = "".join(part if is_code else _escape_prose(part) for is_code, part in blocks)
    if not blocks[-1][0]:
        return escaped
    fence = FENCE.match(blocks[-1][1])  # the last one is code only if it was not closed
    return f"{escaped}\n{fence[1]}{fence[2]}" if fence else escaped


def with_places(text: str, places: Sequence[int]) -> str:
    """The text with a mark at each of these characters, in order, for what the page inserts there."""
    pieces = [text[start:end].replace(PLACE, "\ufffd") for start, end in pairwise([0, *places, len(text)])]
    return pieces[0] + "".join(f"{PLACE}{number}{PLACE}{piece}" for number, piece in enumerate(pieces[1:]))


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
        pieces = _spans(line)
        if pieces is None:
            return _escape(text)
        escaped += [piece if is_code else _escape(piece) for is_code, piece in pieces]
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
