"""Steps about how passes run: recording them, delays between streams, waits for the device."""

import random
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from core.caches.full_parts import Offload
from core.config import DraftConfig, EngineConfig, GenerationConfig, RetrievalConfig, SpeculationConfig
from core.engine import Engine
from core.generation.loaded import LoadedModels
from core.models.loader import LoadedModel
from core.ops.graphs import Graphs
from core.ops.transfer import PrefetchRing
from core.planning.choices import Choice
from core.planning.planner import make_plan
from tests.core.toys import MACHINE, Letters, loaded, random_prompt, tiny_config
from tests.gpu.checklist import Here
from tests.gpu.machine import NOT_HERE, device_of
from tests.gpu.texts import ROOM, answer, figures, prompt_of

CYCLES = 400_000  # of a delay, at most: 0.2 ms at 2 GHz, some passes of a toy


def moved(model: LoadedModel, device: torch.device) -> LoadedModel:
    """A toy on a device, in float32."""
    return LoadedModel(model.module.to(device), model.dims, model.dims.shape(torch.float32, device), model.eos_ids)


def toy(device: torch.device, offload: Offload | None, cpu_attention_share: float = 0.0) -> Engine:
    """A random target and a draft that often agrees, with small caches."""
    config = EngineConfig(
        methods=("triforce",),
        context=2048,
        prefill_chunk=256,
        cpu_attention_share=cpu_attention_share,
        retrieval=RetrievalConfig(budget=256, chunk_size=8, local_window=64),
        draft=DraftConfig(window=128),
    )
    target = moved(loaded(tiny_config(kv_heads=2, layers=3), 3), device)
    draft = moved(loaded(tiny_config(kv_heads=2, layers=3), 3, 0.15), device)
    plan = replace(make_plan(target.dims, draft.dims, config, MACHINE), device=Choice(device.type, "asked for"))
    return Engine(config, plan, Letters(), LoadedModels(target=target, draft=draft), offload=offload)


