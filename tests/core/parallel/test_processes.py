"""Two processes share a tiny target: the same text as one, whatever is asked of it; and what happens when one is lost.

Starting a process that imports torch takes seconds, so two engines serve all tests here and are lost in the last ones.
"""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
import torch

from core.caches.full_parts import Offload
from core.config import DraftConfig, EngineConfig, GenerationConfig, RetrievalConfig, SamplingParams, SpeculationConfig
from core.engine import Engine
from core.errors import WorkerLost
from core.generation import interleave
from core.generation.events import RoundDone
from core.generation.levels import LoadedModels
from core.models.loader import read_dims
from core.models.param_count import size_in
from core.ops.backend import STOCK
from core.parallel.leader_caches import LedFullCache
from core.parallel.rank_pool import RankPool, load_shared
from core.parallel.worker import Order
from core.planning.choices import Choice
from core.planning.measured import Sharing
from core.planning.plan import make_plan
from tests.core import toys
from tests.core.toys import FIXED, MACHINE, Letters, ends, last_event, loaded, random_prompt, tiny_config, tiny_engine

Engines = tuple[Engine, Engine, RankPool]  # of two processes, its twin of one, and the further process
SOON_SECONDS = 20.0  # a machine that is busy included
TWIN: dict[str, Any] = {"context": 1024, "noise": 0.05, "budget": 128}
CONFIG = EngineConfig(
    context=TWIN["context"],
    device="cpu",
    prefill_chunk=256,
    num_gpus=2,
    retrieval=RetrievalConfig(budget=TWIN["budget"], chunk_size=8, local_window=64),
    draft=DraftConfig(window=128),
)
AWAY = Offload(block_rows=64, num_slots=2)
answer = partial(toys.answer, tokens=10)


def engines(kv_heads: int, folder: Path, offload: Offload | None = None) -> Iterator[Engines]:
    """Twins. The shared target is read from `folder`; its passes go through the twin of recorded ones."""
    config = tiny_config(kv_heads=kv_heads)
    cast(Any, loaded(config, 3).module).save_pretrained(folder)
    draft = loaded(config, 3, TWIN["noise"])
    plan = make_plan(replace(size_in(folder), dims=read_dims(folder)), draft.dims, CONFIG, MACHINE)
    ranks, target = load_shared(folder, CONFIG, plan, STOCK, offload, recorded=True)
    models = LoadedModels(target=target, draft=draft, ranks=ranks)
    shared = Engine(CONFIG, plan, Letters(), models, offload=offload, graphs=ranks.graphs)
    yield shared, tiny_engine(kv_heads=kv_heads, **TWIN), ranks
    ranks.close()


