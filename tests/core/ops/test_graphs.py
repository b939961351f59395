"""Recorded passes: the function that would be recorded, called on its fixed buffers, against the eager twin."""

import threading
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

import core.ops.graphs as graphs_module
from core.caches.base import KVShape
from core.caches.tokens import Context
from core.config import GenerationConfig, SamplingParams, SpeculationConfig
from core.decoding.methods import Decoder
from core.decoding.sampling import to_probs
from core.decoding.speculative import SampledModel
from core.engine import Engine
from core.generation.events import RoundDone
from core.models.cached_model import CachedModel
from core.models.graphed import GraphedPasses
from core.ops.attention import attend_reference
from core.ops.graphs import (
    LONG,
    MOST_ROWS,
    WARM_UP,
    Graphs,
    attend_bucketed,
    hidden_rows,
    masked_rows,
    padded_rows,
    whole_rows,
)
from tests.core.toys import CPU, FIXED, answer, random_prompt, tiny_engine


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


@pytest.mark.parametrize(
    ("held", "num_new", "kv_heads"),
    [(0, 1, 4), (0, 32, 1), (1, 4, 1), (255, 1, 4), (255, 32, 1), (256, 4, 4), (300, 32, 4), (700, 1, 1), (700, 4, 4)],
)
def test_attention_in_a_bucket_equals_the_slow_twin(kv_heads: int, held: int, num_new: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 4, num_new, 16, generator=generator)
    k, v = 2 * torch.randn(2, 1, kv_heads, 800, 16, generator=generator)
    end = held + num_new
    expected = attend_reference(q, k[:, :, :end], v[:, :, :end], 0.25)
    assert torch.allclose(bucketed(q, k, v, held), expected, atol=1e-5)
    if held == 300:  # the control: a mask one row off
        assert not any(torch.allclose(bucketed(q, k, v, other), expected, atol=1e-3) for other in (299, 301))


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


def test_inputs_are_copied_to_fixed_places_and_the_latest_keys_keep_their_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graphs_module, "MOST_GRAPHS", 2)
    graphs, seen = twin(), list[int]()

    def double(x: Tensor) -> Tensor:
        seen.append(x.data_ptr())
        return 2 * x

    for key, function, value, expected in (
        *(("a", double, 1.0, 2.0), ("b", torch.neg, 1.0, -1.0), ("a", torch.neg, 2.0, 4.0)),
        *(("c", torch.neg, 1.0, -1.0), ("a", torch.neg, 3.0, 6.0), ("b", torch.abs, 1.0, 1.0)),  # b was dropped
    ):
        replay = graphs.prepare(key, function, torch.full((2,), value))
        assert replay is not None and replay().tolist() == [expected] * 2
    assert len(seen) == 3 and len(set(seen)) == 1 and graphs.num_kept == 2


def test_settings_with_other_filters_do_not_share_a_recording() -> None:
    """And those with the same filters do, whatever their numbers: laws are those with constants."""
    engine, graphs = tiny_engine(), twin()
    judge = CachedModel("full", engine._levels.parts.full.module, engine._levels.full, CPU)
    judge._graphed = GraphedPasses("full", judge.module, engine._levels.full, graphs)
    context = Context(random_prompt(20))
    for round_number in range(2):
        for top_k, top_p in ((0, 1.0), (5, 1.0), (0, 0.6), (9, 0.8), (1, 0.9), (99, 0.05)):
            sampling = SamplingParams(temperature=0.5 + round_number, top_k=top_k, top_p=top_p)
            if round_number:
                sampling = replace(sampling, top_k=top_k and top_k + 2, top_p=top_p and top_p**2)
            judge.cache.truncate(0)
            law = SampledModel(judge, sampling).probs(context, 2)
            judge.cache.truncate(0)
            expected = to_probs(judge.logits(context, 2), sampling)
            assert torch.equal(law > 0, expected > 0) and torch.allclose(law, expected, atol=1e-6), sampling
    assert len([key for key in graphs._kept if isinstance(key, tuple) and key[0] == "probs"]) == 4


