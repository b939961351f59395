"""Engines over models with windowed and recurrent layers: texts, races and going back, against transformers' text."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from core.caches.layer_storage import KEPT_ROWS
from core.config import GenerationConfig, PlacementWish, SamplingParams
from core.engine import Engine
from core.errors import InvalidSetting, UnsupportedModel
from core.kv_store.engine_store import BookStore
from core.kv_store.folder import BookFolder
from core.models.cached_model import CachedModel
from core.models.families import HYBRIDS
from core.models.param_count import is_divisible
from core.models.rotary import KeyShift
from core.planning.choices import Choice
from core.planning.sizes import REMEMBERED
from tests.core import toys
from tests.core.models.tiny_families import family_engine, tiny_family, transformers_text
from tests.core.toys import FIXED, ends, last_event, random_prompt

LENGTH, WRITTEN = 220, 6

answer = partial(toys.answer, tokens=WRITTEN)
written = partial(transformers_text, num_tokens=WRITTEN)
settings = partial(GenerationConfig, max_new_tokens=WRITTEN, speculation=FIXED)


def raced(engine: Engine, prompt: list[int], methods: Sequence[str], **fields: Any) -> list[tuple[int, ...]]:
    """What each lane of a race writes."""
    race = engine.race(prompt, [settings(method=method, **fields) for method in methods])
    return [ended.token_ids for ended in ends(race)]


@pytest.mark.parametrize(
    ("family", "placement", "draft"),
    [
        ("gemma3_text", "auto", None),
        ("gemma3n_text", "auto", None),
        ("gemma4_text", "offloaded", None),
        ("gpt_oss", "offloaded", None),
        ("mistral", "auto", None),
        ("qwen3_next", "auto", "llama"),  # delta net
        ("falcon_h1", "auto", "llama"),  # state space
        ("lfm2", "auto", "llama"),  # convolution
    ],
)
def test_every_method_writes_what_transformers_writes(family: str, placement: PlacementWish, draft: str | None) -> None:
    engine, stock = family_engine(family, placement, draft)
    prompt = random_prompt(LENGTH)
    wanted = written(stock, prompt)
    methods = ["autoregressive", "retrieval", "lookup", *(("draft", "triforce", "triforce-lookup") if draft else ())]
    for method in methods:
        assert answer(engine, prompt, method).token_ids == wanted, method
    lanes = raced(engine, prompt, [*methods, *(("streamingllm",) if draft else ())])
    assert lanes[: len(methods)] == [wanted] * len(methods)


# -------------------- windows


@pytest.mark.parametrize("family", ["gemma3_text", "mistral"])  # windows in some layers, in all
def test_going_back_further_than_windows_are_kept_reads_again(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.caches.full.FORGETTABLE", 32)
    engine, stock = family_engine(family)
    prompt = random_prompt(LENGTH)
    longer = [*prompt, *random_prompt(200, seed=1)]
    answer(engine, prompt, "autoregressive")
    answer(engine, longer, "autoregressive")
    asked_again = answer(engine, [*prompt, *random_prompt(30, seed=2)], "autoregressive")
    assert asked_again.reused_tokens == LENGTH - 1, "the end of the first prompt is remembered"
    between = answer(engine, [*prompt[:200], *random_prompt(30, seed=3)], "autoregressive")
    assert between.reused_tokens == 0
    method = "retrieval" if family == "gemma3_text" else "lookup"
    for text in (longer, [*prompt[:200], *random_prompt(30, seed=3)]):
        assert answer(engine, text, method).token_ids == written(stock, text)


@pytest.mark.parametrize("family", ["gemma3n_text", "gemma4_text"])
def test_layers_without_keys_of_their_own_read_those_of_an_earlier_layer_again(family: str) -> None:
    """Three of six layers, one of them of the only layer that attends to all tokens."""
    engine, stock = family_engine(family, "offloaded")
    prompt = random_prompt(900)
    assert answer(engine, prompt, "autoregressive").token_ids == written(stock, prompt)
    full = engine.full_cache
    shape, block = full.shape, engine.plan.sizes.block_rows(2048)
    assert (shape.num_layers, len(shape.full_layers), engine.target.dims.num_layers) == (3, 1, 6)
    assert full.link_bytes == 2 * ((full.length - KEPT_ROWS) // block) * block * shape.layer_bytes > 0
    assert full.nbytes == 2 * full.length * shape.layer_bytes + shape.window_bytes(full.length)
    assert shape.window_bytes(500) == 15 * (1 + 3) * shape.window_layer_bytes  # of two layers, one is read three times
    assert engine.plan.sizes.layers == 1 and engine.info.kv_bytes_per_token == shape.layer_bytes


@pytest.mark.parametrize("family", ["gemma3_text", "gemma4_text", "mistral"])
def test_no_question_reads_the_book_again_whatever_was_asked_between(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Questions and answers longer than what windows can forget; a race and a comparison among them."""
    monkeypatch.setattr("core.caches.full.FORGETTABLE", 32)
    engine, stock = family_engine(family)
    fed, feed = list[int](), CachedModel.feed_tokens

    def counting(self: CachedModel, token_ids: Any, start: int, keep: int) -> Any:
        fed.extend(range(start, start + len(token_ids)) if self.name == "full" else ())
        return feed(self, token_ids, start, keep)

    monkeypatch.setattr(CachedModel, "feed_tokens", counting)
    book, method = random_prompt(900), "lookup" if family == "mistral" else "retrieval"
    config = settings(method=method)
    for number, size in enumerate((200, 30, 5, 90, 150, 2)):
        prompt = [*book, *random_prompt(size, seed=10 + number)]
        last = last_event(engine.generate(prompt, config, boundary=len(book)))
        assert number == 0 or last.reused_tokens >= len(book)
        if number in (2, 5):
            assert last.token_ids == written(stock, prompt)
        if number == 1:
            other = [*book, *random_prompt(70, seed=5)]
            list(engine.race(other, [config, replace(config, method="autoregressive")], boundary=len(book)))
            engine.compare(other, [3, 4, 5], [3, 4, 6])
            for turn in range(4):  # a conversation that grows
                other += random_prompt(100, seed=20 + turn)
                list(engine.read(other))
    assert max(Counter(token for token in fed if token < len(book)).values()) == 1


