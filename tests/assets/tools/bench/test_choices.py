"""The choices that are only measured: one that stays for an answer, and one that knows what comes."""

from dataclasses import replace

import torch
from torch import Tensor

from assets.tools.bench.choices import AHEAD, Hindsight
from core.caches.policies import SELECTION_POLICIES
from core.config import RetrievalConfig

CONFIG = RetrievalConfig(budget=256, local_window=32, query_window=2)


class Full:
    """As much of a full cache as a choice sees: queries of tokens, one layer, two heads, and random keys."""

    def __init__(self, text: int = 0) -> None:
        self.length, self.chunk_size = 0, 8
        self.shape = type("Shape", (), {"full_layers": [0], "num_kv_heads": 2, "device": torch.device("cpu")})
        self.rewrite(text)

    def rewrite(self, text: int) -> None:
        torch.manual_seed(text)
        self.all_queries, self.all_keys = torch.randn(2, 400, 16), torch.randn(2, 400, 16)

    def recent_queries(self, layer: int, count: int) -> Tensor:
        return self.all_queries[:, max(0, self.length - count) : self.length]

    def keys(self, layer: int, count: int) -> Tensor:
        return self.all_keys[:, :count]


def test_hindsight_takes_the_queries_to_come_once_it_has_seen_them() -> None:
    full = Full()
    policy = Hindsight(full, CONFIG)  # type: ignore[arg-type]
    for length in (200, 210, 220):
        full.length = length
        assert torch.equal(policy.queries(0), full.all_queries[:, length - 2 : length]), "nothing is known yet"
    full.length = 205
    assert torch.equal(policy.queries(0), full.all_queries[:, 205 : 205 + AHEAD])
    full.length = 216
    assert torch.equal(policy.queries(0), full.all_queries[:, 216:220]), "as many as are known"
    chosen = policy.choose(20, 0.25)
    exact = replace(CONFIG, policy="attention")
    assert chosen.shape == (1, 2, 20) and not torch.equal(
        policy.score(0, 20, 0.25),
        SELECTION_POLICIES["attention"](full, exact).score(0, 20, 0.25),  # type: ignore[arg-type]
    )
    full.rewrite(1)
    full.length = 205
    assert torch.equal(policy.queries(0), full.all_queries[:, 203:205]), "another text: what was noted is forgotten"
