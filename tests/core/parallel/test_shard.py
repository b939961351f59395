"""Shares of a model against the whole one, without processes: ranks are threads that add up at a barrier."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Barrier, BrokenBarrierError
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from core.caches.base import KVShape
from core.caches.full import FullCache
from core.caches.tokens import Context
from core.config import RetrievalConfig
from core.engine import NEAR_TIE_GAP
from core.errors import UnsupportedModel
from core.models.cached_model import CachedModel
from core.models.graphed import GraphedPasses
from core.models.loader import dims_of
from core.models.param_count import SHARED, is_divisible
from core.ops.backend import STOCK
from core.ops.graphs import WARM_UP, Graphs
from core.parallel import worker
from core.parallel.shard import SharedInputs, cut
from core.parallel.worker import Share
from tests.core.models.tiny_families import FULL, tiny_family
from tests.core.toys import CPU, FAMILIES, random_prompt, tiny_config, tiny_model

# Ranks add in another order than one process does. If no logit moves by more than half a near tie's gap, a greedy
# choice can differ only where the two best are a near tie.
LOGIT_TOLERANCE = NEAR_TIE_GAP[torch.float32] / 2


class Sums:
    """Adds tensors of threads, each of which calls `add` with its own."""

    def __init__(self, num_ranks: int, patience: float = 30) -> None:
        self._barrier, self._given = Barrier(num_ranks, timeout=patience), cast(list[Tensor], [None] * num_ranks)

    def add(self, x: Tensor, rank: int) -> None:
        self._given[rank] = x.clone()
        self._barrier.wait()
        total = torch.stack(self._given).sum(0)
        self._barrier.wait()  # nobody gives anew before all have read
        x.copy_(total)


def shape_of(config: PreTrainedConfig, num_ranks: int = 1) -> KVShape:
    """Of the caches of one rank."""
    dims = dims_of(config, "toy", weight_bytes=0)
    heads = dims.num_heads // num_ranks, dims.num_kv_heads // num_ranks
    return KVShape(dims.num_layers, *heads, dims.head_dim, torch.float32, CPU)


def logits_of(config: PreTrainedConfig, num_ranks: int, add: Callable[[Tensor, int], None]) -> list[Tensor]:
    """Logits of some chunks and some rows at once on each rank, [ranks] of [20, V]."""
    tokens = Context(random_prompt(90))

    def run(rank: int) -> Tensor:
        if num_ranks > 1:
            cut(models[rank], rank, num_ranks, partial(add, rank=rank))
        share = CachedModel("full", models[rank], FullCache(shape_of(config, num_ranks), 128, 8), CPU)
        share.feed(tokens, range(0, 50), 1)
        share.feed(tokens, range(50, 70), 1)
        return share.logits(tokens, 20)

    models: list[nn.Module] = [tiny_model(config, 3) for _ in range(num_ranks)]  # seeds are global: one after another
    for name, part in (named for model in models for named in model.named_parameters()):
        if name.endswith("bias"):  # which transformers fills with zeros
            part.data.copy_(torch.linspace(-0.1, 0.1, part.numel()))
    with ThreadPoolExecutor(num_ranks) as pool:
        return list(pool.map(run, range(num_ranks)))


def without_windows(family: str) -> PreTrainedConfig:
    if family not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {family}")
    config = tiny_family(family)
    if is_divisible(config):
        return config
    return tiny_family(family, sliding_window=None, use_sliding_window=False, layer_types=[FULL] * 2)


TOY = tiny_config(kv_heads=2)
CASES = [(partial(tiny_config, family, kv_heads=kv_heads), 2) for family in FAMILIES for kv_heads in (4, 2)]
CASES += [
    (partial(tiny_config, intermediate_size=97), 4),
    (partial(tiny_config, kv_heads=2, attention_bias=True, mlp_bias=True), 2),
    *((partial(without_windows, family), 2) for family in sorted(SHARED)),
]


@pytest.mark.parametrize(("make", "num_ranks"), CASES)
def test_shares_together_compute_what_the_whole_model_does(
    make: Callable[[], PreTrainedConfig], num_ranks: int
) -> None:
    config = make()
    assert is_divisible(config)
    (whole,) = logits_of(config, 1, lambda x, rank: None)
    shares = logits_of(config, num_ranks, Sums(num_ranks).add)
    assert float((shares[0] - whole).abs().max()) < LOGIT_TOLERANCE
    assert all(torch.equal(share, shares[0]) for share in shares), "sums have the same bits on every rank"


def test_a_missing_sum_would_be_noticed() -> None:
    """Negative control: ranks that do not add up are far off."""
    (whole,) = logits_of(TOY, 1, lambda x, rank: None)
    assert float((logits_of(TOY, 2, lambda x, rank: None)[0] - whole).abs().max()) > 100 * LOGIT_TOLERANCE


class WarmGraphs(Graphs):
    """Calls each new function twice, as a recording does."""

    def prepare(self, key: Hashable, function: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], Tensor] | None:
        for _ in range(0 if key in self else WARM_UP):
            function(*inputs)
        return super().prepare(key, function, *inputs)


def recorded_passes(sums: Sums, monkeypatch: pytest.MonkeyPatch, *, told: bool) -> Tensor:
    """Logits [10, V] of recorded passes of one token, whose recordings rank 0 forgets once.

    `told`: it says when it records.
    """
    models = [tiny_model(TOY, 3) for _ in range(2)]
    for rank, model in enumerate(models):
        cut(model, rank, 2, partial(sums.add, rank=rank))
    monkeypatch.setattr(worker, "recorder", lambda group: WarmGraphs(CPU, record=False))
    shape = shape_of(TOY, 2)
    chosen = RetrievalConfig(budget=64, chunk_size=8, local_window=32)
    assignment = SimpleNamespace(retrieval=chosen, context=128, possible=128, offload=None)
    other = Share(cast(Any, assignment), cast(Any, SimpleNamespace(module=models[1], shape=shape)), STOCK, cast(Any, 0))
    other.record()
    full, graphs, tokens = FullCache(shape, 128, 8), WarmGraphs(CPU, record=False), random_prompt(60)
    with ThreadPoolExecutor(1) as pool:

        @contextmanager
        def lead(name: str, start: int, tokens: Sequence[int], anew: bool) -> Iterator[None]:
            feeding = pool.submit(other.feed, name, start, tuple(tokens), anew and told)
            yield
            feeding.result()

        graphed = GraphedPasses("full", models[0], full, graphs)
        rank0, found = CachedModel("full", models[0], full, CPU, lead, graphed=graphed), []
        rank0.feed_tokens(tokens[:50], 0, 1)
        for at in range(50, 60):
            if at == 55:
                graphs.forget("full")
            found.append(rank0.feed_tokens(tokens[at : at + 1], at, 1))
    return torch.cat(found)


def test_ranks_record_and_replay_the_same_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording makes further passes, and every rank must take part in their sums."""
    cache = FullCache(shape_of(TOY), 128, 8)
    whole = CachedModel("full", tiny_model(TOY, 3), cache, CPU).logits(Context(random_prompt(60)), 10)
    found = recorded_passes(Sums(2), monkeypatch, told=True)
    assert float((found - whole).abs().max()) < LOGIT_TOLERANCE
    with pytest.raises(BrokenBarrierError):  # negative control
        recorded_passes(Sums(2, patience=0.5), monkeypatch, told=False)


def test_each_rank_holds_its_part_of_every_layer_and_no_more() -> None:
    whole, share = (tiny_model(TOY, 3) for _ in range(2))
    cut(share, 1, 2, lambda x: None)
    sizes = {name: part.numel() for name, part in whole.named_parameters()}
    kept = {name.replace(".linear.", "."): part.numel() for name, part in share.named_parameters()}
    assert kept.keys() == sizes.keys()
    assert {name for name in sizes if 2 * kept[name] == sizes[name]} == {name for name in sizes if "_proj" in name}
    assert all(kept[name] == sizes[name] for name in sizes if "_proj" not in name)
    assert sum(isinstance(part, SharedInputs) for part in share.modules()) == 2 * 2


def test_families_whose_layers_are_fused_are_refused() -> None:
    for fused in (cast(Any, AutoConfig).for_model("phi3"), tiny_family("cohere", use_qk_norm=True)):
        assert not is_divisible(fused)
    model = tiny_model(TOY, 3)
    cast(Any, model).config.base_model_tp_plan = None
    with pytest.raises(UnsupportedModel, match="cannot be shared between GPUs"):
        cut(model, 0, 2, lambda x: None)
