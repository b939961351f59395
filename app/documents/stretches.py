"""A long text in stretches: what works on all of one in a single call keeps every other thread waiting.

A call of a regular expression or of `str.translate` does not let Python's lock go before it is done. Pure functions.
"""

from collections.abc import Callable, Iterator

MOST_CHARS = 1 << 18  # some 20 ms of the slowest work that is done in stretches


def bounds(text: str) -> Iterator[tuple[int, int]]:
    """Where stretches of at most MOST_CHARS begin and end: behind a line end, else behind a space, else anywhere."""
    start = 0
    while start < len(text):
        end = start + MOST_CHARS
        if end < len(text):
            end = text.rfind("\n", start, end) + 1 or text.rfind(" ", start, end) + 1 or end
        yield start, min(end, len(text))
        start = end


def by_stretches(change: Callable[[str], str], text: str) -> str:
    """A text changed stretch by stretch, for a change that looks at little more than single characters."""
    return "".join(change(text[start:end]) for start, end in bounds(text))


def num_words(text: str) -> int:
    """As many words as `text.split()` has."""
    count, inside = 0, False  # inside: the stretch before ends in the middle of a word, or between two
    for start, end in bounds(text):
        count += len(text[start:end].split()) - (inside and not text[start].isspace())
        inside = not text[end - 1].isspace()
    return count
