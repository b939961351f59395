"""Splits long texts into stretches, because one call on the whole text would block every other thread.

A call of a regular expression or of `str.translate` holds Python's lock until it returns. Pure functions.
"""

from collections.abc import Callable, Iterator

MOST_CHARS = 1 << 18  # some 20 ms of the slowest work on stretches


def bounds(text: str) -> Iterator[tuple[int, int]]:
    """Bounds of stretches of at most MOST_CHARS: cut after a line end, else after a space, else anywhere."""
    start = 0
    while start < len(text):
        end = start + MOST_CHARS
        if end < len(text):
            end = text.rfind("\n", start, end) + 1 or text.rfind(" ", start, end) + 1 or end
        yield start, min(end, len(text))
        start = end


def by_stretches(change: Callable[[str], str], text: str) -> str:
    """Apply a change to each stretch, for changes that depend on little more than single characters."""
    return "".join(change(text[start:end]) for start, end in bounds(text))


def num_words(text: str) -> int:
    """The number of words in `text.split()`."""
    count, inside = 0, False  # inside: the previous stretch ended in the middle of a word, or between two
    for start, end in bounds(text):
        count += len(text[start:end].split()) - (inside and not text[start].isspace())
        inside = not text[end - 1].isspace()
    return count
