"""What recorded passes hold on to and when they are recorded; that they compute the same is `ops/test_graphs`."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

import core.ops.graphs as graphs_module
from core.caches.base import KVShape
from core.caches.tokens import Context
from core.config import GenerationConfig, SamplingParams, SpeculationConfig
from core.decoding.methods import Decoder
from core.engine import Engine
from core.generation.events import Finished, RoundDone
from core.ops.graphs import WARM_UP, Graphs
from tests.core.toys import CPU, FIXED, last_event, random_prompt, tiny_engine

GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=0.8, top_p=0.95, top_k=20)


def twin() -> Graphs:
    return Graphs(CPU, record=False)


def settings(method: str = "triforce", sampling: SamplingParams = GREEDY, num_tokens: int = 16) -> GenerationConfig:
    return GenerationConfig(method=method, max_new_tokens=num_tokens, sampling=sampling, speculation=FIXED, seed=5)


def written(engine: Engine, config: GenerationConfig, num_tokens: int = 300) -> Finished:
    return last_event(engine.generate(random_prompt(num_tokens), config))


def names(graphs: Graphs) -> set[str]:
    """Whose passes are recorded."""
    return {str(key[0]) for key in graphs._kept if isinstance(key, tuple)}


class Hold:
    """Memory of buffers, watched."""

    def __init__(self, buffers: Sequence[Tensor]) -> None:
        self._refs = [StorageWeakRef(buffer.untyped_storage()) for buffer in buffers]

    @property
    def gone(self) -> list[bool]:
        return [bool(ref.expired()) for ref in self._refs]


# -------------------- what recordings hold on to


@pytest.fixture
def engine() -> Engine:
    """Passes over every cache have been recorded."""
    engine = tiny_engine(graphs=twin())
    written(engine, settings())
    assert engine._graphs is not None and names(engine._graphs) == {"full", "retrieval", "draft"}
    return engine


def retrieval_memory(engine: Engine) -> Hold:
    return Hold([*engine._levels.retrieval.k, *engine._levels.retrieval.v])


def full_memory(engine: Engine) -> Hold:
    rows = engine._levels.full.fixed()
    assert rows is not None
    return Hold([*rows.k, *rows.v])


def test_memory_that_the_retrieval_cache_lends_is_free_at_once(engine: Engine) -> None:
    """It was not: recordings kept all of it, and on a full card reading layer by layer ran out of memory."""
    hold, expected = retrieval_memory(engine), written(engine, settings()).token_ids
    assert not any(hold.gone)
    with engine._levels.lent():
        assert all(hold.gone)
        assert engine._graphs is not None and names(engine._graphs) == {"full", "draft"}, "theirs stay"
    assert written(engine, settings()).token_ids == expected


def test_a_new_budget_never_holds_two_copies(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    hold, seen = retrieval_memory(engine), []
    allocate = KVShape.allocate

    def watched(shape: KVShape, num_rows: int) -> Tensor:
        seen.append(all(hold.gone))
        return allocate(shape, num_rows)

    monkeypatch.setattr(KVShape, "allocate", watched)
    engine.use_budget(128)
    assert seen and all(seen), "the old rows must be gone before new ones are asked for"


def test_a_layer_that_goes_to_the_host_frees_its_memory(engine: Engine) -> None:
    hold, expected = full_memory(engine), written(engine, settings()).token_ids
    engine._levels.full.offload_one(64)
    assert hold.gone == [False, True] * 2, "the last of two layers, keys and values"
    assert engine._graphs is not None and "full" not in names(engine._graphs)
    assert written(engine, settings()).token_ids == expected
    engine._levels.full.offload_one(64)
    assert all(hold.gone)


# -------------------- when they are recorded


@contextmanager
def after_start(monkeypatch: pytest.MonkeyPatch, note: Callable[[Decoder], None]) -> Iterator[None]:
    """Calls `note` when the prompt has been read and the answer is about to begin."""
    start = Decoder.start

    def noted(decoder: Decoder, context: Context, cancel: threading.Event | None = None) -> None:
        start(decoder, context, cancel)
        note(decoder)

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "start", noted)
        yield


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("method", ["autoregressive", "triforce", "retrieval", "draft"])
@pytest.mark.parametrize("num_tokens", [20, 60, 300])
def test_the_first_round_records_nothing(
    method: str, sampling: SamplingParams, num_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten and more recordings of about 0.1 s fell on the answer's clock. Prompts shorter and longer than the window."""
    graphs, before = twin(), []
    engine = tiny_engine(graphs=graphs)
    with after_start(monkeypatch, lambda _: before.append(set(graphs._kept))):
        events = engine.generate(random_prompt(num_tokens), settings(method, sampling))
        assert any(isinstance(event, RoundDone) for event in events), "stops at the first"
    (known,) = before
    assert not set(graphs._kept) - known
    assert len(known) >= (2 if sampling.greedy else 3)


