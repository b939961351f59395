"""The streaming cache of the draft: a few sink tokens and a recent window (StreamingLLM, arXiv 2309.17453).

RoPE positions are slots in the window, so a draft works behind a book of any length. When the window is full, its
oldest quarter is dropped and the remaining keys are rotated back.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from core.caches.base import FixedRows, KVShape, Moving
from core.config import DraftConfig
from core.ops.attention import widened
from core.ops.backend import STOCK, Backend
from core.ops.reach import Asked, attend_as

KeyShift = Callable[[Tensor, int], Tensor]  # keys [..., D] rotated for position p -> for position p + delta


class HeldWindow(NamedTuple):
    """The rows of a streaming cache, per layer [1, H_kv, rows, D]."""

    k: list[Tensor]
    v: list[Tensor]
    length: int  # conversation tokens seen


class StreamingCache:
    """Rows [0, sink) hold the first tokens, rows [sink, rows) the newest ones; a row's number is its position."""

    def __init__(self, shape: KVShape, config: DraftConfig, shift: KeyShift, *, backend: Backend = STOCK) -> None:
        self.shape, self._config, self._shift, self._backend = shape, config, shift, backend
        self.k = [shape.allocate(config.window) for _ in range(shape.num_layers)]
        self.v = [shape.allocate(config.window) for _ in range(shape.num_layers)]
        self._length = self._rows = 0
        self.moving = Moving()  # required by the protocol; these buffers are never replaced

    @property
    def length(self) -> int:
        """Conversation tokens seen; only the sink and the window are held."""
        return self._length

    @property
    def nbytes(self) -> int:
        return self._rows * self.shape.num_layers * self.shape.layer_bytes

    @property
    def link_bytes(self) -> int:
        return 0

    def fixed(self) -> FixedRows:
        return FixedRows(self.k, self.v, self._rows, attend=self._backend.attend)

    def set_aside(self) -> HeldWindow:
        """A copy of the held rows, to put back after another answer has used this cache."""
        k, v = ([rows[:, :, : self._rows].clone() for rows in kind] for kind in (self.k, self.v))
        return HeldWindow(k, v, self._length)

    def put_back(self, window: HeldWindow) -> None:
        """Hold again what was set aside."""
        self._rows, self._length = window.k[0].shape[2], window.length
        for rows, copies in ((self.k, window.k), (self.v, window.v)):
            for layer, copy in zip(rows, copies, strict=True):
                layer[:, :, : self._rows] = copy

    def unseen_spans(self, total: int) -> list[range]:
        """What to feed; if more is missing than the window keeps, forget all, feed the sink and the newest tokens."""
        sink = self._config.num_sink
        keep = (self._config.window - sink) * 3 // 4
        if total <= sink or total - self._length <= keep:
            return [range(self._length, total)]
        self.truncate(0)
        return [range(0, sink), range(max(sink, total - keep), total)]

    def begin(self, start: int, num_new: int) -> Tensor:
        """Make room by dropping the oldest window rows. Tokens between the sink and `start` may be left out."""
        sink, window = self._config.num_sink, self._config.window
        assert start == self._length or self._rows == sink, f"tokens from {start} leave a hole in the window"
        self._length = start
        excess = self._rows + num_new - window
        if excess > 0:
            self._drop(max(excess, (window - sink) // 4))
        return torch.arange(self._rows, self._rows + num_new)

    def _drop(self, count: int) -> None:
        first = self._config.num_sink
        assert first + count <= self._rows, f"dropping {count} of {self._rows - first} window rows"
        for k, v in zip(self.k, self.v, strict=True):
            moved = widened(k[:, :, first + count : self._rows], self.shape.dtype)
            k[:, :, first : self._rows - count] = self.shape.kept(self._shift(moved, -count))
            v[:, :, first : self._rows - count] = v[:, :, first + count : self._rows].clone()
        self._rows -= count

    def stage(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write k, v [1, H_kv, T, D] behind the valid rows."""
        k, v = self.shape.check(k, v)
        rows = slice(self._rows, self._rows + k.shape[2])
        self.k[layer][:, :, rows] = k
        self.v[layer][:, :, rows] = v

    def attend(self, layer: int, q: Tensor, scaling: float, asked: Asked | None = None) -> Tensor:
        """Causal attention over the rows held; a windowed layer's window counts slots."""
        end = self._rows + q.shape[2]
        k, v = self.k[layer][:, :, :end], self.v[layer][:, :, :end]
        if asked is not None:
            return attend_as(q, k, v, scaling, asked, self._backend)
        return self._backend.attend(q, k, v, scaling)

    def commit(self, num_new: int) -> None:
        self._length += num_new
        self._rows += num_new

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on; if that is before the window, forget everything."""
        dropped = self._length - length
        if dropped <= 0:
            return
        rows = self._rows - dropped
        if rows < self._config.num_sink and length != rows:  # the remaining rows would not be a prefix
            length = rows = 0
        self._length, self._rows = length, rows
