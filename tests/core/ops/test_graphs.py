"""Recorded passes: the function that would be recorded, called on its fixed buffers, against the eager twin."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import core.ops.graphs as graphs_module
from core.caches.query_log import QueryLog
from core.caches.tokens import Context
from core.config import SamplingParams
from core.decoding.sampling import Filters, as_tensor, to_probs, to_probs_by_tensor
from core.decoding.speculative import SampledModel
from core.engine import Engine
from core.models.cached_model import CachedModel
from core.models.graphed import GraphedPasses
from core.ops.attention import attend_reference
from core.ops.graphs import LONG, MOST_ROWS, Graphs, attend_bucketed, hidden_rows, masked_rows, padded_rows, whole_rows
from tests.core.toys import CPU, answer, random_prompt, tiny_engine, tiny_shape


def twin() -> Graphs:
    return Graphs(CPU, record=False)


# -------------------- attention of unknown length


def bucketed(q: Tensor, k: Tensor, v: Tensor, held: int) -> Tensor:
    """Attention of the T newest rows of a cache with `held` rows before them, as a recording has it."""
    num_new = q.shape[2]
    whole = whole_rows(held)
    count = min(masked_rows(whole, num_new), k.shape[2] - whole)
    hidden = hidden_rows(torch.tensor(held), num_new, whole, count)
    return attend_bucketed(q, k, v, 0.25, whole, hidden)


@pytest.mark.parametrize("kv_heads", [4, 1])
@pytest.mark.parametrize("held", [0, 1, 255, 256, 300, 700])
@pytest.mark.parametrize("num_new", [1, 4, 32])
def test_attention_in_a_bucket_equals_the_slow_twin(kv_heads: int, held: int, num_new: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 4, num_new, 16, generator=generator)
    k, v = 2 * torch.randn(2, 1, kv_heads, 800, 16, generator=generator)
    end = held + num_new
    expected = attend_reference(q, k[:, :, :end], v[:, :, :end], 0.25)
    assert torch.allclose(bucketed(q, k, v, held), expected, atol=1e-5)


def test_a_mask_one_row_off_would_be_noticed() -> None:
    """Negative control."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 4, 4, 16, generator=generator)
    k, v = 2 * torch.randn(2, 1, 4, 800, 16, generator=generator)
    expected = attend_reference(q, k[:, :, :304], v[:, :, :304], 0.25)
    for held in (299, 301):
        assert not torch.allclose(bucketed(q, k, v, held), expected, atol=1e-3)


def test_buckets_cover_every_length_and_are_few() -> None:
    keys = set()
    for held in range(0, 20_000, 7):
        for num_new in (1, 3, 32):
            padded, whole = padded_rows(num_new), whole_rows(held)
            assert num_new <= padded < 2 * num_new and whole <= held
            assert held + padded <= whole + masked_rows(whole, padded), (held, num_new)
            keys.add((padded, whole))
    assert len(keys) == 3 * (LONG // 256 + 12)


# -------------------- the runner


def test_inputs_are_copied_to_fixed_places_and_a_key_keeps_its_function() -> None:
    graphs, seen = twin(), []

    def double(x: Tensor) -> Tensor:
        seen.append(x.data_ptr())
        return 2 * x

    def never(x: Tensor) -> Tensor:
        raise AssertionError("the first function belongs to the key")

    for value, function in ((1.0, double), (2.0, never)):
        replay = graphs.prepare("double", function, torch.full((2,), value))
        assert replay is not None and replay().tolist() == [2 * value] * 2
    assert len(set(seen)) == 1 and graphs.num_kept == 1


def test_only_the_latest_recordings_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs_module, "MOST_GRAPHS", 2)
    graphs = twin()
    for key in ("a", "b", "a", "c"):
        graphs.prepare(key, torch.neg, torch.ones(1))
    made: list[str] = []

    def note(x: Tensor) -> Tensor:
        made.append("again")
        return x

    for key, times in (("a", 0), ("b", 1)):
        replay = graphs.prepare(key, note, torch.ones(1))
        assert replay is not None
        replay()
        assert len(made) == times


# -------------------- laws


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.05])
@pytest.mark.parametrize("top_k", [0, 1, 7, 50, 99])
def test_laws_with_parameters_as_a_tensor_equal_those_with_constants(
    temperature: float, top_p: float, top_k: int
) -> None:
    sampling = SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k)
    logits = 4 * torch.randn(5, 50, generator=torch.Generator().manual_seed(1))
    found = to_probs_by_tensor(logits, as_tensor(sampling, CPU), Filters.of(sampling, 50))
    expected = to_probs(logits, sampling)
    assert torch.equal(found > 0, expected > 0) and torch.allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_settings_with_other_filters_do_not_share_a_recording() -> None:
    """And those with the same filters do, whatever their numbers."""
    engine, graphs = tiny_engine(), twin()
    judge = CachedModel("full", engine._levels.parts.full.module, engine._levels.full, CPU)
    judge._graphed = GraphedPasses("full", judge.module, engine._levels.full, graphs)
    context = Context(random_prompt(20))
    for round_number in range(2):
        for top_k, top_p in ((0, 1.0), (5, 1.0), (0, 0.6), (9, 0.8)):
            sampling = SamplingParams(temperature=0.5 + round_number, top_k=top_k, top_p=top_p)
            if round_number:
                sampling = replace(sampling, top_k=top_k and top_k + 2, top_p=top_p and top_p**2)
            judge.cache.truncate(0)
            law = SampledModel(judge, sampling).probs(context, 2)
            judge.cache.truncate(0)
            expected = to_probs(judge.logits(context, 2), sampling)
            assert torch.equal(law > 0, expected > 0) and torch.allclose(law, expected, atol=1e-6), sampling
    assert len([key for key in graphs._kept if isinstance(key, tuple) and key[0] == "law"]) == 4


