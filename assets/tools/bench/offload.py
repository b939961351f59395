"""`bench --suite offload`: context by placement of the full cache by method, with limited memory.

Weights are loaded once. Each placement gets its own engine, with the same books and the same questions, so that texts
can be compared across placements. Prefill and decoding are reported separately, and link traffic together with the rate
of a plain copy.
"""

import argparse
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from assets.tools.bench.pair import SharedPair
from assets.tools.bench.report import Measurement, bench_config, settings, speed_shape, tell
from assets.tools.bench.speed import Row, median_ms, plain_first, prompt_ids, reset_peak_memory
from core.config import EngineConfig, GenerationConfig, PlacementWish
from core.decoding.registry import COMPARED, PLAIN
from core.engine import Engine
from core.errors import InvalidSetting, NotEnoughMemory
from core.generation.events import Finished, PrefillProgress
from core.planning.hardware import cap_memory, peak_memory_bytes, resolve_device, this_machine

PLACEMENTS: tuple[PlacementWish, ...] = ("resident", "split", "offloaded")
DEFAULT_CONTEXTS = {"cpu": (4096, 8192, 16384), "cuda": (32768, 61440, 122880)}


def start(args: argparse.Namespace) -> Measurement:
    """Load the weights and begin. Raises CoreError: settings, model or memory."""
    placements = tuple(dict.fromkeys(args.placements or PLACEMENTS))
    for name in placements:
        if name not in PLACEMENTS:
            raise InvalidSetting(f"There is no placement {name!r}.", hint=f"Use some of: {', '.join(PLACEMENTS)}.")
    config, skipped = bench_config(args), list[Row]()
    pair, shape = SharedPair(replace(config, context=64, placement="auto"), 0), speed_shape(args)
    told = settings(args, pair.model, pair.plan, args.self_draft_bits)
    told |= {"gpu_memory_gib": args.gpu_memory, "placements": list(placements), **shape}
    engines = partial(engine_of, pair, config)
    contexts = args.contexts or DEFAULT_CONTEXTS[pair.plan.device.value]
    rows = run_offload(engines, contexts, placements, args.methods or COMPARED, skipped, **shape)
    return Measurement(told, rows, lambda: {"skipped": skipped})


def run_offload(
    engines: Callable[[int, str], Engine],
    contexts: Sequence[int],
    placements: Sequence[str],
    methods: Sequence[str],
    skipped: list[Row],
    *,
    repeats: int,
    max_new_tokens: int,
    seed: int,
) -> Iterator[Row]:
    """Measure. Rows come placement by placement; plain decoding is always measured.

    Args:
        engines: an engine for so many tokens, by placement. skipped: gets those that could not be measured at a length.
    """
    methods = plain_first(methods)
    for context in contexts:
        first: tuple[int, ...] | None = None
        for placement in placements:
            try:
                engine = engines(context + max_new_tokens, placement)
            except NotEnoughMemory as error:
                skipped.append({"context": context, "placement": placement, "problem": str(error)})
                tell(f"Not measured: {placement} at {context:,} tokens. {error}")
                continue
            prompt, brought = prompt_ids(engine.text, context, seed), 0
            device = resolve_device(engine.plan.device.value)
            runs: dict[str, list[Finished]] = {method: [] for method in methods}
            for _ in range(repeats):
                for method in methods:
                    config = GenerationConfig(method=method, max_new_tokens=max_new_tokens, seed=seed)
                    for event in engine.generate(prompt, config):
                        if isinstance(event, PrefillProgress) and event.reused_tokens == 0:
                            brought = engine.full_cache.link_traffic[0]
                    assert isinstance(event, Finished)
                    runs[method].append(event)
            first = first or runs[PLAIN][-1].token_ids
            peak = peak_memory_bytes(device)
            yield from (_row(context, engine, runs, method, peak, first, brought) for method in methods)
            del engine
            gc.collect()  # the next engine needs its memory
            cap_memory(device, None)


def engine_of(pair: SharedPair, config: EngineConfig, tokens: int, placement: str) -> Engine:
    """An engine for so many tokens whose cache is placed so. Raises NotEnoughMemory."""
    config = replace(config, context=pair.context_of(tokens), placement=cast(PlacementWish, placement))
    if placement == "resident":  # the limit is for the other placements
        config = replace(config, gpu_memory_gib=None)
    elif config.gpu_memory_gib is None and pair.device.type == "cpu":  # only a limit divides this memory into two
        config = replace(config, gpu_memory_gib=this_machine().free_ram_bytes / (1 << 31))
    reset_peak_memory()
    return pair.engine(config)


def _row(
    context: int,
    engine: Engine,
    runs: dict[str, list[Finished]],
    method: str,
    peak: int,
    first: tuple[int, ...],
    brought: int,
) -> Row:
    reading = runs[PLAIN][0]  # the first run read the book
    last, plan, stats = runs[method][-1], engine.plan, runs[method][-1].stats
    fresh = reading.prompt_tokens - reading.reused_tokens
    rate, calibration = stats.link_bytes_per_second, stats.link_calibration
    return {
        "context": context,  # wanted prompt tokens
        "placement": plan.placement.value,
        "resident_layers": plan.resident_layers,
        "num_layers": plan.num_layers,
        "method": method,
        "prompt_tokens": last.prompt_tokens,
        "prefill_seconds": reading.prefill_seconds,
        "prefill_tokens_per_second": fresh / max(reading.prefill_seconds, 1e-9),
        "prefill_link_bytes": brought,  # link traffic of reading the prompt
        "new_tokens": stats.new_tokens,
        "ms_per_token": median_ms(runs[method]),
        "recording_seconds": max(run.stats.recording_seconds for run in runs[method]),  # beside these times, the most
        "speedup_vs_autoregressive": median_ms(runs[PLAIN]) / median_ms(runs[method]),  # with the same placement
        "acceptance_level1": stats.level1.acceptance if stats.level1 else None,
        "acceptance_level2": stats.level2.acceptance if stats.level2 else None,
        "tokens_per_full_pass": stats.tokens_per_full_pass,
        "link_bytes": stats.link_bytes,  # of one run's verification
        "link_gb_per_second": rate / 1e9 if rate is not None else None,
        "link_calibration_gb_per_second": calibration / 1e9 if calibration is not None else None,
        "link_share": stats.link_share,
        "host_memory": engine.info.host_memory.value if engine.info.host_memory else None,
        "cpu_attention_share": plan.cpu_attention.value or 0.0,  # of the blocks in host memory
        "planned_bytes": plan.total_bytes,  # on the device
        "peak_memory_bytes": peak,  # on CUDA of the device, else of the process
        "identical_to_first": last.token_ids == first,  # plain decoding's with the first placement measured
    }