# -------------------- engines


@pytest.mark.parametrize(
    ("kv_heads", "sampling", "num_tokens"),
    [(4, SamplingParams(), 245), (2, SamplingParams(temperature=0.8, top_p=0.95), 500)],
)
def test_an_engine_on_fixed_buffers_writes_and_leaves_behind_what_the_eager_one_does(
    kv_heads: int, sampling: SamplingParams, num_tokens: int
) -> None:
    """Over bucket borders (256, 512), with rejected guesses, selections, slides of the draft's window."""
    eager, graphs = tiny_engine(kv_heads=kv_heads), twin()
    assert not eager.info.graphs.value and "processor" in eager.info.graphs.because
    fixed = tiny_engine(kv_heads=kv_heads, graphs=graphs)
    for method in ("autoregressive", "triforce"):
        asked = random_prompt(num_tokens), method, 16
        one, other = (answer(engine, *asked, sampling=sampling, seed=5).token_ids for engine in (fixed, eager))
        assert one == other, method
    assert graphs.num_kept > 5 and not graphs.failure and fixed.info.graphs.value
    caches, length = (fixed.full_cache, eager.full_cache), fixed.full_cache.length
    assert eager.full_cache.length == length
    for layer in range(2):
        left = [
            (*c.rows(layer, 0, length), c.recent_queries(layer, 60), c.landmarks(layer, length // 8)) for c in caches
        ]
        assert all(torch.allclose(*pair, atol=1e-4) for pair in zip(*left, strict=True))


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


GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=0.8, top_p=0.95, top_k=20)
PROMPT = random_prompt(300)


# -------------------- what recordings hold on to


def names(engine: Engine) -> set[str]:
    """Whose passes are recorded."""
    assert engine._graphs is not None
    return {str(key[0]) for key in engine._graphs._kept if isinstance(key, tuple)}


def memory(buffers: Iterable[Tensor]) -> Callable[[], list[bool]]:
    """Tells which buffers' memory is gone."""
    refs = [StorageWeakRef(buffer.untyped_storage()) for buffer in buffers]
    return lambda: [bool(ref.expired()) for ref in refs]


def test_memory_of_recorded_passes_is_free_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not: recordings kept all of it, and on a full card reading layer by layer ran out of memory."""
    engine = tiny_engine(graphs=twin())
    expected = answer(engine, PROMPT).token_ids
    assert names(engine) == {"full", "retrieval", "draft"}

    levels = engine._levels
    gone = memory([*levels.retrieval.k, *levels.retrieval.v])
    assert not any(gone())
    with levels.lent():
        assert all(gone()) and names(engine) == {"full", "draft"}, "theirs stay"
    assert answer(engine, PROMPT).token_ids == expected

    gone, seen, allocate = memory([*levels.retrieval.k, *levels.retrieval.v]), list[bool](), KVShape.allocate
    with monkeypatch.context() as patch:
        patch.setattr(KVShape, "allocate", lambda *asked: seen.append(all(gone())) or allocate(*asked))
        engine.use_budget(128)
    assert seen and all(seen), "the old rows must be gone before new ones are asked for"

    rows = levels.full.fixed()
    assert rows is not None
    gone = memory([*rows.k, *rows.v])
    del rows
    levels.full.offload_one(64)
    assert gone() == [False, True] * 2 and "full" not in names(engine), "the last of two layers, keys and values"
    assert answer(engine, PROMPT).token_ids == expected
    levels.full.offload_one(64)
    assert all(gone())


# -------------------- when they are recorded


def after_start(monkeypatch: pytest.MonkeyPatch, note: Callable[[Decoder], object]) -> None:
    """`note` is called whenever a prompt has been read and its answer is about to begin."""
    start = Decoder.start

    def noted(decoder: Decoder, context: Context, cancel: threading.Event | None = None) -> None:
        start(decoder, context, cancel)
        note(decoder)

    monkeypatch.setattr(Decoder, "start", noted)


@pytest.mark.parametrize(
    ("method", "sampling", "num_tokens"),
    [
        ("autoregressive", SAMPLED, 20),
        ("triforce", GREEDY, 20),
        ("triforce", SAMPLED, 300),
    ],
)
def test_the_first_round_records_nothing(
    method: str, sampling: SamplingParams, num_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten and more recordings of about 0.1 s fell on the answer's clock. Prompts shorter and longer than the window."""
    graphs, before = twin(), list[set[Hashable]]()
    engine = tiny_engine(graphs=graphs)
    after_start(monkeypatch, lambda _: before.append(set(graphs._kept)))
    config = GenerationConfig(method=method, max_new_tokens=10, sampling=sampling, speculation=FIXED, seed=5)
    events = engine.generate(random_prompt(num_tokens), config)
    assert any(isinstance(event, RoundDone) for event in events), "stops at the first"
    (known,) = before
    assert set(graphs._kept) <= known and len(known) >= (2 if sampling.greedy else 3)


class Twin(graphs_module._Recorded):
    """Notes when it is made; runs the function meanwhile, as CUDA does."""

    made = 0

    def __init__(self, function: Callable[..., Tensor], inputs: list[Tensor], *_: object) -> None:
        super().__init__(function, inputs, None, None)
        Twin.made += 1
        for _ in range(WARM_UP + 1):
            function(*inputs)


def contents(engine: Engine) -> list[Tensor]:
    """Everything that the caches hold, and the newest queries."""
    full, rows = engine._levels.full, engine._levels.retrieval.fixed()
    found = [full.landmarks(0, full.length // 8), *(buffer[:, :, : rows.held] for buffer in (*rows.k, *rows.v))]
    for layer in range(2):
        found += [*full.rows(layer, 0, full.length), full.recent_queries(layer, 64)]
        found.append(full.queries.sampled(layer, full.length)[0])
    return [tensor.clone() for tensor in found]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_recording_ahead_writes_scratch_rows_only(sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs_module, "_Recorded", Twin)
    kept: list[list[Tensor]] = []
    texts, engines = [], [tiny_engine(), tiny_engine(graphs=twin())]
    after_start(monkeypatch, lambda _: kept.append(contents(engines[len(texts)])))
    for engine in engines:
        texts.append(answer(engine, PROMPT, sampling=sampling, seed=5).token_ids)
    assert all(torch.equal(*pair) for pair in zip(*kept, strict=True)) and texts[0] == texts[1]


def test_recording_is_set_up_and_no_part_of_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what is recorded ahead nor what a later round needs: gammas change, buckets end (256 rows)."""
    seconds, started = time.perf_counter, list[tuple[Decoder, int]]()
    monkeypatch.setattr(Twin, "made", 0)
    monkeypatch.setattr(time, "perf_counter", lambda: 3600 * Twin.made + seconds())  # each takes an hour
    monkeypatch.setattr(graphs_module, "_Recorded", Twin)
    engine = tiny_engine(graphs=twin())
    loading = Twin.made
    after_start(monkeypatch, lambda decoder: started.append((decoder, Twin.made)))
    finished = answer(engine, random_prompt(250), "triforce", 24, speculation=SpeculationConfig(gamma1=2, gamma2=6))
    ((decoder, before),) = started
    assert before >= loading + 4 and Twin.made > before, "ahead, and in later rounds"
    assert (before - loading) * 3600 <= finished.prefill_seconds < (before - loading + 1) * 3600
    assert 0 < finished.stats.decode_seconds < 3600
    assert 0 <= finished.stats.seconds_by_part["other"] < 3600
    assert 0 < decoder.pace.overhead < 3600, "gammas are chosen by it"
    assert all(judge.meter.seconds < 3600 for judge in decoder.models)
