"""Steps at the size of real models: the bundled target widened to Llama2-7B's shape, reading generated books.

What it computes is the bundled target (`core.models.widen`), so text and acceptance are real while weights, keys and
values are as large as the 7B model's. Books are read, not made up.
"""

import gc
from dataclasses import replace
from typing import Any

from core.config import EngineConfig, GenerationConfig
from core.engine import Engine
from core.engine_builder import LoadedPair, PairFiles
from core.errors import NotEnoughMemory
from core.planning.hardware import (
    cap_memory,
    peak_memory_bytes,
    reset_peak_memory,
    resolve_device,
    return_memory,
    this_machine,
)
from core.planning.planner import make_plan
from tests.gpu.checklist import Here
from tests.gpu.machine import device_of
from tests.gpu.texts import ROOM, answer, figures, prompt_of

MODEL, TINY_MODEL = "widened:llama2-7b", "harbour"
CARD_GIB = 24.0  # of the cards that most readers have
GOAL_LINK, GOAL_OFFLOADED, GOAL_RESIDENT = 0.9, 10.0, 2.3  # shares and speedups that are aimed at
PUBLISHED = {"one card, offloaded": 4.86, "on chip": 2.31}  # speedups, arXiv 2404.11912


class Loaded:
    """Weights that engines with and without recordings use, one after the other."""

    def __init__(self, config: EngineConfig) -> None:
        files = PairFiles.find(config.model, config.draft_model)
        self._config = config
        self._plan = make_plan(files.target, files.draft, config, this_machine(), files.counted(config))
        self._pair = LoadedPair.load(files, config, self._plan, resolve_device(self._plan.device.value))

    def engine(self, *, graphs: bool) -> Engine:
        """Another engine for the same weights."""
        return Engine.of(self._pair, replace(self._config, graphs=graphs), self._plan)


def _clear() -> None:
    gc.collect()
    return_memory()


def big(here: Here) -> None:
    """Offloaded at 128K and 64K: what prefill peaks at, what the link carries, plain against TriForce."""
    model = here.sized(MODEL, TINY_MODEL)
    for tokens in here.sized((122880, 61440), (1536, 1024)):
        config = EngineConfig(
            methods=("triforce",),
            model=model,
            device=here.device,
            context=-(-(tokens + ROOM) // 64) * 64,
            gpu_memory_gib=here.sized(CARD_GIB, 1.0),
            placement=here.sized("auto", "offloaded"),
        )
        name = f"{tokens} tokens"
        try:
            engine = Engine.load(config)
        except NotEnoughMemory as error:
            here.report.add(name, {"skipped": str(error), "largest context": error.largest_context})
            continue
        reset_peak_memory()
        prompt = prompt_of(engine, tokens)
        own: dict[str, Any] = {
            "the cache is filled by": "reading a generated book",
            "placement": engine.plan.placement,
            "resident layers": engine.plan.resident_layers,
            "read by": {"chunk": engine.plan.prefill_chunk, "block": engine.plan.prefill_block},
            "host memory": engine.info.host_memory,
            "host share": engine.info.plan.cpu_attention,
            "link, bytes a second": engine.info.link,
            "planned bytes": {row.name: row.size_bytes for row in engine.plan.rows},
            "published": PUBLISHED["one card, offloaded"],
        }
        here.report.add(name, own)
        first = answer(engine, prompt, GenerationConfig(method="triforce", max_new_tokens=1))
        peak = peak_memory_bytes(device_of(here.device))
        own |= {"prefill": figures(first), "peak bytes": peak, "peak over plan": peak / engine.plan.total_bytes}
        here.report.add(name, own)
        fast = answer(engine, prompt, GenerationConfig(method="triforce", max_new_tokens=here.sized(96, 12)))
        own["triforce"] = figures(fast)
        here.report.add(name, own)
        lookup = answer(engine, prompt, GenerationConfig(method="triforce-lookup", max_new_tokens=here.sized(96, 12)))
        own["triforce-lookup"] = figures(lookup)
        plain = answer(engine, prompt, GenerationConfig(method="autoregressive", max_new_tokens=here.sized(12, 4)))
        own["autoregressive"] = figures(plain)
        own |= _speedups(plain, fast, GOAL_OFFLOADED)
        share = fast.stats.link_share
        own["link share"] = {"found": share, "goal": GOAL_LINK, "met": share is not None and share >= GOAL_LINK}
        length = len(plain.token_ids)
        own["equality"] = engine.compare(prompt, plain.token_ids, fast.token_ids[:length])
        own["graphs"] = engine.info.graphs
        here.report.add(name, own)
        del engine
        _clear()


def resident(here: Here) -> None:
    """All on the device at 32K: recorded against recorded, and both once more as they are launched one by one."""
    tokens = here.sized(32768, 1024)
    config = EngineConfig(
        methods=("triforce",),
        model=here.sized(MODEL, TINY_MODEL),
        device=here.device,
        context=-(-(tokens + ROOM) // 64) * 64,
        placement="resident",
        graphs=here.cuda,
    )
    try:
        weights = Loaded(config)
    except NotEnoughMemory as error:
        if error.largest_context is None or error.largest_context < 4096:
            here.report.add("skipped", str(error))
            return
        tokens = error.largest_context - ROOM - 64
        here.report.add("smaller", f"{tokens} tokens, as {error}")
        weights = Loaded(replace(config, context=error.largest_context))
    cap_memory(device_of(here.device), None)
    for recorded in (True, False):
        engine = weights.engine(graphs=recorded and here.cuda)
        prompt = prompt_of(engine, tokens)
        runs = {}
        for method in ("autoregressive", "triforce", "retrieval", "triforce-lookup"):
            wanted = GenerationConfig(method=method, max_new_tokens=here.sized(128, 12))
            if recorded and here.cuda:
                answer(engine, prompt, wanted)  # records
            runs[method] = answer(engine, prompt, wanted)
        own: dict[str, Any] = {method: figures(run) for method, run in runs.items()}
        own |= _speedups(runs["autoregressive"], runs["triforce"], GOAL_RESIDENT)
        own["published, against launches one by one"] = PUBLISHED["on chip"]
        own["equality"] = engine.compare(prompt, runs["autoregressive"].token_ids, runs["triforce"].token_ids)
        own["graphs"] = engine.info.graphs
        own["peak bytes"] = peak_memory_bytes(device_of(here.device))
        here.report.add("recorded" if recorded else "launched one by one", own)
        del engine
        _clear()


def _speedups(plain: Any, fast: Any, goal: float) -> dict[str, Any]:
    times = [run.stats.ms_per_token for run in (plain, fast)]
    if not all(times):
        return {"speedup": None}
    speedup = times[0] / times[1]
    return {"speedup": {"found": speedup, "goal": goal, "met": speedup >= goal}}
