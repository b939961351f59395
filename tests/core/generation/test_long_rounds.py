"""The longest rounds, 48 guesses and the token behind them: what a rewind leaves of queries, rows and blocks."""

from typing import Any

import pytest
import torch
from torch import Tensor

from core.caches.full import FullCache
from core.caches.full_parts import Offload
from core.caches.layer_storage import SHORT_PASS, OffloadedLayer
from core.caches.query_log import QUERY_LOG
from core.caches.retrieval import RetrievalCache
from core.config import MOST_GUESSES_OVER_LINK, MOST_QUERIES, SpeculationConfig
from core.generation.decode_loop import LONGEST_ROUND
from tests.core.caches.passes import Text, run_pass
from tests.core.toys import answer, random_prompt, tiny_engine, tiny_shape

SHAPE = tiny_shape(layers=2, heads=4, kv_heads=2, dim=4)
LONGEST = MOST_GUESSES_OVER_LINK + 1  # rows of a round's verification
LONG = SpeculationConfig(gamma1=3, gamma2=48, max_gamma2=48, adaptive=False)
HOST = Offload(num_resident=0, block_rows=64)
TEXT, OTHER = Text(SHAPE, tokens=3000), Text(SHAPE, 1, tokens=3000)


def verified(full: FullCache, rows: int, accepted: int) -> int:
    """A pass over so many tokens, of which the first and `accepted` guesses stay; the new length."""
    length = full.length + 1 + accepted
    run_pass(TEXT.then(OTHER, length), rows, full)
    full.truncate(length)
    return length


@pytest.mark.parametrize(("rows", "num_resident"), [(25, 2), (33, 0), (LONGEST, 0), (LONGEST_ROUND, 2)])
def test_a_rewind_behind_the_longest_round_keeps_every_query_that_votes(rows: int, num_resident: int) -> None:
    full = FullCache(SHAPE, 4096, 8, offload=Offload(num_resident=num_resident, block_rows=64))
    verified(full, 300, 299)
    generator = torch.Generator().manual_seed(rows)
    for number in range(40):
        accepted = 0 if number % 3 == 0 else int(torch.randint(0, rows, (), generator=generator))
        length = verified(full, rows, accepted)
        for layer in range(SHAPE.num_layers):
            expected = TEXT.q[layer, :, length - MOST_QUERIES : length]
            assert torch.equal(full.recent_queries(layer, MOST_QUERIES), expected), (number, accepted)


def test_the_longest_round_is_short_for_every_store_and_one_that_were_longer_would_lose_queries() -> None:
    """The bound is exact: two rows more than a round may have take one of the queries."""
    assert min(LONGEST_ROUND, SHORT_PASS, QUERY_LOG - MOST_QUERIES) >= LONGEST
    full = FullCache(SHAPE, 1024, 8)
    verified(full, 300, 299)
    verified(full, QUERY_LOG - MOST_QUERIES + 2, 0)
    assert full.recent_queries(0, MOST_QUERIES).shape[1] == MOST_QUERIES - 1


@pytest.mark.parametrize("cpu_attention_share", [None, pytest.param(0.5, marks=pytest.mark.slow)])
def test_rounds_of_48_guesses_write_plain_text_and_choose_by_all_queries(
    cpu_attention_share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: Any = {"query_window": MOST_QUERIES, "cpu_attention_share": cpu_attention_share}
    engine, prompt = tiny_engine(noise=0.0, budget=384, offload=HOST, **settings), random_prompt(500)
    plain = answer(engine, prompt, "autoregressive", 12)
    voted, lowest, ask, truncate = set(), [], FullCache.recent_queries, OffloadedLayer.truncate

    def recent_queries(self: FullCache, layer: int, num_queries: int) -> Tensor:
        found = ask(self, layer, num_queries)
        voted.add((num_queries, found.shape[1]))
        return found

    def slide(self: RetrievalCache) -> None:
        raise AssertionError("recent rows must not be dropped between two selections")

    def watched(self: OffloadedLayer, length: int) -> None:
        lowest.append(length - self._offloaded)
        truncate(self, length)

    list(engine.read(prompt))
    monkeypatch.setattr(FullCache, "recent_queries", recent_queries)
    monkeypatch.setattr(RetrievalCache, "_slide", slide)
    monkeypatch.setattr(OffloadedLayer, "truncate", watched)
    fast = answer(engine, prompt, "triforce", 12, speculation=LONG)
    level2 = fast.stats.level2
    assert fast.token_ids == plain.token_ids and fast.stats.full_passes < plain.stats.full_passes
    assert level2 is not None and level2.gamma_mean == 48 and 0 < (level2.acceptance or 0) < 1, "verdicts must be mixed"
    assert voted == {(MOST_QUERIES, MOST_QUERIES)}
    assert min(lowest) >= 0, "forgetting guesses never reaches back into a block on the host"
