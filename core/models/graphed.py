"""A pass of a model over a cache as a function of fixed buffers, so that it can be recorded (`core.ops.graphs`).

The caches say where their rows lie (`FixedRows`); rows, lengths and positions go in as one tensor of integers. New
tokens are padded to a power of two: the padding writes behind the rows in use, where the next pass writes anyway.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from core.caches.base import FixedRows
from core.models.seam import forward
from core.ops.backend import STOCK, Backend
from core.ops.graphs import MOST_ROWS, Graphs, attend_bucketed, hidden_rows, masked_rows, padded_rows, whole_rows


class GraphedPasses:
    """Passes of one model over one cache, recorded by number of new tokens and by length.

    Args:
        fixed: where the cache's rows lie now; None while they do not lie at fixed places.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        fixed: Callable[[], FixedRows | None],
        graphs: Graphs,
        *,
        backend: Backend = STOCK,
    ) -> None:
        self._name, self._model, self._fixed, self.graphs, self._backend = name, model, fixed, graphs, backend
        self._places: tuple[int, ...] = ()  # of the buffers that were recorded with

    def _settle(self, rows: FixedRows) -> None:
        """See whether the buffers are other ones than before, as after a change of the budget."""
        places = tuple(buffer.data_ptr() for buffer in (*rows.k, *rows.v))
        if places != self._places:
            self.graphs.forget(self._name)
            for buffer in (*rows.k, *rows.v):
                buffer[:, :, rows.held :].zero_()  # what a mask hides is multiplied by 0, so it must be finite
            self._places = places

    def prepare(self, tokens: Tensor, positions: Tensor, keep: int) -> Callable[[], Tensor] | None:
        """The pass over tokens [T] at consecutive positions [T], which `begin` made room for; logits [keep, V].

        None where it cannot be recorded: it is long, it reaches the end of the buffers, or recording has failed.
        """
        num_new, rows = len(tokens), self._fixed()
        padded = padded_rows(num_new)
        if rows is None or num_new > MOST_ROWS or rows.held + padded > rows.capacity:
            return None
        self._settle(rows)
        whole = whole_rows(rows.held)
        masked = min(masked_rows(whole, padded), rows.capacity - whole)
        inputs = tokens.new_zeros(padded + 2)  # tokens, their first position, their first row
        inputs[:num_new] = tokens
        inputs[-2], inputs[-1] = positions[0], rows.held

        def run(inputs: Tensor) -> Tensor:
            fed, position, start = inputs[:padded], inputs[-2], inputs[-1]
            hidden = hidden_rows(start, padded, whole, masked)
            view = _FixedView(rows, position, start, padded, whole, hidden, self._backend)
            return forward(self._model, fed, view.positions, view, padded)

        replay = self.graphs.prepare((self._name, padded, whole), run, inputs)
        return replay and (lambda: replay()[num_new - keep : num_new])


class _FixedView:
    """A cache as one recorded pass sees it: new rows go where a tensor says."""

    length = nbytes = link_bytes = 0  # not asked for in a pass

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

    def missing(self, total: int) -> list[range]:
        """Not asked for in a pass."""
        raise AssertionError("a recorded pass begins and ends outside")

    def begin(self, start: int, num_new: int) -> Tensor:
        """Not asked for in a pass."""
        raise AssertionError("a recorded pass begins and ends outside")

    def stage(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write k, v [1, H_kv, T, D] at the rows of this pass."""
        self._rows.k[layer].index_copy_(2, self._at, k)
        self._rows.v[layer].index_copy_(2, self._at, v)

    def attend(self, layer: int, q: Tensor, scaling: float) -> Tensor:
        """Causal attention over the rows held, and the log of queries where there is one."""
        if self._rows.log is not None:
            self._rows.log(layer, self.positions, q)
        k, v = self._rows.k[layer], self._rows.v[layer]
        return attend_bucketed(q, k, v, scaling, self._whole, self._hidden, self._partial)

    def commit(self, num_new: int) -> None:
        """Not asked for in a pass."""

    def truncate(self, length: int) -> None:
        """Not asked for in a pass."""
