"""The full cache: every key and value of the conversation, layer by layer on the device or in host memory.

Each pass also writes what selection needs: landmarks of layers on the device, votes of the newest pass, queries.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from core.caches.base import CpuShare, FixedRows, KVShape, LayerStore, Moving
from core.caches.full_parts import Mark, Offload, Suffix
from core.caches.layer_storage import SHORT_PASS, OffloadedLayer, ResidentLayer
from core.caches.query_log import QUERY_LOG, QUERY_SAMPLE_STRIDE, QueryLog
from core.caches.running_state import Marks, RunningState
from core.caches.votes import Counting, Votes
from core.caches.window_layer import FORGETTABLE, WindowLayer
from core.errors import ContextTooSmall
from core.ops.attention import widened
from core.ops.backend import STOCK, Backend
from core.ops.host_attention import HostAttention
from core.ops.reach import Asked
from core.ops.streams import to_device
from core.ops.transfer import HostRows

if TYPE_CHECKING:
    from core.caches.layerwise import LayerwisePass

# Lengths whose newest queries are kept for a rewind to exactly there: newest prompts, and the shortest (a book's end)
MOST_MARKS = 9
MOST_WINDOW_MARKS = 3  # ... of models with windows, whose rows they hold, too
MOST_ATTACHED = 256  # rows that `attach` writes at a time


class FullCache:
    """Keys and values of one conversation. Rows [0, length) are valid, rows beyond are scratch.

    Memory: capacity x bytes_per_token, touched as it fills; landmarks 1 / (2 chunk_size) of the part on the device,
    query samples 1/128 of it for MHA where all of it is. `landmarks`: also of layers in host memory.
    """

    def __init__(
        self,
        shape: KVShape,
        capacity: int,
        chunk_size: int,
        *,
        possible: int | None = None,
        backend: Backend = STOCK,
        offload: Offload | None = None,
        landmarks: bool = False,
    ) -> None:
        self.shape, self.capacity, self.chunk_size, self.backend = shape, capacity, chunk_size, backend
        self._possible = possible or capacity
        self._length, self._offload, self._staged = 0, offload, False
        self._ring = offload.ring(shape) if offload else None
        self._help: CpuShare | None = None
        self._layers = [self._store(number, offload) for number in range(shape.num_layers)]
        self.windows = {layer: store for layer, store in enumerate(self._layers) if isinstance(store, WindowLayer)}
        self._landmarks: list[Tensor] = []  # each [H_kv, C, D]; C = 0: none
        for layer, store in enumerate(self._layers):
            wanted = layer not in self.windows and (landmarks or not isinstance(store, OffloadedLayer))
            self._landmarks.append(shape.allocate(capacity // chunk_size if wanted else 0, shape.dtype)[0])
        self._num_landmarks = 0
        self.queries = QueryLog(shape, capacity, samples=offload is None)
        self.moving = Moving()
        self._marks = Marks[Mark]()
        self.state = RunningState(shape.attending)
        self.votes = Votes()

    def _store(self, layer: int, offload: Offload | None) -> LayerStore:
        if (reach := self.shape.reach(layer)) is not None:
            return WindowLayer(self.shape.of(layer), self.capacity, reach, self.backend, FORGETTABLE)
        if offload is None or self.shape.full_layers.index(layer) < offload.num_resident:
            return ResidentLayer(self.shape, self.capacity, self.backend)
        return self._offloaded_layer(layer, offload)

    def _offloaded_layer(self, layer: int, offload: Offload) -> OffloadedLayer:
        block, chunk, reads = offload.block_rows, self.chunk_size, self.shape.times_read(layer)
        assert self._ring is not None, "blocks have no ring to cross the link"
        return OffloadedLayer(self.shape, self.capacity, self._ring, block_rows=block, chunk_size=chunk, reads=reads)

    @property
    def length(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        full = self._length * self.shape.full_reads * self.shape.layer_bytes
        return full + self.shape.window_bytes(self._length) + self.state.nbytes

    @property
    def link_bytes(self) -> int:
        return sum(layer.link_bytes for layer in self._in_order_of_reading())

    @property
    def resident_layers(self) -> int:
        """Number of layers that attend to all tokens and whose rows all lie on the device: the first ones."""
        return sum(isinstance(layer, ResidentLayer) for layer in self._layers)

    @property
    def host_memory(self) -> Sequence[HostRows]:
        """Host memory of the offloaded layers, layer by layer."""
        return [layer.memory for layer in self._layers if isinstance(layer, OffloadedLayer)]

    def let_host_attend(self, share: float) -> None:
        """In later short passes the host attends to this share of its blocks in place; 0: to none."""
        shape, self._help = self.shape, None
        if share:
            self._help = CpuShare(HostAttention(shape.num_heads, shape.head_dim, SHORT_PASS, shape.device), share)

    def offload_one(self, block_rows: int) -> None:
        """Move the last resident layer with its rows to host memory. Cost: a copy of its rows.

        `block_rows`: of the ring, if there is none yet.

        Raises:
            torch.OutOfMemoryError: the device has no room even for the newest rows; the layer stays where it was.
        """
        number = self.shape.full_layers[self.resident_layers - 1]
        store = self.resident(number)
        self._offload = self._offload or Offload(block_rows=block_rows)
        self.moving()
        saved = store.take_out(self._length)
        try:
            if self._ring is None:
                self._ring = self._offload.ring(self.shape)
            moved = self._offloaded_layer(number, self._offload)
        except torch.OutOfMemoryError:
            store.put_back(*saved)
            raise
        moved.put_back(*saved)
        self._layers[number], self._landmarks[number] = moved, self._landmarks[number][:, :0].clone()

    def fixed(self) -> FixedRows | None:
        """The rows, for recorded passes; None if some lie in host memory."""
        buffers = [store.buffers for store in self._layers if isinstance(store, ResidentLayer)]
        if len(buffers) < len(self._layers):
            return None
        k, v = ([own[kind] for own in buffers] for kind in (0, 1))
        counting = [self._counting(layer) for layer in range(len(k))]
        return FixedRows(k, v, self._length, self.queries, counting, self.backend.attend)

    def unseen_spans(self, total: int) -> list[range]:
        return [range(self._length, total)]

    def begin(self, start: int, num_new: int, *, whole: bool = False) -> Tensor:
        """Check that the tokens follow and fit; positions are plain indices. `whole`: the pass brings all blocks."""
        help = self._help if num_new <= SHORT_PASS and not whole else None
        assert start == self._length, f"tokens from {start} do not follow a cache of length {self._length}"
        if start + num_new > self.capacity:
            raise ContextTooSmall(start + num_new, self.capacity, possible=self._possible)
        self.queries.open(start, num_new)
        self.votes.open(start, num_new)
        for layer in self._layers:
            layer.open(help)
        if self._ring is not None:
            if help is not None:
                self._ring.settle()
            self._ring.begin([piece for layer in self._in_order_of_reading() for piece in layer.pieces()])
        return torch.arange(start, start + num_new)

    def _in_order_of_reading(self) -> list[LayerStore]:
        return [*self._layers, *(self._layers[layer] for layer in self.shape.again)]

    def stage(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write k, v [1, H_kv, T, D] behind the valid rows, and the landmarks of the chunks that they complete."""
        self.stage_in(self._layers[layer], layer, self._length, k, v)

    def stage_in(self, store: LayerStore, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        """As `stage`, for tokens from `start` on, into the store that now has the layer's rows [0, start)."""
        k, v = self.shape.of(layer).check(k, v)
        first, last = self._num_landmarks, (start + k.shape[2]) // self.chunk_size
        if start > self._length:  # a later piece of the same pass
            first = max(first, start // self.chunk_size)
        if last > first and self.has_landmarks(layer):
            begun, _ = store.rows(first * self.chunk_size, start)
            self._mark(layer, first, last, torch.cat((begun, k[0]), 1) if begun.shape[1] else k[0])
        self._staged = True
        store.stage(start, k, v)

    def _mark(self, layer: int, first: int, last: int, keys: Tensor) -> None:
        """Compute the landmarks of chunks [first, last) from the keys [H_kv, n, D] that begin there."""
        whole = widened(keys[:, : (last - first) * self.chunk_size], self.shape.dtype)
        self._landmarks[layer][:, first:last] = whole.reshape(len(whole), last - first, self.chunk_size, -1).mean(2)

    def attend(self, layer: int, q: Tensor, scaling: float, asked: Asked | None = None) -> Tensor:
        """Exact causal attention to all rows; also logs the queries."""
        return self.attend_in(self._layers[layer], layer, self._length, q, scaling, asked)

    def attend_in(
        self, store: LayerStore, layer: int, start: int, q: Tensor, scaling: float, asked: Asked | None = None
    ) -> Tensor:
        """As `attend`, for tokens from `start` on, in the store that now has the layer's rows."""
        if self.shape.reach(layer) is None:
            self.queries.write(layer, start, q)
        return store.attend(start, q, scaling, asked, self._counting(layer))

    def _counting(self, layer: int) -> Counting | None:
        """How a layer counts votes; None: it has landmarks, and votes are not wanted."""
        if not self.votes.wanted and self.has_landmarks(layer):
            return None
        # Unless they are wanted the last tokens vote, so that the pieces of a prompt do not matter
        return Counting(self.chunk_size, self.votes.wanted, partial(self.votes.put, layer))

    def workspace(self, num_rows: int) -> ResidentLayer | None:
        """Device memory for rows [0, num_rows) of one layer; None if every layer is resident."""
        return ResidentLayer(self.shape, num_rows, self.backend) if self.host_memory else None

    def layerwise(self, num_new: int, work: ResidentLayer | None) -> "LayerwisePass":
        """Begin to read the next tokens layer by layer; `work` is a `workspace` for all rows including these tokens.

        Raises:
            ContextTooSmall: they do not fit.
        """
        from core.caches.layerwise import LayerwisePass

        queries = self.queries.saved(torch.device("cpu"))
        self.begin(self._length, num_new, whole=True)
        return LayerwisePass(self, self._layers, num_new, work, queries)

    def remember_queries(self, num_queries: int) -> None:
        """Keep the newest queries, and of windowed layers the rows in reach, for a later rewind to this length.

        Cost: L x H x num_queries x D numbers and these rows cross to host memory once.
        """
        newest = [self.recent_queries(layer, num_queries) for layer in self.shape.full_layers]
        queries = torch.stack(newest).cpu() if newest else torch.empty(0, 0, 0, 0)
        self._marks.keep(self._length, Mark(queries, self.votes.at(self._length)), MOST_MARKS)
        for window in self.windows.values():
            window.remember(self._length, MOST_WINDOW_MARKS)
        self.state.remember()

    def count_votes(self, wanted: bool) -> None:
        """Whether layers with landmarks count votes too, and every row of a short pass instead of the last ones.

        False also forgets their votes, so that a seed's draws do not depend on them.
        """
        self.votes.wanted = wanted
        if not wanted:
            self.votes.forget(filter(self.has_landmarks, self.shape.full_layers))

    def can_choose(self, first: int, length: int) -> bool:
        """Whether chunks can be chosen behind `length` tokens by the queries from token `first` on.

        Layers without landmarks need votes, which exist only if the last tokens voted in the newest pass.
        """
        counted = (self.votes.newest(n, length) for n in self.shape.full_layers if not self.has_landmarks(n))
        return self.queries_start() <= first and all(votes is not None for votes in counted)

    def queries_start(self) -> int:
        """The first token whose query is known, as are all up to `length`; 0 if all layers have windows."""
        return min(self.queries.first, self._length) if self.shape.full_layers else 0

    @property
    def link_traffic(self) -> tuple[int, int]:
        """Bytes of keys and values brought to the device in passes, and stored on the host, since the ring was made."""
        return (self._ring.bytes_brought, self._ring.bytes_stored) if self._ring else (0, 0)

    def commit(self, num_new: int) -> None:
        """Count the new tokens; landmarks of those that a pass wrote by itself follow where they are asked for."""
        self._length += num_new
        if self._staged:
            self._num_landmarks, self._staged = self._length // self.chunk_size, False
        for store in self._layers:
            store.commit(self._length)
        self.state.commit(self._length)

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on. Cost: none, except part of a block for offloaded layers if a block is cut.

        Windowed layers go back by `FORGETTABLE` tokens, recurrent ones within the newest pass; both to a length where
        queries were remembered; else it forgets more, see `rewindable`.
        """
        length = self.rewindable(length)
        known = self._marks.get(length)
        self._length, self._staged = length, False
        self.votes.truncate(length)
        for store in self._layers:
            store.truncate(length)
        self.state.truncate(length)
        self._num_landmarks = min(self._num_landmarks, self._length // self.chunk_size)
        self.queries.truncate(length)
        self._marks.truncate(length)
        if known is not None and known.votes and not self.votes.at(length):
            self.votes.restore(length, known.votes, self.shape.device)
        if known is not None and self.queries.first > length - known.queries.shape[2]:
            self.queries.put(length - known.queries.shape[2], known.queries.to(self.shape.device))

    def rewindable(self, length: int) -> int:
        """The length that `truncate(length)` would leave: at most `length`."""
        length = self.state.rewindable(min(self._length, length))
        return min((window.rewindable(length) for window in self.windows.values()), default=length)

    def resident(self, layer: int) -> ResidentLayer:
        """The rows of a layer that lie on the device."""
        store = self._layers[layer]
        assert isinstance(store, ResidentLayer), f"layer {layer} is not resident"
        return store

    def detach(self, start: int) -> Suffix:
        """Take out what was seen from `start` on, so that another continuation can take its place; see `attach`."""
        rows = [self.rows(layer, start, self._length) for layer in self.shape.full_layers]
        rows = [(k.clone(), v.clone()) for k, v in rows]
        windows = [window.saved(start) for window in self.windows.values()]
        suffix = Suffix(start, self._length - start, rows, windows, self.queries.saved(), self.state.point)
        self.truncate(start)
        return suffix

    def attach(self, suffix: Suffix) -> None:
        """Put a suffix back behind the tokens that preceded it."""
        assert self._length == suffix.start, f"a suffix from {suffix.start} does not follow {self._length} tokens"
        for window, rows in zip(self.windows.values(), suffix.windows, strict=True):
            window.put_back(rows)
        for start in range(0, suffix.num_tokens, MOST_ATTACHED):
            part = slice(start, start + MOST_ATTACHED)
            for layer, (k, v) in zip(self.shape.full_layers, suffix.rows, strict=True):
                self.stage(layer, k[None, :, part], v[None, :, part])
            self._staged = True
            self.commit(len(range(suffix.num_tokens)[part]))
        self.queries.restore(suffix.queries)
        self.votes.forget()
        self.state.adopt(suffix.state)

    def forget(self, suffix: Suffix) -> None:
        """Free a suffix that will not be put back."""

    def beside(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """What rows [0, length) of a layer do not say, to be saved or filled in: views.

        Returns:
            the newest queries [H, QUERY_LOG, D] in ring order, sampled ones [H, N, D].
        """
        return self.queries.views(layer, length)

    @contextmanager
    def refilled(self, logged: int) -> Iterator[None]:
        """Inside, the caller fills `beside`, then `stage` and `commit` add the rows from 0 on. It may end early.

        Args:
            logged: the length at which the newest queries were saved; at least that of the rows.
        """
        assert self._length == 0, f"{self._length} rows are there"
        self.queries.first = max(0, logged - QUERY_LOG)
        try:
            yield
        finally:
            self.truncate(self._length)

    def has_landmarks(self, layer: int) -> bool:
        """Whether a layer has landmarks; else every pass counts what it attends to there."""
        return self._landmarks[layer].shape[1] > 0

    def landmarks(self, layer: int, num_chunks: int) -> Tensor:
        """Mean keys of the first complete chunks, [H_kv, num_chunks, D], of a layer that has them."""
        first, last = self._num_landmarks, self._length // self.chunk_size
        assert num_chunks <= last, f"{num_chunks} of {last} landmarks"
        if num_chunks > first:
            for other in filter(self.has_landmarks, self.shape.full_layers):
                self._mark(other, first, last, self.rows(other, first * self.chunk_size, last * self.chunk_size)[0])
            self._num_landmarks = last
        return self._landmarks[layer][:, :num_chunks]

    def samples_to_save(self, layer: int, length: int) -> Tensor:
        """Sampled queries before `length`, [H, N, D]; zeros if there are none."""
        samples = self.queries.views(layer, length)[1]
        if self.queries.samples:
            return samples
        return samples.new_zeros(len(samples), -(-length // QUERY_SAMPLE_STRIDE), samples.shape[2])

    def recent_queries(self, layer: int, num_queries: int) -> Tensor:
        """The newest known queries of committed tokens, [H, W, D], W <= num_queries."""
        return self.queries.recent(layer, self._length, num_queries)

    def rows(self, layer: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of tokens [start, stop), each [H_kv, stop - start, D]; a copy of rows in host memory."""
        return self._layers[layer].rows(start, stop)

    def gather(self, layer: Tensor, head: Tensor, chunk: Tensor) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """Copies of chosen chunks on the device, layer by layer; layer, head and chunk numbers are [N] int64 each.

        Yields a layer, [n] int64 indices into these numbers, and k, v [n, chunk_size * D].
        Waits for the device once, to read the numbers; for offloaded layers the host then gathers beside the copies.
        """
        away = torch.tensor([store.chunks_away(self.chunk_size) for store in self._layers])
        place, order = (2 * layer + (chunk >= to_device(away, layer.device)[layer])).sort(stable=True)  # host first
        ends = torch.searchsorted(place, torch.arange(2 * len(away), device=place.device), right=True)
        told = torch.cat((ends, head[order], chunk[order])).cpu()
        counts = told[: len(ends)].diff(prepend=told.new_zeros(1)).view(-1, 2)
        which = torch.split(order, counts.sum(1).tolist())
        hosts = torch.split(told[len(ends) :].view(2, -1), counts.flatten().tolist(), 1)[::2]
        if self._ring and counts[:, 0].any():
            self._ring.settle()
        for number, (indices, host) in enumerate(zip(which, hosts, strict=True)):
            if len(indices):
                k, v = self._layers[number].gather(head[indices], chunk[indices], host, self.chunk_size)
                yield number, indices, k, v