@contextmanager
def delays(seed: int, device: torch.device) -> Iterator[Callable[[], int]]:
    """Inside, streams are held up at random before copies and around the use of what has arrived.

    Whatever copies on a stream of its own runs inside of that stream there, so the delay falls on it. Yields a count.
    """
    rng, count = random.Random(seed), 0

    def late() -> None:
        nonlocal count
        if rng.random() < 0.5:
            count += 1
            if device.type == "cuda":
                torch.cuda._sleep(rng.randrange(1, CYCLES))

    def behind(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            late()
            return function(*args, **kwargs)

        return call

    with (
        mock.patch.object(Tensor, "copy_", behind(Tensor.copy_)),
        mock.patch.multiple(
            PrefetchRing,
            take=behind(PrefetchRing.take),
            release=behind(PrefetchRing.release),
            store=behind(PrefetchRing.store),
        ),
    ):
        yield lambda: count


def races(here: Here) -> None:
    """Texts with random delays on both streams are those without, bit for bit."""
    device = device_of(here.device)
    speculation = SpeculationConfig(gamma1=2, gamma2=6, adaptive=False)
    greedy = GenerationConfig(max_new_tokens=here.sized(60, 8), speculation=speculation)
    shapes: list[tuple[Offload, float]] = [
        (Offload(num_resident=resident, block_rows=64, num_slots=slots), share)
        for resident, slots, share in ((0, 2, 0.0), (1, 3, 0.0), (0, 2, 0.5))
    ]
    if not here.cuda:
        here.report.add("delays", NOT_HERE)
    wrong: list[str] = []
    prompt, methods = random_prompt(here.sized(900, 200)), here.sized(("triforce", "autoregressive"), ("triforce",))
    for offload, share in shapes:
        engine = toy(device, offload, share)
        for method in methods:
            config = replace(greedy, method=method)
            expected = answer(engine, prompt, config).token_ids
            delayed = 0
            for seed in range(here.sized(20, 1)):
                engine.close()  # the prompt is read again, with delays
                with delays(seed, device) as count:
                    found = answer(engine, prompt, config).token_ids
                delayed += count()
                if found != expected:
                    wrong.append(f"{offload}, host share {share}, {method}, seed {seed}")
            name = f"{offload.num_resident} resident, {offload.num_slots} slots, host share {share}, {method}"
            here.report.add(name, {"delays": delayed, "differ": len(wrong)})
        del engine
    here.report.add("wrong", wrong)
    assert not wrong, f"delays changed {len(wrong)} texts, first: {wrong[0]}"


# -------------------- recordings


@contextmanager
def weighed(found: list[dict[str, Any]]) -> Iterator[None]:
    """Inside, every new recording is timed and weighed."""
    real = Graphs.prepare

    def prepare(self: Graphs, key: Any, function: Any, *inputs: Tensor) -> Any:
        before, kept = torch.cuda.mem_get_info()[0], self.num_kept
        started = time.perf_counter()
        replay = real(self, key, function, *inputs)
        if self.num_kept > kept:
            torch.cuda.synchronize()
            taken = before - torch.cuda.mem_get_info()[0]
            found.append({"key": str(key), "ms": 1e3 * (time.perf_counter() - started), "mib": taken / (1 << 20)})
        return replay

    with mock.patch.object(Graphs, "prepare", prepare):
        yield


def graphs(here: Here) -> None:
    """What a recording costs, what lending gives back while some are kept, where a failed one leaves the stream."""
    tokens, new = here.sized((8192, 96), (1024, 12))
    config = EngineConfig(methods=("triforce",), context=tokens + ROOM, device=here.device, graphs=here.cuda)
    recordings: list[dict[str, Any]] = []
    with weighed(recordings) if here.cuda else nullcontext():
        engine = Engine.load(config)
        prompt = prompt_of(engine, tokens)
        for method in ("autoregressive", "triforce"):
            config_of = GenerationConfig(method=method, max_new_tokens=new)
            answer(engine, prompt, config_of)
            here.report.add(method, figures(answer(engine, prompt, config_of)))  # the second: all is recorded
    here.report.add("graphs", engine.info.graphs)
    here.report.add("recordings", recordings or NOT_HERE)
    engine.close()
    del engine
    eager = Engine.load(replace(config, graphs=False))
    for method in ("autoregressive", "triforce"):
        here.report.add(
            f"{method}, not recorded",
            figures(answer(eager, prompt, GenerationConfig(method=method, max_new_tokens=new))),
        )
    del eager
    if not here.cuda:
        here.report.add("lending", NOT_HERE)
        here.report.add("a failed recording", NOT_HERE)
        return
    _lending(here, config, prompt)
    _failing(here)


def _lending(here: Here, config: EngineConfig, prompt: list[int]) -> None:
    engine = Engine.load(config)
    answer(engine, prompt, GenerationConfig(max_new_tokens=16))
    rows = next(row.size_bytes for row in engine.plan.rows if row.name == "retrieval cache")
    before = torch.cuda.memory_allocated()
    with engine._levels.lent():
        freed = before - torch.cuda.memory_allocated()
    again = answer(engine, prompt, GenerationConfig(max_new_tokens=16))
    here.report.add("lending", {"retrieval bytes": rows, "freed": freed, "text afterwards": again.text})
    assert freed > 0.9 * rows, f"lending {rows:,} bytes freed {freed:,}: recordings hold the rest"


def _failing(here: Here) -> None:
    device = device_of("cuda")
    before = torch.cuda.current_stream()
    recorder = Graphs(device)
    refused = recorder.prepare("waits", lambda x: x + float(x.sum().item()), torch.ones(4, device=device)) is None
    same, works = torch.cuda.current_stream() == before, torch.ones(4, device=device).sum().item() == 4
    here.report.add(
        "a failed recording",
        {"refused": refused, "because": recorder.failure, "same stream": same, "works": works},
    )
    assert refused and same and works, "a failed recording leaves the device as it was"


# -------------------- waits


@contextmanager
def waiting(here: Here) -> Iterator[list[str]]:
    """Where the processor waits for the device inside: one place a wait."""
    places: list[str] = []
    if not here.cuda:
        yield places
        return
    torch.set_warn_always(True)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield places
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.set_warn_always(False)
    places += [f"{w.filename}:{w.lineno}" for w in caught if "synchronizing" in str(w.message)]


def waits(here: Here) -> None:
    """Waits per token by method and placement, and the places where they happen most."""
    tokens, new = here.sized((8192, 64), (1024, 8))
    for placement in ("resident", "offloaded"):
        limit = None if placement == "resident" else here.sized(24.0, 1.0)
        config = EngineConfig(
            methods=("triforce",),
            context=tokens + ROOM,
            device=here.device,
            placement=placement,
            gpu_memory_gib=limit,  # type: ignore[arg-type]
        )
        engine = Engine.load(config)
        prompt = prompt_of(engine, tokens)
        for method in ("autoregressive", "triforce", "triforce-lookup"):
            wanted = GenerationConfig(method=method, max_new_tokens=new)
            answer(engine, prompt, wanted)  # reads the book, records passes
            with waiting(here) as places:
                found = answer(engine, prompt, wanted)
            count = len(places) / found.stats.new_tokens if here.cuda else NOT_HERE
            here.report.add(
                f"{placement}, {method}",
                {
                    "waits per token": count,
                    "full passes": found.stats.full_passes,
                    "new tokens": found.stats.new_tokens,
                    "places": Counter(places).most_common(12),
                },
            )
        del engine
