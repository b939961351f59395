"""Reading many tokens layer by layer: within a layer chunk by chunk, while the layer's rows are on the device.

A layer in host memory is copied to a workspace and its new rows go back once, so link traffic grows with the number of
blocks, not of chunks. The numbers equal a resident layer's to the last bit.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from core.caches.base import LayerStore
from core.caches.layer_storage import OffloadedLayer, ResidentLayer
from core.caches.query_log import SavedQueries
from core.caches.votes import Counted
from core.ops.native import VOTERS
from core.ops.reach import Asked
from core.ops.scores import Tally

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
        self._away = {layer: store for layer, store in enumerate(stores) if isinstance(store, OffloadedLayer)}
        self._at = full.length
        self._committed = False

    @property
    def length(self) -> int:
        """Tokens before the running chunk."""
        return self._at

    def enter(self, layer: int) -> None:
        """Bring the layer's earlier rows to the workspace."""
        if layer in self._away:
            self._away[layer].bring(self._room, self._full.length)

    def leave(self, layer: int) -> None:
        """All chunks of the layer are done: move its new rows to their place."""
        if layer in self._away:
            self._away[layer].kept(self._room, self._stop)

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
        if layer in self._away:
            end = self._at + q.shape[2]
            self._away[layer].keep(self._room, end, self._stop)  # beside the layer's further work
            if end == self._stop:  # the newest tokens vote
                full, newest, softcap = self._full, q[:, :, -VOTERS:], asked.softcap if asked else None
                tally = Tally(newest, full.shape.num_kv_heads, scaling, full.chunk_size, softcap)
                votes = tally.finish([self._room.rows(0, end)[0]]).votes
                full.votes.put(layer, Counted(end - tally.tokens, tally.group, votes))
        return out

    def _place(self, layer: int) -> LayerStore:
        return self._room if layer in self._away else self._stores[layer]

    @property
    def _room(self) -> ResidentLayer:
        assert self._work is not None, "layers in host memory have no workspace"
        return self._work

    def commit(self) -> None:
        """All layers are done: count the tokens as seen."""
        self._full.commit(self._num_new)
        self._committed = True

    def close(self) -> None:
        """Without a `commit` before, restore the cache's rows, landmarks and newest queries."""
        if not self._committed:
            self._full.truncate(self._full.length)
            self._full.queries.restore(self._queries)
