"""Engines over models with recurrent layers: texts, races, drafts and going back, against transformers' own text."""

from functools import partial
from typing import Any, cast

import pytest
import torch

from core.config import GenerationConfig, SamplingParams
from core.errors import InvalidSetting, UnsupportedModel
from core.generation.events import Finished
from core.kv_store.engine_store import BookStore
from core.kv_store.folder import BookFolder
from core.models.families import HYBRIDS
from core.models.head_layout import is_divisible
from core.models.loader import dims_of
from core.models.rotary import KeyShift
from tests.core import toys
from tests.core.models.tiny_families import family_engine, family_target, tiny_family, transformers_text
from tests.core.toys import FIXED, random_prompt

LENGTH, WRITTEN = 200, 8

answer = partial(toys.answer, tokens=WRITTEN)
written = partial(transformers_text, num_tokens=WRITTEN)


@pytest.mark.parametrize("family", ["qwen3_next", "falcon_h1", "lfm2"])  # delta net, state space, convolution
def test_every_method_writes_what_transformers_writes(family: str) -> None:
    engine, stock = family_engine(family, draft="llama")
    prompt = random_prompt(LENGTH)
    wanted = written(stock, prompt)
    methods = ("autoregressive", "draft", "retrieval", "lookup", "triforce", "triforce-lookup")
    for method in methods:
        assert answer(engine, prompt, method).token_ids == wanted, method
    configs = [
        GenerationConfig(max_new_tokens=WRITTEN, speculation=FIXED, method=m) for m in (*methods, "streamingllm")
    ]
    ended = {e.lane: e.event for e in engine.race(prompt, configs) if isinstance(e.event, Finished)}
    assert [ended[lane].token_ids for lane in range(len(methods))] == [wanted] * len(methods)


def test_a_race_draws_what_each_lane_would_draw_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.generation.interleave.SLICE_SECONDS", 0.0)  # lanes change after every round
    engine, _ = family_engine("falcon_h1", draft="llama")
    prompt, sampling = random_prompt(LENGTH), SamplingParams(temperature=0.8)
    methods = ("autoregressive", "triforce", "retrieval", "retrieval", "h2o")
    alone = [answer(engine, prompt, method, sampling=sampling, seed=3).token_ids for method in methods]
    configs = [
        GenerationConfig(max_new_tokens=WRITTEN, speculation=FIXED, method=m, sampling=sampling, seed=3)
        for m in methods
    ]
    ended = {e.lane: e.event for e in engine.race(prompt, configs) if isinstance(e.event, Finished)}
    assert [ended[lane].token_ids for lane in range(len(methods))] == alone


@pytest.mark.parametrize("family", sorted(HYBRIDS))
def test_a_plan_counts_states_and_the_rows_of_layers_that_attend(family: str) -> None:
    engine, _ = family_engine(family)
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
    engine, stock = family_engine("qwen3_next")
    book, end = random_prompt(1000), 1000
    first = [*book, *random_prompt(40, seed=1)]
    answer(engine, first, "lookup", boundary=end)
    for seed in (2, 3, 4, 5, 6, 7):  # more than there are marks
        prompt = [*book, *random_prompt(40, seed=seed)]
        again = answer(engine, prompt, "lookup", boundary=end)
        assert again.reused_tokens == end and again.token_ids == written(stock, prompt)
    followed = [*prompt, *again.token_ids, *random_prompt(20, seed=8)]
    assert answer(engine, followed, "lookup", boundary=end).reused_tokens >= len(prompt) + len(again.token_ids) - 1
    assert answer(engine, followed, "lookup", boundary=end).reused_tokens == len(followed) - 1


def test_a_reading_that_was_cancelled_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, stock = family_engine("falcon_h1")
    prompt = random_prompt(LENGTH)
    reading = engine.read(prompt)
    for _ in range(3):
        next(reading)
    cast(Any, reading).close()
    ended = answer(engine, prompt, "retrieval")
    assert ended.reused_tokens == 128 and ended.token_ids == written(stock, prompt)


def test_what_does_not_go_with_recurrent_layers_is_refused(tmp_path: Any) -> None:
    engine, _ = family_engine("falcon_h1")
    with pytest.raises(InvalidSetting, match="recurrent layers are not kept"):
        BookStore(cast(Any, engine), BookFolder(tmp_path))
    target, _ = family_target("falcon_h1")
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
