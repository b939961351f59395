"""A pass of a model over a cache as a function of fixed buffers, so that it can be recorded (`core.ops.graphs`).

Caches return their buffers (`FixedRows`); rows, lengths and positions are passed as one tensor of integers. New tokens
are padded to a power of two: the padding writes behind the rows in use, which the next pass overwrites.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from core.caches.base import FixedRows, KVCache
from core.models.hf_attention import forward
from core.ops.backend import STOCK, Backend
from core.ops.graphs import MOST_ROWS, Graphs, attend_bucketed, hidden_rows, masked_rows, padded_rows, whole_rows
from core.ops.reach import Asked
from core.ops.streams import pinned


class GraphedPasses:
    """Passes of one model over one cache, recorded by number of new tokens and by length."""

    def __init__(
        self, name: str, model: nn.Module, cache: KVCache, graphs: Graphs, *, backend: Backend = STOCK
    ) -> None:
        self._name, self._model, self._fixed, self.graphs, self._backend = name, model, cache.fixed, graphs, backend
        self._finite = False  # whether all rows of the cache's buffers are
        cache.moving.tell(self.forget)

    def forget(self) -> None:
        """Drop all recordings, and with them the last references to the cache's buffers."""
        self._finite = False
        self.graphs.forget(self._name)

    def _clear(self, rows: FixedRows) -> None:
        """Zero what new buffers hold behind their rows: masked rows are multiplied by 0, so they must be finite."""
        if not self._finite:
            self.forget()  # recordings of an earlier cache of this name
            for buffer in (*rows.k, *rows.v):
                buffer[:, :, rows.held :].zero_()
            self._finite = True

    def is_new(self, num_new: int) -> bool:
        """Whether the next pass over so many tokens is not yet recorded."""
        rows = self._fixed()
        return rows is None or not self._finite or self._key(rows, padded_rows(num_new)) not in self.graphs

    def _key(self, rows: FixedRows, padded: int) -> tuple[str, int, int]:
        return self._name, padded, whole_rows(rows.held)

    def prepare(
        self, tokens: Tensor, positions: Tensor, keep: int, *, anew: bool = False
    ) -> Callable[[], Tensor] | None:
        """The pass over tokens [T] at consecutive positions [T], which `begin` made room for; logits [keep, V].

        Tokens and positions lie in host memory: they cross to the device in one copy. `anew`: record it again.

        None if it cannot be recorded: it is long, it reaches the end of the buffers, or recording has failed.
        """
        num_new, rows = len(tokens), self._fixed()
        padded = padded_rows(num_new)
        if rows is None or not _fits(rows, padded):
            return None
        self._clear(rows)
        if anew:
            self.graphs.drop(self._key(rows, padded))
        numbers = (*tokens.tolist(), *(0,) * (padded - num_new), int(positions[0]), rows.held)
        replay = self._recorded(rows, padded, torch.tensor(numbers))
        return replay and (lambda: replay()[num_new - keep : num_new])

    def record(self, num_new: int, behind: int) -> None:
        """Record the pass over so many tokens now, if it can be recorded. Writes scratch rows only.

        Args:
            behind: tokens that will have been fed before them.
        """
        padded, rows = padded_rows(num_new), self._fixed()
        if rows is None or not _fits(ahead := rows._replace(held=rows.held + behind), padded):
            return
        self._clear(rows)
        self._recorded(ahead, padded, torch.tensor((*(0,) * padded, ahead.held, ahead.held)))

    def _recorded(self, rows: FixedRows, padded: int, inputs: Tensor) -> Callable[[], Tensor] | None:
        """Inputs [padded + 2] int64, in host memory: tokens, their first position, their first row."""
        whole = whole_rows(rows.held)
        masked = min(masked_rows(whole, padded), rows.capacity - whole)

        def run(inputs: Tensor) -> Tensor:
            fed, position, start = inputs[:padded], inputs[-2], inputs[-1]
            hidden = hidden_rows(start, padded, whole, masked)
            view = _FixedView(rows, position, start, padded, whole, hidden, self._backend)
            return forward(self._model, fed, view.positions, view, padded)

        return self.graphs.prepare(self._key(rows, padded), run, pinned(inputs, rows.k[0].device))


def _fits(rows: FixedRows, padded: int) -> bool:
    return padded <= MOST_ROWS and rows.held + padded <= rows.capacity


class _FixedView:
    """A cache as one recorded pass sees it: a tensor gives the places of new rows."""

    length = 0  # not used in a pass

    def __init__(
        self,
        rows: FixedRows,
        position: Tensor,
        start: Tensor,
        num_new: int,
        whole: int,
        hidden: Tensor,
        backend: Backend,
    ) -> None:
        steps = torch.arange(num_new, device=start.device)
        self.positions = position + steps
        self._rows, self._at, self._whole, self._hidden = rows, start + steps, whole, hidden
        self._partial = backend.partial
        self._logged = rows.log.places(self.positions) if rows.log is not None else None

    def stage(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write k, v [1, H_kv, T, D] at the rows of this pass."""
        self._rows.k[layer].index_copy_(2, self._at, k)
        self._rows.v[layer].index_copy_(2, self._at, v)

    def attend(self, layer: int, q: Tensor, scaling: float, asked: Asked | None = None) -> Tensor:
        """Causal attention to the held rows; also logs the queries, if the cache has a log."""
        assert asked is None, f"only plain attention is recorded, not {asked}"
        if self._rows.log is not None and self._logged is not None:
            self._rows.log.write_at(layer, self._logged, q)
        k, v = self._rows.k[layer], self._rows.v[layer]
        return attend_bucketed(q, k, v, scaling, self._whole, self._hidden, self._partial)
