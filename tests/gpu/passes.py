"""Steps about how passes run: recording them, delays between streams, waits for the device."""

import random
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from core.caches.full_parts import Offload
from core.config import EngineConfig, GenerationConfig
from core.engine import Engine
from core.models.cached_model import CachedModel
from core.ops.graphs import Graphs
from core.ops.transfer import PrefetchRing
from core.planning.hardware import resolve_device
from tests.core.toys import FIXED, random_prompt, tiny_engine
from tests.gpu.checklist import Here
from tests.gpu.machine import NOT_HERE
from tests.gpu.texts import ROOM, answer, measured, prompt_of
from tests.gpu.traces import host_time

CYCLES = 300_000  # of a delay, at most: 0.15 ms at 2 GHz, some passes of a toy


def toy(device: torch.device, offload: Offload | None, cpu_attention_share: float = 0.0) -> Engine:
    """A random target and a draft that often agrees, with small caches."""
    return tiny_engine(
        device=device.type, layers=3, kv_heads=2, offload=offload, cpu_attention_share=cpu_attention_share
    )


@contextmanager
def delays(seed: int, device: torch.device) -> Iterator[Callable[[], int]]:
    """Inside, streams are held up at random before copies and around the use of what has arrived.

    Whatever copies on a stream of its own runs inside of that stream there, so the delay falls on it. Yields a count.
    """
    rng, count = random.Random(seed), 0

    def late() -> None:
        nonlocal count
        if rng.random() < 0.25:
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


@contextmanager
def full_logits() -> Iterator[list[Tensor]]:
    """Inside, the logits of every pass over the full cache are kept."""
    kept: list[Tensor] = []
    real = CachedModel.feed_tokens

    def feed(self: CachedModel, *args: Any, **kwargs: Any) -> Tensor:
        logits = real(self, *args, **kwargs)
        if self.name == "full":
            kept.append(logits.clone())
        return logits

    with mock.patch.object(CachedModel, "feed_tokens", feed):
        yield kept


def everything(engine: Engine, prompt: list[int], config: GenerationConfig) -> tuple[Tensor, ...]:
    """An answer after a fresh reading: its tokens, all logits of full passes and all rows of the full cache."""
    engine.close()
    with full_logits() as logits:
        tokens = answer(engine, prompt, config).token_ids
    full = engine.full_cache
    rows = [torch.stack(full.rows(layer, 0, full.length)) for layer in range(full.shape.num_layers)]
    return torch.tensor(tokens), torch.cat(logits).cpu(), torch.stack(rows).cpu()


def differing(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> list[str]:
    """What of two answers is not the same bit for bit."""
    pairs = zip(("text", "logits", "rows"), one, other, strict=True)
    return [name for name, a, b in pairs if not torch.equal(a, b)]


def offloads() -> list[tuple[Offload, float]]:
    """Placements whose copies run beside computing, and the host's share."""
    shapes = (0, 2, 0.0), (1, 3, 0.0), (0, 2, 0.5)
    return [(Offload(num_resident=n, block_rows=64, num_slots=slots), share) for n, slots, share in shapes]


def races(here: Here) -> None:
    """With random delays on both streams texts, logits and rows are those without, bit for bit."""
    device = resolve_device(here.device)
    greedy = GenerationConfig(max_new_tokens=here.sized(32, 8), speculation=FIXED)
    if not here.cuda:
        here.report.add("delays", NOT_HERE)
    wrong: list[str] = []
    prompt, methods = random_prompt(here.sized(900, 200)), here.sized(("triforce", "autoregressive"), ("triforce",))
    for offload, share in offloads():
        engine = toy(device, offload, share)
        for method in methods:
            config = replace(greedy, method=method)
            name = f"{offload.num_resident} resident, {offload.num_slots} slots, host share {share}, {method}"
            expected = everything(engine, prompt, config)
            control, delayed, own = differing(expected, everything(engine, prompt, config)), 0, []
            for seed in range(here.sized(3, 1)):
                with delays(seed, device) as count:
                    own += differing(expected, everything(engine, prompt, config))
                delayed += count()
            here.report.add(name, {"delays": delayed, "differ": own, "differ without delays": control})
            wrong += [f"{name}: {', '.join(own or control)}"] if own or control else []
        del engine
    assert not wrong, f"not the same bit for bit: {'; '.join(wrong)}"


def sanitizer(here: Here) -> None:
    """torch's CUDA sanitizer notices no race in answers with offloaded layers, and one that is there on purpose.

    That one comes last: after its error torch 2.11's hooks fail.
    """
    device = resolve_device(here.device)
    if here.cuda:
        from torch.cuda import _sanitizer

        _sanitizer.enable_cuda_sanitizer()
    for offload, share in offloads():
        engine = toy(device, offload, share)
        config = GenerationConfig(method="triforce", max_new_tokens=here.sized(24, 8), speculation=FIXED)
        found = answer(engine, random_prompt(here.sized(500, 200)), config)
        here.report.add(f"{offload.num_resident} resident, host share {share}", {"new tokens": len(found.token_ids)})
        del engine
    if not here.cuda:
        here.report.add("a race on purpose is noticed", NOT_HERE)
        return
    noticed, rows = False, torch.ones(1 << 20, device=device)
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            rows.mul_(2)  # without waiting for the stream that filled them
    except _sanitizer.CUDASanitizerErrors:
        noticed = True
    here.report.add("a race on purpose is noticed", noticed)
    assert noticed


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
    """What a recording costs, what recordings save, and where the host's time goes between two passes."""
    tokens, new = here.sized((8192, 96), (1024, 12))
    config = EngineConfig(methods=("triforce",), context=tokens + ROOM, device=here.device, graphs=here.cuda)
    recordings: list[dict[str, Any]] = []
    for recorded in (True, False):
        with weighed(recordings) if here.cuda else nullcontext():
            engine = Engine.load(replace(config, graphs=recorded and here.cuda))
            prompt = prompt_of(engine, tokens)
            for method in ("autoregressive", "triforce"):
                wanted = GenerationConfig(method=method, max_new_tokens=new)
                answer(engine, prompt, wanted)  # records
                name = method if recorded else f"{method}, not recorded"
                here.report.add(name, measured(engine, prompt, wanted)[1])
        if recorded:
            plain = GenerationConfig(method="autoregressive", max_new_tokens=here.sized(32, 4))
            here.report.add("the host in plain decoding", host_time(partial(answer, engine, prompt, plain)))
            here.report.add("graphs", engine.info.graphs)
        engine.close()
        del engine
    here.report.add("recordings", recordings or NOT_HERE)


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