def test_queries_are_logged_by_tensor_as_by_slices() -> None:
    shape = tiny_shape()
    logs = [QueryLog(shape, 512, samples=True) for _ in range(2)]
    for log in logs:
        for rows in (*log._ring, *log._samples):
            rows.zero_()
    generator = torch.Generator().manual_seed(0)
    start = 0
    for num_new in (100, 1, 30, 64, 1, 1, 120):
        q = torch.randn(1, shape.num_heads, num_new, shape.head_dim, generator=generator)
        logs[0].write(0, start, q)
        logs[1].write_at(0, torch.arange(start, start + num_new), q)
        start += num_new
    assert torch.equal(logs[0].recent(0, start, 100), logs[1].recent(0, start, 100))
    assert torch.equal(logs[0].sampled(0, start)[0], logs[1].sampled(0, start)[0])


# -------------------- engines


def written(engine: Engine, method: str, sampling: SamplingParams, prompt: list[int]) -> tuple[int, ...]:
    return answer(engine, prompt, method, 24, sampling=sampling, seed=5).token_ids


@pytest.mark.parametrize(
    ("kv_heads", "sampling", "num_tokens"),
    [(4, SamplingParams(), 245), (2, SamplingParams(temperature=0.8, top_p=0.95), 500)],
)
def test_an_engine_on_fixed_buffers_writes_what_the_eager_one_writes(
    kv_heads: int, sampling: SamplingParams, num_tokens: int
) -> None:
    """Over bucket borders (256, 512), with rejected guesses, selections, slides of the draft's window."""
    eager, graphs = tiny_engine(kv_heads=kv_heads), twin()
    fixed = tiny_engine(kv_heads=kv_heads, graphs=graphs)
    for method in ("autoregressive", "triforce"):
        texts = [written(engine, method, sampling, random_prompt(num_tokens)) for engine in (fixed, eager)]
        assert texts[0] == texts[1], method
    assert graphs.num_kept > 5 and not graphs.failure and fixed.info.graphs.value


def test_passes_leave_the_same_rows_behind() -> None:
    eager, fixed = tiny_engine(), tiny_engine(graphs=twin())
    for engine in (eager, fixed):
        written(engine, "triforce", SamplingParams(), random_prompt(300))
    length = eager._levels.full.length
    assert fixed._levels.full.length == length
    for layer in range(2):
        for mine, theirs in zip(
            fixed._levels.full.rows(layer, 0, length), eager._levels.full.rows(layer, 0, length), strict=True
        ):
            assert torch.allclose(mine, theirs, atol=1e-4)
        both = [engine._levels.full.recent_queries(layer, 60) for engine in (fixed, eager)]
        assert torch.allclose(both[0], both[1], atol=1e-4)
    assert torch.allclose(
        fixed._levels.full.landmarks(0, length // 8), eager._levels.full.landmarks(0, length // 8), atol=1e-4
    )


def test_a_pass_that_reaches_the_end_of_the_buffers_or_is_long_runs_eagerly() -> None:
    engine, graphs = tiny_engine(context=300), twin()
    judge = engine._levels.parts.full
    passes = GraphedPasses("full", judge.module, engine._levels.full, graphs)
    context = Context(random_prompt(299))
    judge.feed(context, range(0, 290), 1)

    def prepared(num_new: int) -> Callable[[], Tensor] | None:
        return passes.prepare(torch.ones(num_new, dtype=torch.int64), engine._levels.full.begin(290, num_new), 1)

    assert prepared(8) is not None and prepared(9) is None
    judge.cache.truncate(100)
    assert passes.prepare(torch.ones(MOST_ROWS + 1, dtype=torch.int64), engine._levels.full.begin(100, 33), 1) is None
    replay = passes.prepare(torch.tensor(context.span(100, 103)), engine._levels.full.begin(100, 3), 2)
    assert replay is not None
    expected = judge.feed(context, range(100, 103), 2)
    assert torch.allclose(replay(), expected, atol=1e-4)


def test_a_recording_that_fails_is_told_and_the_answer_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: object) -> None:
        raise RuntimeError("CUDA error: not while capturing\nlong story")

    expected = written(tiny_engine(), "triforce", SamplingParams(), random_prompt(300))
    engine = tiny_engine(graphs=twin())
    assert engine.info.graphs.value
    monkeypatch.setattr(graphs_module, "_Recorded", out_of_memory)
    assert written(engine, "triforce", SamplingParams(), random_prompt(300)) == expected
    assert not engine.info.graphs.value
    assert engine.info.graphs.because == "recording failed: CUDA error: not while capturing"


def test_no_engine_on_a_processor_records() -> None:
    info = tiny_engine().info
    assert not info.graphs.value and "processor" in info.graphs.because
