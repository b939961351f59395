"""Engines over models with recurrent layers: texts, races, drafts and going back, against transformers' own text."""

from typing import Any, cast

import pytest
import torch
from torch import nn

from core.config import DraftConfig, EngineConfig, GenerationConfig, RetrievalConfig, SamplingParams
from core.engine import Engine
from core.errors import InvalidSetting, UnsupportedModel
from core.generation.events import Finished
from core.generation.loaded import LoadedModels
from core.kv_store.engine_store import BookStore
from core.kv_store.folder import BookFolder
from core.models.families import HYBRIDS
from core.models.head_layout import is_divisible
from core.models.hf_attention import ATTENTION_NAME
from core.models.loader import LoadedModel, dims_of
from core.models.rotary import KeyShift
from core.models.weights import prepared
from core.planning.plan import make_plan
from tests.core.models.tiny_families import tiny_family, twin_models
from tests.core.toys import CPU, MACHINE, Letters, last_event, random_prompt

LENGTH, WRITTEN = 200, 16
GREEDY = SamplingParams(temperature=0)


def loaded(family: str) -> tuple[LoadedModel, nn.Module]:
    """A target or draft, and the same model in transformers' own attention."""
    config = tiny_family(family)
    stock, ours = twin_models(config, ATTENTION_NAME)
    dims = dims_of(config, family, weight_bytes=1 << 20)
    return prepared(cast(Any, ours), dims, torch.float32, CPU), stock


def engine_of(family: str, placement: Any = "auto", draft: str | None = None) -> tuple[Engine, nn.Module]:
    target, stock = loaded(family)
    small = loaded(draft)[0] if draft else None
    wanted = EngineConfig(
        context=2048,
        prefill_chunk=64,
        placement=placement,
        gpu_memory_gib=None if placement == "auto" else 1.0,
        retrieval=RetrievalConfig(budget=128, chunk_size=8, local_window=64, query_window=8),
        draft=DraftConfig(window=128),
    )
    plan = make_plan(target.dims, small.dims if small else None, wanted, MACHINE)
    return Engine(wanted, plan, Letters(), LoadedModels(target=target, draft=small)), stock


