"""Reading many tokens layer by layer: within a layer chunk by chunk, while the layer's rows are on the device.

A layer in host memory is copied to a workspace and its new rows go back once, so link traffic grows with the number of
blocks, not of chunks. The numbers equal a resident layer's to the last bit.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from core.caches.layer_storage import LayerStore, OffloadedLayer, ResidentLayer
from core.caches.query_log import SavedQueries
from core.ops.reach import Asked

if TYPE_CHECKING:
    from core.caches.full import FullCache


class LayerwisePass:
    """Reads `num_new` tokens behind those that `full` has seen.

    For each layer in order: `enter`; per chunk `begin` and a model layer that calls `stage` and `attend`; `leave`.
    After the last layer `commit`; always `close`. `queries`: the newest ones before the pass.
    """

    def __init__(
        self,
        full: "FullCache",
        stores: Sequence[LayerStore],
        num_new: int,
        work: ResidentLayer | None,
        queries: SavedQueries,
    ) -> None:
        self._full, self._stores, self._work, self._queries = full, stores, work, queries
        self._num_new, self._stop = num_new, full.length + num_new
        self._at = full.length
        self._committed = False

    @property
    def length(self) -> int:
        """Tokens before the running chunk."""
        return self._at

    def enter(self, layer: int) -> None:
        """Bring the layer's earlier rows to the workspace."""
        store = self._stores[layer]
        if isinstance(store, OffloadedLayer):
            assert self._work is not None, f"layer {layer} lies in host memory and has no workspace"
            store.bring(self._work, self._full.length)

    def leave(self, layer: int) -> None:
        """All chunks of the layer are done: move its new rows to their place."""
        store = self._stores[layer]
        if isinstance(store, OffloadedLayer):
            assert self._work is not None, f"layer {layer} lies in host memory and has no workspace"
            store.kept(self._work, self._stop)

    def begin(self, start: int, num_new: int) -> Tensor:
        """Start the layer's chunk [start, start + num_new); returns its RoPE positions, [T] int64."""
        assert self._full.length <= start and start + num_new <= self._stop, f"chunk at {start} of {self._stop} tokens"
        self._at = start
        return torch.arange(start, start + num_new, device=self._full.shape.device)

    def stage(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write k, v [1, H_kv, T, D] of the chunk, and the landmarks of the chunks that they complete."""
        self._full.stage_in(self._place(layer), layer, self._at, k, v)

    def attend(self, layer: int, q: Tensor, scaling: float, asked: Asked | None = None) -> Tensor:
        """Causal attention of q [1, H, T, D] to all tokens up to the chunk's own; also logs the queries."""
        out = self._full.attend_in(self._place(layer), layer, self._at, q, scaling, asked)
        store = self._stores[layer]
        if isinstance(store, OffloadedLayer):
            assert self._work is not None, f"layer {layer} lies in host memory and has no workspace"
            store.keep(self._work, self._at + q.shape[2], self._stop)  # beside the layer's further work
            if self._at + q.shape[2] == self._stop:
                self._full.count_newest(layer, self._work.rows(0, self._stop)[0], q, scaling, asked)
        return out

    def _place(self, layer: int) -> LayerStore:
        store = self._stores[layer]
        return self._work if self._work is not None and isinstance(store, OffloadedLayer) else store

    def commit(self) -> None:
        """All layers are done: count the tokens as seen."""
        self._full.commit(self._num_new)
        self._committed = True

    def close(self) -> None:
        """Without a `commit` before, restore the cache's rows, landmarks and newest queries."""
        if not self._committed:
            self._full.truncate(self._full.length)
            self._full.restore_queries(self._queries)
