"""The full cache on one device: every key and value of the conversation, in place.

Beside the keys it keeps what selection needs, written as a side product of each pass: landmarks (the mean key of each
complete chunk) and a log of queries. It deliberately does not know who selects, or why.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from core.caches.base import KVShape
from core.errors import ContextTooSmall
from core.ops.backend import STOCK, Backend

QUERY_LOG = 128  # newest queries kept per layer and head; must exceed a query window plus the longest guess
QUERY_SAMPLE_STRIDE = 64  # every 64th query is kept for good, for accumulated-attention scores (H2O)


class FullCache:
    """Keys and values of one conversation. Rows [0, length) are valid, rows beyond are scratch.

    Memory: capacity x bytes_per_token, touched as it fills; landmarks 1 / (2 chunk_size) of it, query samples 1/128 of
    it for MHA.
    """

    def __init__(
        self,
        shape: KVShape,
        capacity: int,
        chunk_size: int,
        *,
        possible: int | None = None,
        backend: Backend = STOCK,
    ) -> None:
        self.shape, self.capacity, self.chunk_size, self.backend = shape, capacity, chunk_size, backend
        self._possible = possible or capacity
        self._length = 0
        self.k = [shape.allocate(capacity) for _ in range(shape.num_layers)]  # each [1, H_kv, capacity, D]
        self.v = [shape.allocate(capacity) for _ in range(shape.num_layers)]
        chunks = capacity // chunk_size
        self._landmarks = [shape.allocate(chunks)[0] for _ in range(shape.num_layers)]  # each [H_kv, C, D]
        self._num_landmarks = 0
        self._queries = QueryLog(shape, capacity)

    @property
    def length(self) -> int:
        """Conversation tokens seen."""
        return self._length

    @property
    def nbytes(self) -> int:
        """Bytes read by one pass."""
        return self._length * self.shape.bytes_per_token

    def missing(self, total: int) -> list[range]:
        """Everything behind the prefix that was seen."""
        return [range(self._length, total)]

    def begin(self, start: int, num_new: int) -> Tensor:
        """Check that the tokens follow and fit; positions are plain indices."""
        assert start == self._length, f"tokens from {start} do not follow a cache of length {self._length}"
        if start + num_new > self.capacity:
            raise ContextTooSmall(start + num_new, self.capacity, possible=self._possible)
        return torch.arange(start, start + num_new, device=self.shape.device)

    def stage(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write k, v [1, H_kv, T, D] behind the valid rows."""
        rows = slice(self._length, self._length + k.shape[2])
        self.k[layer][:, :, rows] = k
        self.v[layer][:, :, rows] = v

    def attend(self, layer: int, q: Tensor, scaling: float) -> Tensor:
        """Exact causal attention over everything; also logs the queries."""
        self._queries.write(layer, self._length, q)
        end = self._length + q.shape[2]
        return self.backend.attend(q, self.k[layer][:, :, :end], self.v[layer][:, :, :end], scaling)

    def commit(self, num_new: int) -> None:
        """Count the staged tokens and bring the landmarks up to date."""
        self._length += num_new
        first, last = self._num_landmarks, self._length // self.chunk_size
        if last == first:
            return
        rows = slice(first * self.chunk_size, last * self.chunk_size)
        for k, landmarks in zip(self.k, self._landmarks, strict=True):
            chunks = k[0, :, rows].reshape(-1, last - first, self.chunk_size, self.shape.head_dim)
            torch.mean(chunks, 2, out=landmarks[:, first:last])
        self._num_landmarks = last

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on: O(1), moves nothing."""
        self._length = min(self._length, length)
        self._num_landmarks = min(self._num_landmarks, self._length // self.chunk_size)

    def detach(self, start: int) -> "Tail":
        """Take out what was seen from `start` on, so that another continuation can stand there; see `attach`."""
        rows = [self.rows(layer, start, self._length) for layer in range(self.shape.num_layers)]
        tail = Tail(start, [(k.clone(), v.clone()) for k, v in rows], self._queries.saved())
        self.truncate(start)
        return tail

    def attach(self, tail: "Tail") -> None:
        """Put a tail back behind the tokens that it was taken from."""
        assert self._length == tail.start, f"a tail from {tail.start} does not follow a cache of length {self._length}"
        for layer, (k, v) in enumerate(tail.rows):
            self.stage(layer, k[None], v[None])
        self.commit(tail.rows[0][0].shape[1])
        self._queries.restore(tail.queries)

    def landmarks(self, layer: int, num_chunks: int) -> Tensor:
        """Mean keys of the first complete chunks, [H_kv, num_chunks, D]."""
        assert num_chunks <= self._num_landmarks, f"{num_chunks} of {self._num_landmarks} landmarks"
        return self._landmarks[layer][:, :num_chunks]

    def recent_queries(self, layer: int, num_queries: int) -> Tensor:
        """The newest queries of committed tokens, [H, W, D] with W <= num_queries."""
        return self._queries.recent(layer, self._length, num_queries)

    def sampled_queries(self, layer: int) -> tuple[Tensor, Tensor]:
        """Every 64th query so far, [H, N, D], and the positions they stand at, [N] int64."""
        return self._queries.sampled(layer, self._length)

    def keys(self, layer: int, length: int) -> Tensor:
        """The first `length` keys of a layer, [H_kv, length, D]. Cost: none here; a view."""
        return self.k[layer][0, :, :length]

    def rows(self, layer: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of tokens [start, stop), each [H_kv, stop - start, D]."""
        return self.k[layer][0, :, start:stop], self.v[layer][0, :, start:stop]

    def gather(self, layer: int, heads: Tensor, chunks: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of chosen chunks: heads, chunks [N] int64 -> k, v [N, chunk_size * D]."""
        k, v = (by_chunk(x[layer][0], self.chunk_size) for x in (self.k, self.v))
        return k[heads, chunks], v[heads, chunks]


class Tail(NamedTuple):
    """The end of a conversation, put aside."""

    start: int
    rows: list[tuple[Tensor, Tensor]]  # per layer k, v: [H_kv, T, D]
    queries: list[Tensor]


def by_chunk(rows: Tensor, chunk_size: int) -> Tensor:
    """A view of rows [H_kv, S, D] as complete chunks, [H_kv, S // chunk_size, chunk_size * D]: one long row each."""
    heads, size, dim = rows.shape
    complete = size // chunk_size
    return rows[:, : complete * chunk_size].view(heads, complete, chunk_size * dim)


class QueryLog:
    """Queries as they were asked, after RoPE: the newest ones in a ring, and a sparse sample of all."""

    def __init__(self, shape: KVShape, capacity: int) -> None:
        def allocate(rows: int) -> list[Tensor]:
            size = (shape.num_heads, rows, shape.head_dim)
            return [torch.empty(size, dtype=shape.dtype, device=shape.device) for _ in range(shape.num_layers)]

        self._ring = allocate(QUERY_LOG)
        self._samples = allocate(-(-capacity // QUERY_SAMPLE_STRIDE))

    def write(self, layer: int, start: int, q: Tensor) -> None:
        """Log q [1, H, T, D] of tokens [start, start + T)."""
        stop = start + q.shape[2]
        first = -start % QUERY_SAMPLE_STRIDE
        if first < q.shape[2]:
            sampled = q[0, :, first::QUERY_SAMPLE_STRIDE]
            at = (start + first) // QUERY_SAMPLE_STRIDE
            self._samples[layer][:, at : at + sampled.shape[1]] = sampled
        position = max(start, stop - QUERY_LOG)
        while position < stop:  # once, or twice where the ring wraps
            slot = position % QUERY_LOG
            size = min(stop - position, QUERY_LOG - slot)
            self._ring[layer][:, slot : slot + size] = q[0, :, position - start : position - start + size]
            position += size

    def saved(self) -> list[Tensor]:
        """A copy of the newest queries of every layer. The sparse sample is written anew as a text is read again, and
        serves no method that speculates."""
        return [ring.clone() for ring in self._ring]

    def restore(self, saved: list[Tensor]) -> None:
        """The newest queries as they were when saved."""
        for ring, copy in zip(self._ring, saved, strict=True):
            ring.copy_(copy)

    def recent(self, layer: int, length: int, num_queries: int) -> Tensor:
        """Queries of the last tokens before `length`, [H, min(num_queries, length), D], oldest first."""
        positions = torch.arange(max(0, length - num_queries), length, device=self._ring[layer].device)
        return self._ring[layer][:, positions % QUERY_LOG]

    def sampled(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """Sampled queries before `length`, [H, N, D], and their positions [N]."""
        count = -(-length // QUERY_SAMPLE_STRIDE)
        queries = self._samples[layer][:, :count]
        return queries, torch.arange(count, device=queries.device) * QUERY_SAMPLE_STRIDE
