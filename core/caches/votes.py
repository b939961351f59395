"""Votes: how much attention each chunk got in the newest pass, added up while the pass attends.

Chunks are chosen by them, without another pass or landmarks (as in SpecAttn, arXiv 2602.07223, and SparseSpec,
arXiv 2512.01278).
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor


class Counted(NamedTuple):
    """What a pass attended to in one layer."""

    first: int  # the first token that voted; all behind it in the pass did
    group: int  # tokens whose votes are added
    votes: Tensor  # [H_kv, groups, C]


class Counting(NamedTuple):
    """How a layer counts what a pass attends to, while it attends."""

    chunk_size: int
    every: bool  # every row of a short pass votes; else the last VOTERS
    put: Callable[[Counted], None]  # takes the votes


class Votes:
    """Attention to each begun chunk in the newest pass, summed over a few tokens at a time, by layer."""

    def __init__(self) -> None:
        self.wanted = False  # whether layers on the device count, because chunks are chosen by their votes
        self._start = self._stop = 0
        self._by_layer: dict[int, Counted] = {}

    def open(self, start: int, num_new: int) -> None:
        """Announce a pass over tokens [start, start + num_new)."""
        self._start, self._stop = start, start + num_new
        self._by_layer.clear()

    def put(self, layer: int, counted: Counted) -> None:
        """Keep what a layer has counted in the running pass."""
        self._by_layer[layer] = counted

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on; if that is the whole pass, forget all."""
        if length <= self._start:
            self.forget()

    def forget(self, layers: Iterable[int] | None = None) -> None:
        """Forget the votes of these layers; None: of all, because another text follows."""
        for layer in [*self._by_layer] if layers is None else layers:
            self._by_layer.pop(layer, None)

    def at(self, length: int) -> dict[int, Tensor]:
        """The attention of the last tokens before `length`, by layer, [H_kv, C] in host memory."""
        found = {layer: self.newest(layer, length) for layer in self._by_layer}
        return {layer: votes.cpu() for layer, votes in found.items() if votes is not None}

    def restore(self, length: int, votes: dict[int, Tensor], device: torch.device) -> None:
        """Put back the result of `at` for this length."""
        self.open(length - 1, 1)
        self._by_layer = {layer: Counted(length - 1, 1, counts[:, None].to(device)) for layer, counts in votes.items()}

    def newest(self, layer: int, length: int, num_chunks: int | None = None) -> Tensor | None:
        """The attention of the last tokens before `length` to the first chunks, [H_kv, num_chunks]; or to all.

        The votes of at least a group of tokens, if the pass had as many; rejected tokens of that group may be among
        them. None: the pass did not count, or ended before these tokens.
        """
        counted, last = self._by_layer.get(layer), length - 1
        if counted is None or not counted.first <= last < self._stop or counted.votes.shape[2] < (num_chunks or 0):
            return None
        place, behind = divmod(last - counted.first, counted.group)
        first = place if place == 0 or behind == counted.group - 1 else place - 1
        return counted.votes[:, first : place + 1, :num_chunks].sum(1)