@pytest.fixture(scope="module")
def gqa(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Two KV heads for four query heads: one group a rank."""
    yield from engines(2, tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def mha(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """As many KV heads as query heads, and the shared target's full cache in host memory."""
    yield from engines(4, tmp_path_factory.mktemp("target"), AWAY)


@pytest.mark.parametrize("method", ["autoregressive", "triforce", "triforce-lookup", "draft", "h2o"])
def test_greedy_text_of_every_method_is_that_of_one_process(gqa: Engines, method: str) -> None:
    shared, alone, _ = gqa
    prompt = random_prompt(90 if method == "draft" else 300)
    ours, theirs = (answer(engine, prompt, method=method) for engine in (shared, alone))
    assert ours.token_ids == theirs.token_ids and ours.exact == theirs.exact
    assert ours.stats.level2 == theirs.stats.level2, "the same guesses, the same verdicts"


def test_measured_round_shapes_and_a_seed_s_draws_are_those_of_one_process(
    gqa: Engines,
) -> None:
    shared, alone, _ = gqa
    prompt, hot = random_prompt(300), SamplingParams(temperature=0.8)
    adaptive = answer(shared, prompt, speculation=SpeculationConfig()).token_ids
    assert adaptive == answer(alone, prompt, method="autoregressive").token_ids
    texts = [answer(engine, prompt, sampling=hot, seed=5).token_ids for engine in (shared, alone)]
    assert texts[0] == texts[1] != adaptive


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_second_turn_reads_only_what_is_new_also_behind_a_cancelled_answer(gqa: Engines, cancelled: bool) -> None:
    shared, alone, _ = gqa
    prompt = random_prompt(300, 8)
    events = shared.generate(prompt, GenerationConfig(max_new_tokens=10, speculation=FIXED))
    begun = next(event for event in events if isinstance(event, RoundDone))
    rest = [] if cancelled else [event for event in events if isinstance(event, RoundDone)]
    events.close()  # type: ignore[attr-defined]
    written = [record.token_id for event in (begun, *rest) for record in event.tokens]
    second = [*prompt, *written, *random_prompt(5, 3)]
    ours = answer(shared, second)
    assert ours.reused_tokens >= len(prompt) + (0 if cancelled else len(written) - 1)
    assert ours.token_ids == answer(alone, second).token_ids


def test_lanes_of_a_race_write_what_they_write_in_one_process(gqa: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interleave, "SLICE_SECONDS", 0.0)  # lanes change as often as possible
    shared, alone, _ = gqa
    prompt = random_prompt(300, 9)
    configs = [GenerationConfig(method=method, max_new_tokens=12, speculation=FIXED) for method in ("triforce", "h2o")]
    for ended, config in zip(ends(shared.race(prompt, configs)), configs, strict=True):
        assert ended.token_ids == last_event(alone.generate(prompt, config)).token_ids
    assert isinstance(shared._levels.full, LedFullCache) and not shared._levels.full.leader.aside, (
        "no lane's rows are kept"
    )


@pytest.mark.slow
def test_every_process_counts_what_a_verification_attends_to(mha: Engines) -> None:
    """The other ranks' heads choose by accepted tokens, too, not only by the last guesses, which may be rejected."""
    weights = []
    for engine in (mha[0], tiny_engine(kv_heads=4, offload=AWAY, **TWIN)):
        answer(engine, random_prompt(300, 10), method="retrieval")
        weights.append(engine.chunk_weights())
    assert torch.allclose(*weights, atol=1e-4)


def test_every_process_measures_how_link_and_host_share(mha: Engines) -> None:
    def no_room() -> NoReturn:
        raise torch.OutOfMemoryError

    ranks = mha[2]
    link = ranks.link(lambda: Choice(1e15, "mine"), 1 << 20)
    assert 0 < link.value < 1e15 and "rank 1" in link.because, "the slowest limits a pass"
    found = ranks.sharing(lambda: Sharing(1e-9, 1e-9, 1e-9), 1 << 20)
    assert all(1e-8 < seconds < 1 for seconds in found), "another process's"
    with pytest.raises(torch.OutOfMemoryError):
        ranks.sharing(no_room, 1 << 20)
    assert ranks.sharing(lambda: Sharing(1e9, 1e9, 1e9), 1 << 20) == (1e9, 1e9, 1e9), "nobody's answer is left over"


def test_each_process_s_part_of_the_host_attends_to_a_share_of_its_blocks(
    mha: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, alone, _ = mha
    full, told, prompt = shared._levels.full, [], random_prompt(500, 11)
    assert isinstance(full, LedFullCache)
    tell = full.leader._tell
    monkeypatch.setattr(full.leader, "_tell", lambda order: (told.append(order), tell(order)))
    carried = answer(shared, prompt).stats.link_bytes
    full.let_host_attend(0.5)
    found = answer(shared, prompt)
    assert Order("change", ("full", "let_host_attend", 0.5)) in told and 0 < found.stats.link_bytes < carried
    assert found.token_ids == answer(alone, prompt).token_ids
    full.let_host_attend(0.0)


# -------------------- lost ranks, last: the engines cannot be used afterwards


def ended(ranks: RankPool) -> bool:
    return not any(process.is_alive() for process in ranks._processes)


def test_a_process_that_raises_ends_the_run_with_its_reason(gqa: Engines) -> None:
    shared, _, ranks = gqa
    ranks.tell(Order("change", ("full", "select")))  # a bug of ours, as it were: the full cache selects nothing
    started = time.monotonic()
    with pytest.raises(WorkerLost, match=r"Process 2 of 2 failed \(AttributeError: .*select"):
        answer(shared, random_prompt(50, 11))
    assert time.monotonic() - started < SOON_SECONDS and ended(ranks)


def test_a_process_that_is_killed_ends_the_run_at_once_and_for_good(mha: Engines) -> None:
    shared, _, ranks = mha
    prompt = random_prompt(300, 12)
    events = shared.generate(prompt, GenerationConfig(max_new_tokens=500, speculation=FIXED))
    next(event for event in events if isinstance(event, RoundDone))
    pid = ranks._processes[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(WorkerLost, match="Process 2 of 2 was killed by signal 9") as lost:
        list(events)
    assert time.monotonic() - started < SOON_SECONDS and ended(ranks)
    assert "--gpus" in lost.value.hint
    with pytest.raises(WorkerLost):
        answer(shared, prompt)
