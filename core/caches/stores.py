"""Where the keys and values of one layer lie: on the device, or in host memory with their newest rows on the device.

A store holds rows [0, length) and scratch behind them; it knows nothing of other layers, of landmarks or of who asks.
Layers are independent, so a cache may keep some resident and offload the rest (DESIGN section 5).
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from core.caches.base import KVShape
from core.ops.attention import Partial, causal_partial, merge, partial
from core.ops.backend import Backend
from core.ops.transfer import Conveyor, host_tensor, to_device

# Newest rows that stay on the device when a block goes to the host: more than a round's guesses, so that forgetting
# rejected ones never reaches back into a block.
KEPT_ROWS = 128


def by_chunk(rows: Tensor, chunk_size: int) -> Tensor:
    """A view of rows [H_kv, S, D] as complete chunks, [H_kv, S // chunk_size, chunk_size * D]: one long row each."""
    heads, size, dim = rows.shape
    complete = size // chunk_size
    return rows[:, : complete * chunk_size].view(heads, complete, chunk_size * dim)


class LayerStore(Protocol):
    """Keys and values of one layer."""

    def pieces(self) -> Sequence[Tensor]:
        """What a pass has to bring from the host, in order."""

    def stage(self, start: int, k: Tensor, v: Tensor) -> None:
        """Write k, v [1, H_kv, T, D] as rows [start, start + T); rows before are valid."""

    def attend(self, start: int, q: Tensor, scaling: float) -> Tensor:
        """Causal attention of q [1, H, T, D], whose rows begin at `start`, to all rows before them and themselves."""

    def commit(self, length: int) -> None:
        """Rows [0, length) are valid from here on; the oldest may move."""

    def truncate(self, length: int) -> None:
        """Rows from `length` on are scratch."""

    def rows(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of rows [start, stop) on the device, each [H_kv, stop - start, D]."""

    def gather(self, heads: Tensor, chunks: Tensor, chunk_size: int) -> tuple[Tensor, Tensor]:
        """Copies of chosen chunks on the device: heads, chunks [N] int64 -> k, v [N, chunk_size * D]."""


class ResidentLayer:
    """Everything on the device, in place."""

    def __init__(self, shape: KVShape, capacity: int, backend: Backend) -> None:
        self._backend = backend
        self._k, self._v = shape.allocate(capacity), shape.allocate(capacity)  # each [1, H_kv, capacity, D]

    @property
    def buffers(self) -> tuple[Tensor, Tensor]:
        """Keys and values as they lie, each [1, H_kv, capacity, D]."""
        return self._k, self._v

    def pieces(self) -> Sequence[Tensor]:
        """Nothing."""
        return ()

    def stage(self, start: int, k: Tensor, v: Tensor) -> None:
        """Write behind the valid rows."""
        rows = slice(start, start + k.shape[2])
        self._k[:, :, rows] = k
        self._v[:, :, rows] = v

    def attend(self, start: int, q: Tensor, scaling: float) -> Tensor:
        """Through the backend."""
        end = start + q.shape[2]
        return self._backend.attend(q, self._k[:, :, :end], self._v[:, :, :end], scaling)

    def commit(self, length: int) -> None:
        """Nothing moves."""

    def truncate(self, length: int) -> None:
        """Nothing moves."""

    def rows(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Views."""
        return self._k[0, :, start:stop], self._v[0, :, start:stop]

    def gather(self, heads: Tensor, chunks: Tensor, chunk_size: int) -> tuple[Tensor, Tensor]:
        """Copies."""
        k, v = (by_chunk(x[0], chunk_size)[heads, chunks] for x in (self._k, self._v))
        return k, v


class OffloadedLayer:
    """Complete blocks of rows in host memory, the newest rows on the device.

    A pass brings every block once, attends to it while the next one is on its way, and merges by log-sum-exp with the
    rows on the device. A block is written to the host once, beside computing, when enough rows stand behind it. Only
    complete blocks cross the link, so what crosses is [0, length), never the capacity.

    Host memory: capacity rows. Device memory: block_rows + KEPT_ROWS + most_new rows.
    """

    def __init__(
        self, shape: KVShape, capacity: int, conveyor: Conveyor, *, block_rows: int, most_new: int, chunk_size: int
    ) -> None:
        assert block_rows % chunk_size == 0, f"blocks of {block_rows} rows cut chunks of {chunk_size}"
        self._shape, self._conveyor, self._block, self._most_new = shape, conveyor, block_rows, most_new
        blocks = -(-capacity // block_rows)
        size = (blocks, *piece_shape(shape, block_rows))
        self._host = host_tensor(size, shape.dtype, shape.device)  # [blocks, 2, H_kv, block_rows, D]
        tail = block_rows + KEPT_ROWS + most_new
        self._k, self._v = shape.allocate(tail), shape.allocate(tail)  # rows [offloaded, ...)
        self._offloaded = 0  # rows in host memory; a multiple of block_rows

    def pieces(self) -> Sequence[Tensor]:
        """Every block that holds rows."""
        return list(self._host[: self._offloaded // self._block])

    def stage(self, start: int, k: Tensor, v: Tensor) -> None:
        """Write behind the rows on the device."""
        at, count = start - self._offloaded, k.shape[2]
        assert count <= self._most_new, f"{count} new rows in a pass, room for {self._most_new}"
        self._k[:, :, at : at + count] = k
        self._v[:, :, at : at + count] = v

    def attend(self, start: int, q: Tensor, scaling: float) -> Tensor:
        """Block by block as they arrive, then the rows on the device."""
        at, end = start - self._offloaded, start - self._offloaded + q.shape[2]
        found = causal_partial(q, self._k[:, :, at:end], self._v[:, :, at:end], scaling)
        found = Partial(found.out.float(), found.lse)
        if at:
            found = _added(found, partial(q, self._k[:, :, :at], self._v[:, :, :at], scaling))
        for _ in range(self._offloaded // self._block):
            k, v = self._conveyor.take()
            found = _added(found, partial(q, k[None], v[None], scaling))
            self._conveyor.release()
        return found.out.to(q.dtype)

    def commit(self, length: int) -> None:
        """Blocks that are complete, with enough rows behind them, go to the host."""
        while length - self._offloaded >= self._block + KEPT_ROWS:
            block = torch.stack((self._k[0, :, : self._block], self._v[0, :, : self._block]))
            self._conveyor.store(block, self._host[self._offloaded // self._block])
            left = length - self._offloaded - self._block
            for rows in (self._k, self._v):
                rows[:, :, :left] = rows[:, :, self._block : self._block + left].clone()
            self._offloaded += self._block

    def truncate(self, length: int) -> None:
        """A block that is cut comes back to the device."""
        if length >= self._offloaded:
            return
        number, left = divmod(length, self._block)
        self._conveyor.settle()
        k, v = to_device(self._host[number, :, :, :left], self._shape.device)
        self._k[0, :, :left], self._v[0, :, :left] = k, v
        self._offloaded = number * self._block

    def rows(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Copies of what lies on the host, before what lies on the device."""
        at = self._offloaded
        newest = slice(max(start, at) - at, max(stop - at, 0))
        k, v = self._k[0, :, newest], self._v[0, :, newest]
        if start >= at:
            return k, v
        self._conveyor.settle()
        first, last = start // self._block, -(-min(stop, at) // self._block)
        blocks = self._host[first:last].permute(1, 2, 0, 3, 4).flatten(2, 3)  # [2, H_kv, S, D]
        offset = first * self._block
        old = to_device(blocks[:, :, start - offset : min(stop, at) - offset], self._shape.device)
        return torch.cat((old[0], k), 1), torch.cat((old[1], v), 1)

    def gather(self, heads: Tensor, chunks: Tensor, chunk_size: int) -> tuple[Tensor, Tensor]:
        """Chosen by the processor where they lie on the host."""
        per_block, dim = self._block // chunk_size, self._shape.head_dim
        on_host = chunks < self._offloaded // chunk_size
        k, v = self._k.new_empty(2, len(chunks), chunk_size * dim)
        if bool(on_host.any()):
            self._conveyor.settle()
            head, chunk = heads[on_host].cpu(), chunks[on_host].cpu()
            stored = self._host.view(-1, 2, self._shape.num_kv_heads, per_block, chunk_size * dim)
            for kind, rows in enumerate((k, v)):
                found = stored[chunk // per_block, kind, head, chunk % per_block]
                rows[on_host] = to_device(found, self._shape.device)
        here = ~on_host
        own = chunks[here] - self._offloaded // chunk_size
        for tail, rows in ((self._k, k), (self._v, v)):
            rows[here] = by_chunk(tail[0], chunk_size)[heads[here], own]
        return k, v


def piece_shape(shape: KVShape, block_rows: int) -> tuple[int, int, int, int]:
    """A block of one layer: [2, H_kv, block_rows, D], keys before values."""
    return 2, shape.num_kv_heads, block_rows, shape.head_dim


def _added(found: Partial, part: Partial) -> Partial:
    """The union of two disjoint parts; kept in float32, as many are added."""
    lse = torch.logaddexp(found.lse, part.lse)
    out = merge(found, Partial(part.out.float(), part.lse))
    return Partial(out, lse)