@pytest.mark.parametrize("family", ["gemma3_text", "gemma4_text"])
def test_what_is_remembered_of_windows_is_planned(family: str) -> None:
    engine, _ = family_engine(family)
    for number in range(5):
        list(engine.read(random_prompt(100 + 50 * number)))
    marks, *others = (window._marks for window in engine.full_cache.windows.values())
    held = sum(rows.k.nbytes + rows.v.nbytes for kept in (marks, *others) for rows in kept.values())
    planned = engine.plan.sizes.remembered_bytes(2048)
    assert len(marks) == 3 and min(marks) == 99 and held <= planned == engine.plan.bytes_of(REMEMBERED)
    assert held > 0.9 * planned
    on_gpu = replace(engine.plan, device=Choice("cuda", "chosen"))
    assert [row.size_bytes for row in on_gpu.sizes.host_rows(2048, 1)] == [planned]
    assert REMEMBERED not in [row.name for row in on_gpu.sizes.device_rows(2048, 1)]
    needed = planned + on_gpu.sizes.host_bytes(2048, 0)
    assert [on_gpu.sizes.layers_within(2048, 0, 1 << 30, room) for room in (needed, needed - 1)] == [0, None]


# -------------------- running states


def test_a_race_draws_what_each_lane_would_draw_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.generation.interleave.SLICE_SECONDS", 0.0)  # lanes change after every round
    engine, _ = family_engine("falcon_h1", draft="llama")
    prompt, sampled = random_prompt(LENGTH), {"sampling": SamplingParams(temperature=0.8), "seed": 3}
    methods = ("autoregressive", "triforce", "retrieval", "retrieval", "h2o")
    alone = [answer(engine, prompt, method, **sampled).token_ids for method in methods]
    assert raced(engine, prompt, methods, **sampled) == alone


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


def test_a_reading_that_was_cancelled_goes_on() -> None:
    engine, stock = family_engine("falcon_h1")
    prompt = random_prompt(LENGTH)
    reading = engine.read(prompt)
    for _ in range(3):
        next(reading)
    reading.close()
    ended = answer(engine, prompt, "retrieval")
    assert ended.reused_tokens == 128 and ended.token_ids == written(stock, prompt)


def test_what_does_not_go_with_recurrent_layers_is_refused(tmp_path: Path) -> None:
    engine, _ = family_engine("falcon_h1")
    with pytest.raises(InvalidSetting, match="recurrent layers are not kept"):
        BookStore(engine, BookFolder(tmp_path))
    target = engine._models.target
    with pytest.raises(UnsupportedModel, match="can be moved"):
        KeyShift.of(target.module, target.shape)
    assert not is_divisible(tiny_family("falcon_h1")) and not target.dims.plain and not target.dims.layerwise
