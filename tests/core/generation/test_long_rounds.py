"""The longest rounds, 48 guesses and the token behind them: what a rewind leaves of queries, rows and blocks."""

import pytest
import torch
from torch import Tensor

from core.caches.full import FullCache
from core.caches.full_parts import Offload
from core.caches.layer_storage import SHORT_PASS, OffloadedLayer
from core.caches.query_log import QUERY_LOG
from core.caches.retrieval import RetrievalCache
from core.config import MOST_GUESSES_OVER_LINK, MOST_QUERIES, SamplingParams, SpeculationConfig
from core.generation.decode_loop import LONGEST_ROUND
from tests.core.toys import answer, random_prompt, tiny_engine, tiny_shape

SHAPE = tiny_shape(layers=2, heads=4, kv_heads=2, dim=4)
LONGEST = MOST_GUESSES_OVER_LINK + 1  # rows of a round's verification
LONG = SpeculationConfig(gamma1=3, gamma2=48, max_gamma2=48, adaptive=False)
ROUNDS = 40
PROMPT = random_prompt(500)


class Asked:
    """A full cache, and every query of committed tokens in a plain list."""

    def __init__(self, full: FullCache) -> None:
        self.full, self.queries = full, torch.empty(SHAPE.num_layers, SHAPE.num_heads, 0, SHAPE.head_dim)
        self._passes = 0

    def round(self, rows: int, accepted: int) -> None:
        """A pass over so many tokens, of which the first and `accepted` guesses stay."""
        start, self._passes = self.full.length, self._passes + 1
        generator = torch.Generator().manual_seed(self._passes)
        q = torch.randn(SHAPE.num_layers, SHAPE.num_heads, rows, SHAPE.head_dim, generator=generator)
        self.full.begin(start, rows)
        for layer in range(SHAPE.num_layers):
            k = q[layer : layer + 1, : SHAPE.num_kv_heads]
            self.full.stage(layer, k, k)
            self.full.attend(layer, q[layer : layer + 1], 0.5)
        self.full.commit(rows)
        self.full.truncate(start + 1 + accepted)
        self.queries = torch.cat((self.queries, q[:, :, : 1 + accepted]), 2)

    def newest(self, layer: int, count: int) -> Tensor:
        return self.queries[layer, :, -count:]


@pytest.mark.parametrize(("rows", "num_resident"), [(25, 2), (33, 0), (LONGEST, 0), (LONGEST_ROUND, 2)])
def test_a_rewind_behind_the_longest_round_keeps_every_query_that_votes(rows: int, num_resident: int) -> None:
    offload = Offload(num_resident=num_resident, block_rows=64)
    asked = Asked(FullCache(SHAPE, 4096, 8, offload=offload))
    asked.round(300, 299)
    generator = torch.Generator().manual_seed(rows)
    for number in range(ROUNDS):
        accepted = 0 if number % 3 == 0 else int(torch.randint(0, rows, (), generator=generator))
        asked.round(rows, accepted)
        for layer in range(SHAPE.num_layers):
            found = asked.full.recent_queries(layer, MOST_QUERIES)
            assert torch.equal(found, asked.newest(layer, MOST_QUERIES)), (number, accepted)


def test_a_round_that_were_longer_would_lose_queries() -> None:
    """The bound is exact: two rows more than a round may have take one of the queries."""
    asked = Asked(FullCache(SHAPE, 1024, 8))
    asked.round(300, 299)
    asked.round(QUERY_LOG - MOST_QUERIES + 2, 0)
    assert asked.full.recent_queries(0, MOST_QUERIES).shape[1] == MOST_QUERIES - 1


def test_the_longest_round_is_short_for_every_store_and_fits_the_end_of_the_context() -> None:
    assert min(LONGEST_ROUND, SHORT_PASS, QUERY_LOG - MOST_QUERIES) >= LONGEST


@pytest.mark.parametrize("cpu_attention_share", [None, pytest.param(0.5, marks=pytest.mark.slow)])
def test_rounds_of_48_guesses_write_plain_text_and_choose_by_all_queries(
    cpu_attention_share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    offload = Offload(num_resident=0, block_rows=64)
    engine = tiny_engine(
        noise=0.0, budget=384, offload=offload, query_window=MOST_QUERIES, cpu_attention_share=cpu_attention_share
    )
    plain = answer(engine, PROMPT, "autoregressive", 12)
    voted, ask = [], FullCache.recent_queries

    def recent_queries(self: FullCache, layer: int, num_queries: int) -> Tensor:
        found = ask(self, layer, num_queries)
        voted.append((num_queries, found.shape[1]))
        return found

    def slide(self: RetrievalCache) -> None:
        raise AssertionError("recent rows must not be dropped between two selections")

    lowest = []
    truncate = OffloadedLayer.truncate

    def watched(self: OffloadedLayer, length: int) -> None:
        lowest.append(length - self._offloaded)
        truncate(self, length)

    for _ in engine.read(PROMPT):
        pass
    monkeypatch.setattr(FullCache, "recent_queries", recent_queries)
    monkeypatch.setattr(RetrievalCache, "_slide", slide)
    monkeypatch.setattr(OffloadedLayer, "truncate", watched)
    fast = answer(engine, PROMPT, "triforce", 12, speculation=LONG)
    assert fast.token_ids == plain.token_ids
    level2 = fast.stats.level2
    assert level2 is not None and level2.gamma_mean == 48 and 0 < (level2.acceptance or 0) < 1, "verdicts must be mixed"
    assert fast.stats.full_passes < plain.stats.full_passes
    assert voted and set(voted) == {(MOST_QUERIES, MOST_QUERIES)}
    assert min(lowest) >= 0, "forgetting guesses never reaches back into a block on the host"


def test_an_answer_of_long_rounds_ends_where_the_context_does() -> None:
    engine = tiny_engine(noise=0.02, context=512, offload=Offload(num_resident=0, block_rows=64))
    sampling = SamplingParams(temperature=1.0)
    finished = answer(engine, random_prompt(442), "triforce", 100, speculation=LONG, sampling=sampling)
    assert finished.stop_reason == "context_full"
    assert len(finished.token_ids) >= 512 - LONGEST_ROUND - 442 + 1