def written(stock: nn.Module, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": WRITTEN, "do_sample": False}
    return cast("list[int]", cast(Any, stock).generate(ids, **options)[0].tolist()[len(prompt) :])


def answer(engine: Engine, prompt: list[int], method: str, *, boundary: int = 0, sampling: Any = GREEDY) -> Finished:
    config = GenerationConfig(max_new_tokens=WRITTEN, method=method, sampling=sampling, seed=3)
    return last_event(engine.generate(prompt, config, boundary=boundary))


@pytest.mark.parametrize("family", ["qwen3_next", "falcon_h1", "lfm2"])  # delta net, state space, convolution
def test_every_method_writes_what_transformers_writes(family: str) -> None:
    engine, stock = engine_of(family, draft="llama")
    prompt = random_prompt(LENGTH)
    wanted = written(stock, prompt)
    methods = ("autoregressive", "draft", "retrieval", "lookup", "triforce", "triforce-lookup")
    for method in methods:
        assert list(answer(engine, prompt, method).token_ids) == wanted, method
    configs = [GenerationConfig(max_new_tokens=WRITTEN, method=m, sampling=GREEDY) for m in (*methods, "streamingllm")]
    ended = {e.lane: e.event for e in engine.race(prompt, configs) if isinstance(e.event, Finished)}
    assert [list(ended[lane].token_ids) for lane in range(len(methods))] == [wanted] * len(methods)


def test_a_race_draws_what_each_lane_would_draw_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.generation.interleave.SLICE_SECONDS", 0.0)  # lanes change after every round
    engine, _ = engine_of("falcon_h1", draft="llama")
    prompt, sampling = random_prompt(LENGTH), SamplingParams(temperature=0.8)
    methods = ("autoregressive", "triforce", "retrieval", "retrieval", "h2o")
    alone = [answer(engine, prompt, method, sampling=sampling).token_ids for method in methods]
    configs = [GenerationConfig(max_new_tokens=WRITTEN, method=m, sampling=sampling, seed=3) for m in methods]
    ended = {e.lane: e.event for e in engine.race(prompt, configs) if isinstance(e.event, Finished)}
    assert [ended[lane].token_ids for lane in range(len(methods))] == alone


@pytest.mark.parametrize("family", sorted(HYBRIDS))
def test_a_plan_counts_states_and_the_rows_of_layers_that_attend(family: str) -> None:
    engine, _ = engine_of(family)
    full, dims = engine.full_cache, engine._models.target.dims
    for _ in engine.read(random_prompt(LENGTH)):
        pass
    assert full.state.nbytes == dims.state.nbytes(torch.float32) > 0
    inputs = 2 * dims.state.layers * 64 * dims.hidden_size * 4  # of a pass, in both caches
    assert engine.plan.bytes_of("running states") == (5 + 4) * full.state.nbytes + inputs  # on a processor with marks
    assert full.shape.num_layers == engine.plan.num_layers == len(dims.attending)
    rows = 2 * full.shape.num_kv_heads * full.shape.head_dim * 4 * len(dims.attending)
    assert engine.info.kv_bytes_per_token == rows


def test_another_question_begins_where_the_book_ends() -> None:
    engine, stock = engine_of("qwen3_next")
    book, end = random_prompt(1000), 1000
    first = [*book, *random_prompt(40, seed=1)]
    answer(engine, first, "lookup", boundary=end)
    for seed in (2, 3, 4, 5, 6, 7):  # more than there are marks
        prompt = [*book, *random_prompt(40, seed=seed)]
        again = answer(engine, prompt, "lookup", boundary=end)
        assert again.reused_tokens == end and list(again.token_ids) == written(stock, prompt)
    followed = [*prompt, *again.token_ids, *random_prompt(20, seed=8)]
    assert answer(engine, followed, "lookup", boundary=end).reused_tokens >= len(prompt) + len(again.token_ids) - 1
    assert answer(engine, followed, "lookup", boundary=end).reused_tokens == len(followed) - 1


def test_a_reading_that_was_cancelled_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, stock = engine_of("falcon_h1")
    prompt = random_prompt(LENGTH)
    reading = engine.read(prompt)
    for _ in range(3):
        next(reading)
    cast(Any, reading).close()
    ended = answer(engine, prompt, "retrieval")
    assert ended.reused_tokens == 128 and list(ended.token_ids) == written(stock, prompt)


def test_what_does_not_go_with_recurrent_layers_is_refused(tmp_path: Any) -> None:
    engine, _ = engine_of("falcon_h1")
    with pytest.raises(InvalidSetting, match="recurrent layers are not kept"):
        BookStore(cast(Any, engine), BookFolder(tmp_path))
    target, _ = loaded("falcon_h1")
    with pytest.raises(UnsupportedModel, match="can be moved"):
        KeyShift.of(target.module, target.shape)
    assert not is_divisible(tiny_family("falcon_h1")) and not target.dims.plain and not target.dims.layerwise
    for family in ("bamba", "falcon_h1", "granitemoehybrid"):  # a token alone is not clamped in transformers
        dims_of(tiny_family(family, time_step_limit=(0.0, float("inf"))), "x", weight_bytes=0)
        with pytest.raises(UnsupportedModel, match="time_step_limit"):
            dims_of(tiny_family(family, time_step_limit=(0.0, 0.05)), "x", weight_bytes=0)
    with pytest.raises(UnsupportedModel, match="recurrent layers alone"):
        dims_of(tiny_family("qwen3_next", layer_types=["linear_attention"] * 2), "x", weight_bytes=0)
    with pytest.raises(UnsupportedModel, match="layers of the type sliding_attention"):
        dims_of(
            tiny_family("lfm2", layer_types=["conv", "sliding_attention", "full_attention"], num_hidden_layers=3),
            "x",
            weight_bytes=0,
        )
