"""Ways to choose chunks that are measured only: the choice of the paper, and choices with the attention to come."""

import torch
from torch import Tensor

from core.caches.full import FullCache
from core.caches.policies import ExactAttention, TopChunks, register_policy
from core.config import RetrievalConfig

ONCE, HINDSIGHT = "once", "hindsight"
AHEAD = 8  # tokens whose attention hindsight knows: about a round
MOST_A_ROUND = 64  # tokens that one answer adds between two choices, at most


class ChosenOnce(TopChunks):
    """Chooses at the end of the prompt and keeps to it for the whole answer, as TriForce was published."""

    def __init__(self, full: FullCache, config: RetrievalConfig) -> None:
        super().__init__(full, config)
        self._length, self._chosen = 0, torch.empty(0, dtype=torch.int64)

    def choose(self, num_eligible: int, scaling: float) -> Tensor:
        """[L, H_kv, n] int64: chosen anew unless the same answer goes on."""
        goes_on = self._length < self.full.length <= self._length + MOST_A_ROUND
        self._length = self.full.length
        if not goes_on:
            self._chosen = super().choose(num_eligible, scaling)
        return self._chosen.clone()


class Hindsight(ExactAttention):
    """An oracle: the chunks that the next tokens will attend to most, once the same answer was written before.

    The first time it notes the queries, and chooses by the exact attention of the newest ones. Greedy answers only.
    """

    def __init__(self, full: FullCache, config: RetrievalConfig) -> None:
        super().__init__(full, config)
        self._noted: dict[int, dict[int, Tensor]] = {}  # by layer and token, [H, D]

    def queries(self, layer: int) -> Tensor:
        """Queries of the tokens to come if they are known, else of the newest, [H, W, D]."""
        length, newest = self.full.length, self.full.recent_queries(layer, MOST_A_ROUND)
        noted = self._noted.setdefault(layer, {})
        known = noted.get(length - 1)
        if known is not None and not torch.allclose(known, newest[:, -1], rtol=1e-3, atol=1e-4):
            noted.clear()  # another text
        for place in range(newest.shape[1]):
            noted[length - newest.shape[1] + place] = newest[:, place].clone()
        ahead = [noted[token] for token in range(length, length + AHEAD) if token in noted]
        return torch.stack(ahead, 1) if ahead else newest[:, -self.config.query_window :]


register_policy(ONCE, ChosenOnce)
register_policy(HINDSIGHT, Hindsight)