class Working(graphs_module._Recorded):
    """The twin, and it runs the function while recording as CUDA does."""

    def __init__(self, function: Callable[..., Tensor], inputs: list[Tensor], *_: object) -> None:
        super().__init__(function, inputs, None, None)
        for _ in range(WARM_UP + 1):
            function(*inputs)


def contents(engine: Engine) -> list[Tensor]:
    """Everything that the caches hold, and the newest queries."""
    full, found = engine._levels.full, []
    for layer in range(2):
        found += [
            *full.rows(layer, 0, full.length),
            full.recent_queries(layer, 64),
            full.queries.sampled(layer, full.length)[0],
        ]
    found.append(full.landmarks(0, full.length // 8))
    rows = engine._levels.retrieval.fixed()
    found += [buffer[:, :, : rows.held] for buffer in (*rows.k, *rows.v)]
    return [tensor.clone() for tensor in found]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_recording_ahead_writes_scratch_rows_only(sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, list[Tensor]] = {}
    texts = {}
    for graphs in (None, twin()):
        engine = tiny_engine(graphs=graphs)
        name = "recorded" if graphs else "eager"
        with monkeypatch.context() as patch:
            patch.setattr(graphs_module, "_Recorded", Working)

            def note(_: Decoder, name: str = name, engine: Engine = engine) -> None:
                kept[name] = contents(engine)

            with after_start(monkeypatch, note):
                texts[name] = written(engine, settings(sampling=sampling)).token_ids
    for mine, theirs in zip(kept["recorded"], kept["eager"], strict=True):
        assert torch.equal(mine, theirs)
    assert texts["recorded"] == texts["eager"]


def test_recording_is_set_up_and_no_part_of_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what is recorded ahead nor what a later round needs: gammas change, buckets end (256 rows)."""
    hours, seconds = [0], time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: 3600 * hours[0] + seconds())

    class Slow(graphs_module._Recorded):
        """Takes an hour."""

        def __init__(self, function: Callable[..., Tensor], inputs: list[Tensor], *_: object) -> None:
            super().__init__(function, inputs, None, None)
            hours[0] += 1

    monkeypatch.setattr(graphs_module, "_Recorded", Slow)
    engine, started = tiny_engine(graphs=twin()), []
    config = GenerationConfig(method="triforce", max_new_tokens=24, speculation=SpeculationConfig(gamma1=2, gamma2=6))
    loading = hours[0]
    with after_start(monkeypatch, lambda decoder: started.append((decoder, hours[0]))):
        finished = written(engine, config, 250)
    ((decoder, before),) = started
    assert before >= loading + 4 and hours[0] > before, "ahead, and in later rounds"
    assert (before - loading) * 3600 <= finished.prefill_seconds < (before - loading + 1) * 3600
    assert 0 < finished.stats.decode_seconds < 3600
    assert 0 <= finished.stats.seconds_by_part["other"] < 3600
    assert 0 < decoder.pace.overhead < 3600, "gammas are chosen by it"
    assert all(judge.meter.seconds < 3600 for judge in decoder.models)
