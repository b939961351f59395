"""A conversation that continues a text in another cache, the trunk, without copying the text's rows.

Before a branch attends in a layer, its rows are copied behind the trunk's, so it attends to one piece of memory with
the same sums to the last bit. Branches take turns, layer by layer.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from core.caches.base import KVShape, LayerStore
from core.caches.full import FullCache
from core.caches.full_parts import Offload
from core.caches.layer_storage import ResidentLayer
from core.caches.query_log import QUERY_LOG
from core.caches.votes import Counting
from core.ops.native import KEYS_OF_A_SHARE
from core.ops.reach import Asked


class BranchLayer(LayerStore):
    """One layer: rows [0, shared) are the trunk's, later rows are kept here."""

    def __init__(self, shape: KVShape, trunk: ResidentLayer, shared: int, most: int) -> None:
        self._trunk, self._shared = trunk, shared
        self._k, self._v = shape.allocate(most), shape.allocate(most)  # rows behind `shared`
        self._staged = 0  # of these, written so far

    def adopt(self, length: int) -> None:
        """Take the trunk's rows [shared, length)."""
        self.stage(self._shared, *(rows[None] for rows in self._trunk.rows(self._shared, length)))

    def laid(self, stop: int) -> ResidentLayer:
        """The trunk with this branch's rows [shared, stop) written behind the shared ones."""
        for rows, branch_rows in zip(self._trunk.buffers, (self._k, self._v), strict=True):
            rows[:, :, self._shared : stop] = branch_rows[:, :, : stop - self._shared]
        return self._trunk

    def stage(self, start: int, k: Tensor, v: Tensor) -> None:
        first = start - self._shared
        assert first >= 0, f"rows from {start} on are the trunk's, up to {self._shared}"
        self._staged = first + k.shape[2]
        self._k[:, :, first : self._staged] = k
        self._v[:, :, first : self._staged] = v

    def attend(
        self, start: int, q: Tensor, scaling: float, asked: Asked | None = None, counting: Counting | None = None
    ) -> Tensor:
        return self.laid(start + q.shape[2]).attend(start, q, scaling, asked, counting)

    def truncate(self, length: int) -> None:
        assert length >= self._shared, f"a branch from {self._shared} on cannot go back to {length}"

    def rows(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        if start >= self._shared:
            behind = slice(start - self._shared, stop - self._shared)
            return self._k[0, :, behind], self._v[0, :, behind]
        return self.laid(max(stop, self._shared)).rows(start, stop)

    def gather(self, heads: Tensor, chunks: Tensor, away: Tensor, chunk_size: int) -> tuple[Tensor, Tensor]:
        return self.laid(self._shared + self._staged).gather(heads, chunks, away, chunk_size)


class BranchCache(FullCache):
    """The full cache of a conversation that begins with the first `shared` tokens of a resident one, its trunk.

    It adopts the rows that the trunk has behind these tokens. Afterwards truncate the trunk to `shared` before anything
    else; it may read on only while no branch is in a pass.

    Args:
        most: tokens behind the shared ones, at most.
    Memory: `most` x bytes_per_token, landmarks of as many tokens, and the newest queries.
    """

    def __init__(self, trunk: FullCache, shared: int, most: int) -> None:
        assert not trunk.shape.reaches and not trunk.shape.recurrent, "windows and running states have no branches"
        assert shared <= trunk.length <= shared + most, f"{trunk.length} tokens read, {shared} shared, {most} own"
        self._trunk, self._shared, self._most = trunk, shared, most
        capacity = min(trunk.capacity, shared + most)
        super().__init__(trunk.shape, capacity, trunk.chunk_size, possible=trunk.capacity, backend=trunk.backend)
        for layer, store in enumerate(self._layers):
            assert isinstance(store, BranchLayer)
            store.adopt(trunk.length)
            behind = slice(shared // self.chunk_size, trunk.length // self.chunk_size)
            self._landmarks[layer][:, behind] = trunk.landmarks(layer, behind.stop)[:, behind]
        self._length, self._num_landmarks = trunk.length, trunk.length // self.chunk_size
        self.queries.restore(trunk.queries.saved())

    def _store(self, layer: int, offload: Offload | None) -> LayerStore:
        trunk = self._trunk.resident(layer)
        return BranchLayer(self.shape, trunk, self._shared, self._most)

    def landmarks(self, layer: int, num_chunks: int) -> Tensor:
        """Mean keys of the first complete chunks, [H_kv, num_chunks, D]; valid until another branch asks."""
        assert num_chunks <= self._num_landmarks, f"{num_chunks} of {self._num_landmarks} landmarks"
        behind = slice(self._shared // self.chunk_size, num_chunks)
        means = self._trunk._landmarks[layer]  # scratch behind its complete chunks
        means[:, behind] = self._landmarks[layer][:, behind]
        return means[:, :num_chunks]

    def same_trunk(self, other: object) -> bool:
        """Whether another cache continues the same tokens."""
        return isinstance(other, BranchCache) and other._trunk is self._trunk and other._shared == self._shared

    @staticmethod
    def attend_together(
        branches: "Sequence[tuple[BranchCache, slice]]", layer: int, q: Tensor, scaling: float
    ) -> Tensor | None:
        """As `attend`, of branches of one trunk with these rows of q [1, H, T, D]: the trunk is read once for all.

        None: the kernel cannot read it in two steps; nothing was done.
        """
        trunk, shared = branches[0][0]._trunk, branches[0][0]._shared
        first = shared // KEYS_OF_A_SHARE * KEYS_OF_A_SHARE
        k, v = trunk.resident(layer).buffers
        kernel = trunk.backend.kernel
        if any(branch.votes.wanted for branch, _ in branches):  # votes are counted per branch
            return None
        if first == 0 or kernel is None or trunk.backend.attend is not kernel or not kernel.takes(q, k, v):
            return None
        begun = kernel.begun(q, k[:, :, :first], v[:, :, :first], scaling)
        outs = []
        for branch, rows in branches:
            queries = q[:, :, rows]
            branch.queries.write(layer, branch._length, queries)
            store, stop = branch._layers[layer], branch._length + queries.shape[2]
            assert isinstance(store, BranchLayer)
            k, v = (buffer[:, :, :stop] for buffer in store.laid(stop).buffers)
            outs.append(kernel.ended(queries, k, v, scaling, begun[:, :, rows], first))
        return torch.cat(outs, 2)

    @staticmethod
    def own_bytes(shape: KVShape, most: int, chunk_size: int) -> int:
        """Memory of a branch of so many tokens: rows, landmarks, newest queries."""
        landmarks = shape.num_kv_heads * shape.head_dim * torch.finfo(shape.dtype).bits // 8
        rings = QUERY_LOG * shape.num_heads * shape.head_dim * torch.finfo(shape.dtype).bits // 8
        return most * shape.bytes_per_token + shape.num_layers * (landmarks * -(-most // chunk_size) + rings)
