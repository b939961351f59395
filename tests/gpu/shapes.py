"""Steps at the size of real models: the bundled target widened to Llama2-7B's shape, reading generated books.

What it computes is the bundled target (`assets.tools.widen`), so text and acceptance are real while weights, keys and
values are as large as the 7B model's. Books are read, not made up.
"""

import pkgutil
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import psutil
import torch

from assets.tools.bench.speed import reset_peak_memory
from assets.tools.widen import pair_files
from core.caches.retrieval import RetrievalCache
from core.caches.tokens import Context
from core.config import EngineConfig, GenerationConfig, RetrievalConfig, SpeculationConfig
from core.engine import Engine
from core.engine_builder import planned_pair
from core.errors import NotEnoughMemory
from core.planning.hardware import peak_memory_bytes, resolve_device, return_memory
from tests.gpu.checklist import Here
from tests.gpu.machine import smi
from tests.gpu.texts import CARD_GIB, ROOM, Answers, measured, prompt_of
from tests.gpu.traces import host_time, traced, wait

MODEL, TODAY, TINY_MODEL = "widened:llama2-7b", "widened:qwen3-14b", "harbour"
# What a start consists of; some lie in others
PLACES = (
    "core.engine_builder.composed_plan",
    "assets.tools.widen.WidenedFiles.load_target",
    "core.engine_builder._load_draft",
    "core.engine_builder._tried",
    "core.generation.levels.make_full_cache",
    "core.ops.transfer.HostRows.__init__",
    "core.generation.placement.measure_link",
    "core.generation.placement.measure_sharing",
    "core.generation.levels.Levels.try_graphs",
)


