"""Which chunks the newest pass attended to: the kernel adds it up while it attends, so knowing costs next to nothing.

Verification computes the attention of the freshest queries to every key, exactly. Choosing chunks by it (as SpecAttn,
arXiv 2602.07223, and SparseSpec, arXiv 2512.01278, do) needs neither a pass of its own nor landmarks.
"""

from torch import Tensor

from core.ops.native import VOTERS


class Votes:
    """Attention to each begun chunk in the newest pass, summed over VOTERS tokens at a time, by layer."""

    def __init__(self) -> None:
        self.wanted = False  # whether passes are to count: whoever chooses chunks by it says so
        self._start = self._num_new = 0
        self._by_layer: dict[int, Tensor] = {}  # each [H_kv, T // VOTERS rounded up, C]

    def open(self, start: int, num_new: int) -> None:
        """Announce a pass over tokens [start, start + num_new)."""
        self._start, self._num_new = start, num_new
        self._by_layer.clear()

    def put(self, layer: int, votes: Tensor) -> None:
        """Keep a layer's votes [H_kv, T // VOTERS rounded up, C] of the running pass."""
        self._by_layer[layer] = votes

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on: without any of the pass's own there is nothing left."""
        if length <= self._start:
            self.forget()

    def forget(self) -> None:
        """Forget all, because the tokens behind are another text's."""
        self._by_layer.clear()

    def newest(self, layer: int, length: int, num_chunks: int) -> Tensor | None:
        """The attention of the last tokens before `length` to the first chunks, [H_kv, num_chunks] float32.

        Of at least VOTERS tokens if the pass had as many; up to VOTERS - 1 rejected ones behind them may have voted.
        None: the pass did not count, or ended before these tokens.
        """
        votes, last = self._by_layer.get(layer), length - self._start - 1
        if votes is None or not 0 <= last < self._num_new or votes.shape[2] < num_chunks:
            return None
        group = last // VOTERS
        first = group if group == 0 or last % VOTERS == VOTERS - 1 else group - 1
        return votes[:, first : group + 1, :num_chunks].sum(1)
