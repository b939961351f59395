"""A token sequence that changes only at its end: committed tokens and a short speculative tail.

Nested speculation appends and drops a few tokens thousands of times, so the book's ids are not copied.
"""

from collections.abc import Sequence


class Context:
    """Immutable view: `base` (shared, must not change meanwhile) followed by `tail`."""

    __slots__ = ("_base", "_tail")

    def __init__(self, base: Sequence[int], tail: tuple[int, ...] = ()) -> None:
        self._base, self._tail = base, tail

    def __len__(self) -> int:
        return len(self._base) + len(self._tail)

    def extended(self, more: Sequence[int]) -> "Context":
        """A longer context; copies the tail, not the base."""
        return Context(self._base, (*self._tail, *more))

    def span(self, start: int, stop: int) -> list[int]:
        """Tokens [start, stop)."""
        size = len(self._base)
        if start >= size:
            return list(self._tail[start - size : stop - size])
        return [*self._base[start : min(stop, size)], *self._tail[: max(stop - size, 0)]]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of leading tokens that a and b share. Cost: O(n) comparisons of slices, binary search over them."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # slices compare at C speed, unlike a Python loop over 128K ids
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