@contextmanager
def clocked(seconds: dict[str, float], device: torch.device) -> Iterator[None]:
    """Inside, the seconds in some functions are added up, until the device has done what they gave it."""

    def wrapper(name: str, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return real(*args, **kwargs)
            finally:
                wait(device)
                seconds[name] += time.perf_counter() - started

        return call

    with ExitStack() as stack:
        for place in PLACES:
            owner, _, name = place.rpartition(".")
            found = pkgutil.resolve_name(owner)
            if hasattr(found, name):  # else it has another name now
                own = wrapper(place.removeprefix("core."), getattr(found, name))
                stack.enter_context(mock.patch.object(found, name, own))
        yield


def config_of(here: Here, tokens: int, **more: Any) -> EngineConfig:
    """Llama2-7B's shape with the authors' budget where the cache waits in host memory."""
    return EngineConfig(
        methods=("triforce",),
        model=here.sized(MODEL, TINY_MODEL),
        device=here.device,
        context=-(-(tokens + ROOM) // 64) * 64,
        retrieval=RetrievalConfig(budget=here.sized(8192, 512)),
        graphs=here.cuda,
        **more,
    )


def opened(here: Here, config: EngineConfig) -> tuple[EngineConfig, Engine]:
    """An engine, with the largest context that fits where this one does not; where the time of its start goes."""
    device, seconds = resolve_device(here.device), defaultdict[str, float](float)
    seconds["interpreter and imports"] = time.time() - psutil.Process().create_time()
    started = time.perf_counter()
    with clocked(seconds, device):
        try:
            pair, plan = planned_pair(config, pair_files(config))
        except NotEnoughMemory as error:
            here.report.add("refused", {"context": config.context, "error": str(error)})
            if error.largest_context is None:
                raise
            config = replace(config, context=error.largest_context // 64 * 64)
            pair, plan = planned_pair(config, pair_files(config))
        seconds["pair, all of it"] = time.perf_counter() - started
        engine = Engine.of(pair, config, plan)
    seconds["pair and engine, all of it"] = time.perf_counter() - started
    here.report.add("seconds of the start", seconds)
    return config, engine


def big(here: Here) -> None:
    """Nothing of the cache on the device: what a start costs, plain against TriForce by budget and round, one trace.

    `--more`: rounds of a fixed length.
    """
    _as_on_a_card(here, config_of(here, here.sized(122880, 1536)))


def in_bits(here: Here) -> None:
    """As `big`, a model of today whose weights fit a card in 4 bits while its keys and values do not."""
    wanted = config_of(here, here.sized(131072 - ROOM, 1536), bits=4)
    _as_on_a_card(here, replace(wanted, model=here.sized(TODAY, TINY_MODEL)))


def _as_on_a_card(here: Here, wanted: EngineConfig) -> None:
    """A long text within the memory of a card of 24 GB."""
    device = resolve_device(here.device)
    free = torch.cuda.mem_get_info()[0] if here.cuda else 0
    card = here.sized(CARD_GIB, 1.0)
    wanted = replace(wanted, gpu_memory_gib=card, placement=here.sized("auto", "offloaded"))
    config, engine = opened(here, wanted)
    here.report.add("memory after the start", memory(engine, device, free))
    started = time.perf_counter()
    prompt = prompt_of(engine, (config.context or 0) - ROOM)
    plan, link = engine.plan, engine.info.link
    here.report.add(
        "plan",
        {
            "seconds of writing and encoding the book": time.perf_counter() - started,
            "context": config.context,
            "placement": plan.placement,
            "read by": {"chunk": plan.prefill_chunk, "block": plan.prefill_block},
            "host memory": engine.info.host_memory,
            "host share": engine.info.plan.cpu_attention,
            "link, bytes a second": link.value if link else None,
            "planned bytes": {row.name: row.size_bytes for row in plan.rows},
        },
    )
    reset_peak_memory()
    answers = Answers(here, engine, prompt)
    answers.add("plain", "autoregressive", 8)
    new, budget = here.sized(64, 12), config.retrieval.budget
    first = answers.add(f"triforce, budget {budget}", "triforce", new)
    here.report.add("memory", memory(engine, device, free))
    answers.add("triforce-lookup", "triforce-lookup", new)
    answers.add(f"triforce, budget {budget // 2}", "triforce", new, budget=budget // 2)
    engine.use_budget(budget)
    if engine.info.plan.cpu_attention.value:
        engine.full_cache.let_host_attend(0.0)
        answers.add("plain, the host attends to nothing", "autoregressive", 4)
        answers.add("triforce, the host attends to nothing", "triforce", new)
    try:
        for name, found in parts_traced(engine, prompt, first.token_ids if first else (), device):
            here.report.add(f"trace of {name}", found)
    except Exception as error:  # what is left is worth more than a profile
        here.report.add("trace failed", f"{type(error).__name__}: {error}")
    here.report.add("memory", memory(engine, device, free))
    answers.check()
    if here.options.more:
        for gamma in (6, 12):
            fixed = SpeculationConfig(gamma1=2, gamma2=gamma, adaptive=False)
            answers.add(f"triforce, {gamma} guesses a round", "triforce", here.sized(48, 12), speculation=fixed)
        answers.check()


def memory(engine: Engine, device: torch.device, free: int) -> dict[str, Any]:
    """What the plan says beside what the allocator, the driver and nvidia-smi have seen, in bytes."""
    found: dict[str, Any] = {"planned": engine.plan.total_bytes, "peak of tensors": peak_memory_bytes(device)}
    if device.type == "cuda":
        found |= {
            "tensors now": torch.cuda.memory_allocated(),
            "held by the allocator now": torch.cuda.memory_reserved(),  # more: holes that no cache fits into
            "peak that the allocator held": torch.cuda.max_memory_reserved(),
            "less free now than before the start": free - torch.cuda.mem_get_info()[0],
            "nvidia-smi": smi("--query-gpu=memory.used,memory.free", "--format=csv"),
        }
    return found | {"peak of tensors over plan": found["peak of tensors"] / found["planned"]}


def parts_traced(
    engine: Engine, prompt: list[int], text: Sequence[int], device: torch.device
) -> Iterator[tuple[str, dict[str, Any]]]:
    """One pass over the full cache, one selection and one pass over the retrieval cache, as a round has them."""
    parts, tokens = engine._levels.parts, [*prompt, *text[:10]]
    assert isinstance(parts.retrieval.cache, RetrievalCache)
    for _ in engine.read(prompt):
        pass
    parts.count_votes(True)
    seen = len(prompt) + 8
    full = partial(parts.full.logits, Context(tokens[:seen]), 9)
    yield "a full pass of 9 rows", traced(full, device)
    yield "a selection", traced(parts.retrieval.cache.select, device)
    parts.retrieval.logits(Context(tokens[: seen + 1]), 1)  # records
    passed = partial(parts.retrieval.logits, Context(tokens[: seen + 2]), 1)
    yield "a retrieval pass of one row", traced(passed, device)
    parts.count_votes(False)
    engine.settle(prompt)


def resident(here: Here) -> None:
    """All on the device at 32K, recorded; where the time between two passes goes. `--more`: launched one by one."""
    config, engine = opened(here, config_of(here, here.sized(32768, 1024), placement="resident"))
    prompt = prompt_of(engine, (config.context or 0) - ROOM)
    answers, new = Answers(here, engine, prompt), here.sized(64, 12)
    methods = {"plain": "autoregressive", "triforce": "triforce", "triforce-lookup": "triforce-lookup"}
    for name, method in methods.items():
        answers.add(f"{name}, recording", method, new)
        answers.add(name, method, new)
    for method in ("autoregressive", "triforce"):
        wanted = GenerationConfig(method=method, max_new_tokens=here.sized(24, 4))
        work = partial(measured, engine, prompt, wanted)
        here.report.add(f"{method}: device and operations", traced(work, resolve_device(here.device)))
        here.report.add(f"{method}: Python", host_time(work))
    here.report.add("peak of tensors", peak_memory_bytes(resolve_device(here.device)))
    answers.check()
    if here.options.more:
        answers.engine = Engine.of(engine._models, replace(config, graphs=False), engine.plan)
        del engine
        return_memory()
        for name, method in methods.items():
            answers.add(f"{name}, launched one by one", method, new)
        answers.check()
