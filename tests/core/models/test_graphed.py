"""What recorded passes hold on to and when they are recorded; that they compute the same is `ops/test_graphs`."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

import core.ops.graphs as graphs_module
from core import engine_builder
from core.caches.base import FixedRows, KVShape, Moving
from core.caches.full import FullCache
from core.caches.tokens import Context
from core.config import EngineConfig, GenerationConfig, SamplingParams, SpeculationConfig
from core.decoding.methods import Decoder, models_of
from core.engine import Engine
from core.generation.events import Finished, RoundDone
from core.models.graphed import GraphedPasses
from core.models.loader import ModelDims
from core.ops.graphs import WARM_UP, Graphs, graph_bytes
from core.parallel.commands import Order
from core.planning.sizes import recorded_bytes
from tests.core.toys import CPU, loaded, random_prompt, tiny_config, tiny_engine

GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=0.8, top_p=0.95, top_k=20)


def twin() -> Graphs:
    return Graphs(CPU, record=False)


def settings(method: str = "triforce", sampling: SamplingParams = GREEDY, num_tokens: int = 24) -> GenerationConfig:
    fixed = SpeculationConfig(gamma1=2, gamma2=6, adaptive=False)
    return GenerationConfig(method=method, max_new_tokens=num_tokens, sampling=sampling, speculation=fixed, seed=5)


def written(engine: Engine, config: GenerationConfig, prompt: Sequence[int] | None = None) -> Finished:
    *_, finished = engine.generate(prompt or random_prompt(300), config)
    assert isinstance(finished, Finished)
    return finished


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


def test_memory_is_held_where_recordings_are_not_told(engine: Engine) -> None:
    """Negative control: it is the recordings that would keep it."""
    engine._levels.retrieval.moving._keepers.clear()
    hold = retrieval_memory(engine)
    with engine._levels.lent():
        assert not any(hold.gone)


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


def test_relief_frees_a_layer_although_its_passes_are_recorded(engine: Engine) -> None:
    hold, tries = full_memory(engine), []

    def work() -> str:
        tries.append(sum(hold.gone))
        if not any(hold.gone):
            raise torch.OutOfMemoryError("no room")
        return "done"

    assert engine._levels.oom_fallback.retry(work, lambda: None) == "done" and tries == [0, 2]


def test_a_layer_that_could_not_move_is_recorded_anew(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows came back to another place."""

    def no_room(*_: object) -> None:
        raise torch.OutOfMemoryError("no room")

    expected = written(engine, settings()).token_ids
    with monkeypatch.context() as patch:
        patch.setattr(FullCache, "_offloaded_layer", no_room)
        with pytest.raises(torch.OutOfMemoryError):
            engine._levels.full.offload_one(64)
    assert engine._levels.full.resident_layers == 2
    assert written(engine, settings()).token_ids == expected
    assert engine._graphs is not None and "full" in names(engine._graphs)


class Buffers:
    """A cache that does not tell when its rows move."""

    def __init__(self) -> None:
        self.moving = Moving()
        self.rows = FixedRows([], [], 0)

    def fixed(self) -> FixedRows:
        return self.rows


def test_other_buffers_at_the_same_address_are_recorded_anew() -> None:
    """An allocator may give the same address to another shape, or to the same shape with other strides."""
    engine, graphs, cache = tiny_engine(), twin(), Buffers()
    passes = GraphedPasses("x", engine._levels.parts.full.module, cache, graphs)
    store = torch.full((8, 4 * 600 * 16), float("nan"))
    shapes = [((1, 4, 600, 16), 16), ((1, 4, 500, 16), 16), ((1, 4, 500, 16), 17)]  # the rows' stride
    made = []
    for shape, stride in shapes:
        strides = (0, 500 * 17, stride, 1)
        buffers = [row.as_strided(shape, strides) for row in store]
        cache.rows = FixedRows(buffers[:2], buffers[2:4], 300)
        assert passes.prepare(torch.ones(1, dtype=torch.int64), torch.tensor([300]), 1) is not None
        made.append(next(iter(graphs._kept.values())))
        assert graphs.num_kept == 1, "what was recorded over the others is gone"
        assert all(buffer[:, :, 300:].isfinite().all() for buffer in buffers[:4])
    assert len({id(recorded) for recorded in made}) == 3
    assert passes.prepare(torch.ones(1, dtype=torch.int64), torch.tensor([300]), 1) is not None
    assert next(iter(graphs._kept.values())) is made[-1], "the same ones are not recorded twice"


def test_memory_that_was_never_written_is_finite_before_a_pass_is_recorded_over_it() -> None:
    """What a mask hides is multiplied by 0: told rows may come back to the same place, holding anything."""
    engine, cache = tiny_engine(), Buffers()
    passes = GraphedPasses("x", engine._levels.parts.full.module, cache, twin())
    buffers = list(torch.empty(4, 1, 4, 600, 16))
    for behind in (0, 300):
        cache.moving()
        for buffer in buffers:
            buffer.fill_(float("nan"))
        cache.rows = FixedRows(buffers[:2], buffers[2:], 100)
        passes.record(1, behind)
        assert all(buffer[:, :, 100:].isfinite().all() for buffer in buffers), behind
        assert all(buffer[:, :, :100].isnan().all() for buffer in buffers), "rows in use are left alone"


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


