"""The keys and values of one windowed layer: its newest rows, on the device.

It keeps more than the window, so that rejected guesses and whole answers can be forgotten.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from core.caches.base import KVShape, LayerStore
from core.caches.running_state import Marks
from core.caches.votes import Counting
from core.errors import UnsupportedModel
from core.ops.backend import Backend
from core.ops.reach import Asked, Reach, attend_as

FORGETTABLE = 2048  # tokens that can be forgotten at any time: a long answer
SHORT = 192  # tokens that a cache of guesses must be able to forget


class WindowRows(NamedTuple):
    """A copy of a windowed layer's rows of tokens [first, first + n), each [1, H_kv, n, D]."""

    first: int
    k: Tensor
    v: Tensor


def window_rows(reach: Reach, forgettable: int) -> int:
    """Rows of a windowed layer that have room: its reach, those to forget, and as many again before rows move."""
    return reach.size + 2 * forgettable


class WindowLayer(LayerStore):
    """Rows of tokens [first, end) in place; the oldest are dropped when room is needed."""

    def __init__(self, shape: KVShape, capacity: int, reach: Reach, backend: Backend, forgettable: int) -> None:
        self.reach, self._backend, self._forgettable = reach, backend, forgettable
        self._room = min(capacity, window_rows(reach, forgettable))
        self._k, self._v = shape.allocate(self._room), shape.allocate(self._room)
        self._first = self._end = 0
        self._new: tuple[Tensor, Tensor] | None = None  # of a pass that has no room, until it is committed
        self._marks = Marks[WindowRows]()

    @property
    def first(self) -> int:
        """The oldest token whose row is held."""
        return self._first

    def reaches_back_to(self, length: int) -> bool:
        """Whether `truncate(length)` would leave all rows that later tokens attend to."""
        return self._first <= self.reach.first(length)

    def stage(self, start: int, k: Tensor, v: Tensor) -> None:
        """Write behind the held rows; of a pass without room, keep a reference."""
        count, self._end, self._new = k.shape[2], start, None
        if start + count - self._first > self._room:
            self._drop(self._oldest(start))
        if start + count - self._first > self._room:
            self._new = k, v
            return
        self._write(start, k, v)

    def _oldest(self, length: int) -> int:
        """The oldest token to keep of the first `length`, so that some can be forgotten."""
        return max(self._first, self.reach.first(max(0, length - self._forgettable)))

    def _write(self, start: int, k: Tensor, v: Tensor) -> None:
        at = slice(start - self._first, start - self._first + k.shape[2])
        self._k[:, :, at] = k
        self._v[:, :, at] = v

    def _drop(self, first: int) -> None:
        """Forget tokens before `first`."""
        moved = slice(first - self._first, max(first, self._end) - self._first)
        for rows in (self._k, self._v):
            remaining = rows[:, :, moved].clone()
            rows[:, :, : remaining.shape[2]] = remaining
        self._first = first

    def attend(
        self, start: int, q: Tensor, scaling: float, asked: Asked | None = None, counting: Counting | None = None
    ) -> Tensor:
        """Attention within reach, of which nothing is counted.

        Raises:
            UnsupportedModel: the layer asks for another reach than the one that rows are kept for.
        """
        if asked is None or asked.reach != self.reach:
            raise UnsupportedModel(
                f"A layer of this model asks attention for {asked and asked.reach}, config.json says {self.reach}.",
                hint="Choose another model.",
            )
        oldest = self.reach.first(start)
        k, v = self._held(oldest, start) if self._new else self._held(oldest, start + q.shape[2])
        if self._new:
            k, v = torch.cat((k, self._new[0]), 2), torch.cat((v, self._new[1]), 2)
        return attend_as(q, k, v, scaling, asked, self._backend, oldest)

    def _held(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        assert start >= self._first, f"rows from {start} are wanted, {self._first} is the first one held"
        at = slice(start - self._first, stop - self._first)
        return self._k[:, :, at], self._v[:, :, at]

    def commit(self, length: int) -> None:
        """Rows before `length` become valid; a long pass leaves its newest ones."""
        if self._new is not None:
            k, v = self._new
            start, self._new = self._end, None
            first = self._oldest(length)
            if first < start:
                self._drop(first)
            else:
                self._first = first
            skipped = max(0, first - start)
            self._write(start + skipped, k[:, :, skipped:], v[:, :, skipped:])
        self._end = length

    def remember(self, length: int, most: int) -> None:
        """Keep what later tokens attend to behind `length` in host memory, and of at most so many lengths."""
        self._marks.keep(length, self.saved(self.reach.first(length), torch.device("cpu")), most)

    def rewindable(self, length: int) -> int:
        """The length that can be gone back to: at most `length`."""
        return length if self.reaches_back_to(length) else self._marks.before(length)

    def truncate(self, length: int) -> None:
        """Rows from `length` on become scratch; rows that were dropped come back where they are remembered."""
        known = None if self.reaches_back_to(length) else self._marks.get(length)
        self._end, self._new = min(self._end, length), None
        if length == 0:
            self._first = 0
        self._marks.truncate(length)
        if known is not None:
            self.put_back(known)

    def saved(self, start: int, device: torch.device | None = None) -> WindowRows:
        """A copy of the rows from token `start` on, or from the oldest one held; here unless on another device."""
        first = min(max(start, self._first), self._end)
        k, v = (rows.to(device or rows.device, copy=True) for rows in self._held(first, self._end))
        return WindowRows(first, k, v)

    def put_back(self, rows: WindowRows) -> None:
        """Hold a copy's rows behind those that are held, or, if they do not follow, instead of them."""
        if not self._first <= rows.first <= self._end:
            self._first = self._end = rows.first
        self.stage(rows.first, rows.k.to(self._k.device), rows.v.to(self._v.device))
        self.commit(rows.first + rows.k.shape[2])

    def adopt(self, other: "WindowLayer", length: int) -> None:
        """Copy another store's rows of the first `length` tokens, as far as there is room."""
        first = max(other.first, self.reach.first(max(0, length - self._forgettable)))
        self._first, self._end, self._new = first, length, None
        self._write(first, *other._held(first, length))

    def refresh(self, other: "WindowLayer", start: int, stop: int) -> None:
        """Replace held rows of tokens [start, stop) by those of another store of this layer."""
        start = max(start, self._first, other.first)
        if start < stop:
            self._write(start, *other._held(start, stop))

    def rows(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        k, v = self._held(start, stop)
        return k[0], v[0]
