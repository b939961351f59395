"""Queries kept beside the keys: selection scores chunks with them."""

from typing import NamedTuple

import torch
from torch import Tensor

from core.caches.base import KVShape
from core.ops.graphs import MOST_ROWS, padded_rows
from core.ops.kernel_structs import QueryRows

QUERY_LOG = 128  # newest queries kept per layer and head; must exceed a query window plus the longest guess
QUERY_SAMPLE_STRIDE = 64  # every 64th query is kept permanently, for accumulated-attention scores (H2O)


class SavedQueries(NamedTuple):
    """A copy of the newest queries."""

    rings: list[Tensor]  # per layer [H, QUERY_LOG, D]
    first: int  # the oldest token whose query is in the copy


class QueryLog:
    """Queries after RoPE: the newest ones in a ring, and a sparse sample of all; none of windowed layers.

    The ring holds the queries of tokens [first, length); a rewind does not bring overwritten ones back.
    """

    def __init__(self, shape: KVShape, capacity: int, *, samples: bool) -> None:
        def allocate(rows: int) -> list[Tensor]:
            size = (shape.num_heads, rows, shape.head_dim)
            none = torch.empty(shape.num_heads, 0, shape.head_dim, dtype=shape.dtype, device=shape.device)
            full = set(shape.full_layers)
            every = range(shape.num_layers)
            return [torch.empty(size, dtype=none.dtype, device=none.device) if n in full else none for n in every]

        self._full_layers = shape.full_layers
        self._ring = allocate(QUERY_LOG)
        self.samples = samples
        # The last row takes the queries not sampled
        self._samples = allocate(-(-capacity // QUERY_SAMPLE_STRIDE) + 1 if samples else 0)
        self.first = 0

    def open(self, start: int, num_new: int) -> None:
        """Announce a pass over tokens [start, start + num_new); a recorded one writes up to the next power of two."""
        width = padded_rows(num_new) if num_new <= MOST_ROWS else num_new
        self.first = max(self.first, start + width - QUERY_LOG)

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on."""
        self.first = min(self.first, length)

    def put(self, start: int, queries: Tensor) -> None:
        """Store queries [L, H, W, D] of tokens [start, start + W), which are the newest; layers as in `full_layers`."""
        for layer, newest in zip(self._full_layers, queries, strict=True):
            ring = self._ring[layer]
            at = torch.arange(start, start + newest.shape[1], device=ring.device) % QUERY_LOG
            ring[:, at] = newest
        self.first = start

    def write(self, layer: int, start: int, q: Tensor) -> None:
        """Log q [1, H, T, D] of tokens [start, start + T)."""
        stop = start + q.shape[2]
        first = -start % QUERY_SAMPLE_STRIDE
        if first < q.shape[2] and self.samples:
            sampled = q[0, :, first::QUERY_SAMPLE_STRIDE]
            at = (start + first) // QUERY_SAMPLE_STRIDE
            self._samples[layer][:, at : at + sampled.shape[1]] = sampled
        position = max(start, stop - QUERY_LOG)
        while position < stop:  # once, or twice where the ring wraps
            slot = position % QUERY_LOG
            size = min(stop - position, QUERY_LOG - slot)
            self._ring[layer][:, slot : slot + size] = q[0, :, position - start : position - start + size]
            position += size

    def places(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Where `write_at` puts the queries of tokens at positions [T] int64 that only the device knows."""
        is_sample, spare = positions % QUERY_SAMPLE_STRIDE == 0, self._samples[self._full_layers[0]].shape[1] - 1
        return positions % QUERY_LOG, torch.where(is_sample, positions // QUERY_SAMPLE_STRIDE, spare)

    def write_at(self, layer: int, places: tuple[Tensor, Tensor], q: Tensor) -> None:
        """As `write`, at `places`; T at most QUERY_LOG."""
        self._ring[layer].index_copy_(1, places[0], q[0])
        if self.samples:
            self._samples[layer].index_copy_(1, places[1], q[0])

    def rows(self, start: int) -> QueryRows:
        """Where the kernel writes the queries of tokens from `start` on."""
        return QueryRows(self._ring, self._samples if self.samples else (), start, QUERY_SAMPLE_STRIDE)

    def saved(self, device: torch.device | None = None) -> SavedQueries:
        """A copy of the newest queries of every layer, on `device` if one is given.

        Without the sparse sample: reading a text again writes it anew, and no speculative method uses it.
        """
        return SavedQueries([ring.to(device or ring.device, copy=True) for ring in self._ring], self.first)

    def restore(self, saved: SavedQueries) -> None:
        """Restore the newest queries from a copy."""
        for ring, copy in zip(self._ring, saved.rings, strict=True):
            ring.copy_(copy)
        self.first = saved.first

    def views(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """The ring [H, QUERY_LOG, D], and the sample of the first `length` queries [H, N, D]."""
        return self._ring[layer], self._samples[layer][:, : -(-length // QUERY_SAMPLE_STRIDE)]

    def recent(self, layer: int, length: int, num_queries: int) -> Tensor:
        """Queries of the last tokens before `length`, oldest first, [H, W, D] with W <= num_queries."""
        start = min(max(self.first, length - num_queries), length)
        positions = torch.arange(start, length, device=self._ring[layer].device)
        return self._ring[layer][:, positions % QUERY_LOG]

    def sampled(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """Sampled queries before `length`, [H, N, D], and their positions [N]."""
        count = -(-length // QUERY_SAMPLE_STRIDE)
        queries = self._samples[layer][:, :count]
        return queries, torch.arange(count, device=queries.device) * QUERY_SAMPLE_STRIDE