def test_passes_after_a_guess_that_was_accepted_whole_are_recorded_ahead(engine: Engine) -> None:
    """Then the proposer has not seen the last guess, nor what the judge wrote behind it: one row more."""
    graphs = engine._graphs
    assert graphs is not None
    for name in ("full", "retrieval", "draft"):
        graphs.forget(name)
    Decoder("triforce", engine._levels.parts, GREEDY, SpeculationConfig(gamma1=3, gamma2=6)).start(Context([0]))
    sizes: dict[str, list[int]] = {"full": [], "retrieval": [], "draft": []}
    for key in graphs._kept:
        assert isinstance(key, tuple)
        sizes[key[0]].append(key[1])
    held = {name: sorted(own) for name, own in sizes.items()}
    assert held == {"draft": [1, 2, 4], "retrieval": [1, 4, 8], "full": [1, 8]}, "4: the sink"


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
        found += [*full.rows(layer, 0, full.length), full.recent_queries(layer, 64), full.sampled_queries(layer)[0]]
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


def test_queries_that_recording_overwrote_are_not_given_out() -> None:
    """The ring of the newest queries has room for 128: behind a pass of 32 rows, 96 of those before are left."""
    engine = tiny_engine(graphs=twin())
    written(engine, settings())
    length = engine._levels.full.length
    engine._levels.full.truncate(length - 1)
    engine._levels.parts.full.record([1, 32], length - 1)
    assert engine._levels.full.queries_start() == length - 1 + 32 - 128
    assert engine._levels.full.length == length - 1


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
        finished = written(engine, config, random_prompt(250))
    ((decoder, before),) = started
    assert before >= loading + 4 and hours[0] > before, "ahead, and in later rounds"
    assert (before - loading) * 3600 <= finished.prefill_seconds < (before - loading + 1) * 3600
    assert 0 < finished.stats.decode_seconds < 3600
    assert 0 <= finished.stats.seconds_by_part["other"] < 3600
    assert 0 < decoder._overhead < 3600, "gammas are chosen by it"
    assert all(judge.meter.seconds < 3600 for judge in decoder.models)


# -------------------- several processes


class OneRank:
    """A rank pool of rank 0 alone."""

    num_ranks = 1

    def __init__(self) -> None:
        self.told: list[Order] = []

    def tell(self, order: Order) -> None:
        self.told.append(order)

    @contextmanager
    def leading(self, judge: str, start: int, tokens: Sequence[int]) -> Iterator[None]:
        assert judge != "draft", "it lives on rank 0"
        yield


def test_where_processes_share_the_target_the_draft_alone_is_recorded() -> None:
    graphs = twin()
    shared, alone = tiny_engine(graphs=graphs, ranks=OneRank()), tiny_engine()
    for sampling in (GREEDY, SAMPLED):
        finished = written(shared, settings(sampling=sampling))
        assert finished.token_ids == written(alone, settings(sampling=sampling)).token_ids
    assert names(graphs) == {"draft", "law"}
    assert shared.info.graphs.value and "the draft's alone" in shared.info.graphs.because
    recorded = {judge.name: judge.graphs is not None for judge in models_of("triforce", shared._levels.parts)}
    assert recorded == {"draft": True, "retrieval": False, "full": False}


@pytest.mark.parametrize(
    ("device", "ranks", "draft", "on", "expected"),
    [
        ("cuda", None, None, True, True),
        ("cuda", OneRank(), "a draft", True, True),
        ("cuda", OneRank(), None, True, False),
        ("cuda", None, "a draft", False, False),
        ("cpu", None, "a draft", True, False),
    ],
)
def test_an_engine_records_where_there_is_anything_to_record(
    device: str, ranks: object, draft: str | None, on: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Given(Engine):
        def __init__(self, *_: object, graphs: object, **__: object) -> None:
            self.given = graphs

    monkeypatch.setattr(engine_builder, "Graphs", lambda device: f"graphs on {device}")
    pair = MagicMock(ranks=ranks, draft=draft and MagicMock())
    pair.recorder = partial(engine_builder.LoadedPair.recorder, pair)
    pair.target.shape.device = torch.device(device)
    engine = Given.of(pair, EngineConfig(graphs=on), MagicMock())
    assert isinstance(engine, Given) and engine.given == ("graphs on cuda" if expected else None)
    pair.target.dims.plain = False  # windows, soft caps and sinks are not recorded
    engine = Given.of(pair, EngineConfig(graphs=on), MagicMock())
    assert isinstance(engine, Given) and engine.given is None


def test_the_plan_counts_what_is_recorded() -> None:
    """The draft's passes on the GPU that holds it, where several share the target; both models' cost the target's."""
    target, draft = (loaded(tiny_config(layers=layers), 3).dims for layers in (6, 2))
    config = EngineConfig()

    def planned(draft: ModelDims | None, device: str, num_shares: int) -> int:
        return recorded_bytes(target, draft, config, device, num_shares)

    assert planned(draft, "cuda", 1) == planned(None, "cuda", 1) == graph_bytes(6)
    assert planned(draft, "cuda", 2) == graph_bytes(2)
    assert planned(None, "cuda", 2) == planned(draft, "cpu", 1) == 0
