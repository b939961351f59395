"""CSV and TSV files: a line for each row, with borders between the cells."""

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import BinaryIO

from app.documents.archive import MAX_TOTAL_BYTES, Refused, read_most
from app.documents.charset import decode
from app.documents.document import CHARS_PER_PAGE
from app.documents.elements import Text
from app.documents.messages import Message
from app.documents.prose import CELL_BORDER

SEPARATORS = (",", ";", "\t", "|")
SAMPLE_CHARS, SAMPLE_ROWS = 100_000, 100
LONGEST_CELL = 1_000_000  # characters
LONGEST_HEAD = 300  # characters; a longer first row is not repeated


def read(stream: BinaryIO) -> Iterator[Message]:
    """The messages of a file."""
    decoded = decode(read_most(stream, MAX_TOTAL_BYTES))
    if decoded is None:
        raise Refused("binary")
    csv.field_size_limit(LONGEST_CELL)
    raw = decoded.text.removeprefix("\ufeff")
    hint, line, rest = raw.partition("\n")
    named = hint[4:5].strip("\r") if hint.lower().startswith("sep=") else ""  # as Excel writes and reads
    text = rest if named and line else raw
    between = named or separator(text)
    quote = '"' if between != "\t" or is_quoted(text) else None
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=between, quotechar=quote)
    table = Text()
    table.lines.verbatim("\n".join(written(rows)))
    table.warning = decoded.warning or ""
    yield from table.messages()


def is_quoted(text: str) -> bool:
    """Whether quotation marks stand around cells between tabs: in most such files they are letters of the text."""
    try:
        for _ in csv.reader(io.StringIO(text, newline=""), delimiter="\t", strict=True):
            pass
    except csv.Error:
        return False
    return True


def separator(text: str) -> str:
    """The character between the cells: the one that gives the most rows of the same number of cells."""
    return max(SEPARATORS, key=lambda char: agreement(text[:SAMPLE_CHARS], char))


def agreement(sample: str, delimiter: str) -> tuple[int, int]:
    """How many of the first rows have the most common number of cells, above one, and that number."""
    counts: dict[int, int] = {}
    try:
        for row in islice(csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter), SAMPLE_ROWS):
            counts[len(row)] = counts.get(len(row), 0) + (len(row) > 1)
    except csv.Error:
        return (0, 0)
    best = max(counts, key=lambda count: (counts[count], count), default=0)
    return counts.get(best, 0), best


def written(rows: Iterator[list[str]]) -> Iterator[str]:
    """One line for each row; the head of the table again at the top of each page."""
    head, num_chars = "", 0
    for number, row in enumerate(rows):
        cells = [" ".join(cell.split()) for cell in row]
        line = CELL_BORDER.join(cells).rstrip() if any(cells) else ""
        if number == 0 and is_head(row):
            head = line
        elif head and num_chars > CHARS_PER_PAGE:
            yield from ("", head)
            num_chars = 0
        if line:
            yield line
            num_chars += len(line) + 1


def is_head(row: Sequence[str]) -> bool:
    """Whether a first row names the columns: short, all different, no numbers."""
    names = [cell.strip() for cell in row]
    words = all(name and not any(char.isdigit() for char in name[:1]) for name in names)
    return len(names) > 1 and words and len(set(names)) == len(names) and sum(map(len, names)) <= LONGEST_HEAD
