"""Reading many tokens layer by layer: within a layer chunk by chunk, with the layer's rows on the device meanwhile.

A layer in host memory comes to a workspace, takes the keys and values of all chunks there, and its new rows go back
once: what crosses the link grows with the number of blocks, not of chunks. Attention sees plain rows, as in a resident
layer, and gives the same numbers to the last bit. Nothing counts until `commit`. Knows nothing of models.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from core.caches.layer_storage import LayerStore, OffloadedLayer, ResidentLayer
from core.caches.query_log import SavedQueries

if TYPE_CHECKING:
    from core.caches.full import FullCache


class LayerwisePass:
    """`num_new` tokens behind what `full` has seen.

    Layers in order, each `enter`, for every chunk `begin` and a model layer that calls `stage` and `attend`, `leave`;
    after the last one `commit`; always `close`. `queries`: the newest ones before it.
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
        """Bring what the layer has seen."""
        store = self._stores[layer]
        if isinstance(store, OffloadedLayer):
            assert self._work is not None, f"layer {layer} lies in host memory and has no workspace"
            store.bring(self._work, self._full.length)

    def leave(self, layer: int) -> None:
        """The layer has taken all chunks: its new rows go where they belong."""
        store = self._stores[layer]
        if isinstance(store, OffloadedLayer):
            assert self._work is not None, f"layer {layer} lies in host memory and has no workspace"
            store.kept(self._work, self._stop)

    def begin(self, start: int, num_new: int) -> Tensor:
        """Go on with the chunk [start, start + num_new) of the layer; its RoPE positions, [T] int64."""
        assert self._full.length <= start and start + num_new <= self._stop, f"chunk at {start} of {self._stop} tokens"
        self._at = start
        return torch.arange(start, start + num_new, device=self._full.shape.device)

    def stage(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write k, v [1, H_kv, T, D] of the chunk, and landmarks of what it completes."""
        self._full.stage_in(self._place(layer), layer, self._at, k, v)

    def attend(self, layer: int, q: Tensor, scaling: float) -> Tensor:
        """Causal attention of q [1, H, T, D] to all tokens up to the chunk's own; also logs the queries."""
        found = self._full.attend_in(self._place(layer), layer, self._at, q, scaling)
        store = self._stores[layer]
        if isinstance(store, OffloadedLayer):
            assert self._work is not None, f"layer {layer} lies in host memory and has no workspace"
            store.keep(self._work, self._at + q.shape[2], self._stop)  # beside what the layer computes from here on
        return found

    def _place(self, layer: int) -> LayerStore:
        store = self._stores[layer]
        return self._work if self._work is not None and isinstance(store, OffloadedLayer) else store

    def commit(self) -> None:
        """All layers have been left: the tokens count as seen."""
        self._full.commit(self._num_new)
        self._committed = True

    def close(self) -> None:
        """Without a `commit` before, the cache is what it was: rows, landmarks and newest queries."""
        if not self._committed:
            self._full.truncate(self._full.length)
            self._full.restore_queries(self._queries)
