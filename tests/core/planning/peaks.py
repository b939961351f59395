"""What the device really holds at most, against what the plan says: counted bytes of all tensors on a pretended GPU.

`python -m tests.core.planning.peaks [--json FILE --date DATE]` prints a table and writes it. A small model in 16 bit
has the proportions of a large one; pieces, chunks and windows are as much smaller, so that no buffer is lost in the
rounding. Counted are tensors from their first use to their last, as an allocator without gaps would hold them; not
what kernels use within themselves, and not the driver's own memory.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from core.caches.base import KVShape
from core.caches.full import FullCache
from core.caches.layer_storage import KEPT_ROWS
from core.caches.policies import TopChunks
from core.caches.retrieval import RetrievalCache
from core.caches.streaming import StreamingCache
from core.config import DraftConfig, EngineConfig, GenerationConfig, RetrievalConfig, SamplingParams, SpeculationConfig
from core.engine import Engine
from core.generation.events import Finished
from core.generation.loaded import LoadedModels
from core.models.loader import LoadedModel, ModelDims
from core.planning.hardware import Gpu, Machine, this_machine
from core.planning.plan import Plan, make_plan
from core.planning.sizes import CacheSizes, grown_window, retrieval_bytes, streaming_bytes
from tests.core.cuda_stubs import CUDA, PretendedGpu, pretended_gpu
from tests.core.toys import Letters, loaded, random_prompt

GIB, MIB = 1 << 30, 1 << 20
MACHINE = Machine("test processor", 2, 16 * GIB, 12 * GIB, (Gpu("Pretended GPU", 24 * GIB, 23 * GIB),))
HALF = torch.float16
RETRIEVED = RetrievalConfig(budget=96, chunk_size=8, local_window=32)
FIXED = SpeculationConfig(gamma1=1, gamma2=3, adaptive=False)
LAYERS = 2
Work = Callable[[Engine], object]


@dataclass(frozen=True, slots=True)
class Peak:
    """One situation."""

    situation: str
    planned_bytes: int  # without the runtime, which is no tensor
    measured_bytes: int

    @property
    def share(self) -> float:
        """Measured of planned."""
        return self.measured_bytes / self.planned_bytes


def config_of(heads: int, kv_heads: int, layers: int) -> LlamaConfig:
    """Widths in Llama's proportions."""
    hidden = 32 * heads
    return LlamaConfig(
        vocab_size=64,
        hidden_size=hidden,
        intermediate_size=hidden * 43 // 16,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=32,
        max_position_embeddings=4096,
        initializer_range=0.1,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=None,
    )


@contextmanager
def small_world() -> Iterator[PretendedGpu]:
    """A pretended GPU, and constants in proportion to a small model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("core.planning.sizes.PIECE_BYTES", 1 << 15)
        patch.setattr("core.planning.choices.LINK_BOUND_ROWS", 128)
        patch.setattr("core.ops.transfer.PICKED_BYTES", 1 << 15)
        patch.setattr("core.planning.measured.LINK_BYTES", 1 << 12)
        patch.setattr("core.planning.measured.SHARING_BYTES", 1 << 12)
        with pretended_gpu() as gpu:
            yield gpu


def on_device(model: LoadedModel) -> LoadedModel:
    """In 16 bit on the GPU."""
    dims = replace(model.dims, weight_bytes=model.dims.weight_bytes // 2, disk_dtype=HALF)
    return LoadedModel(model.module.to(CUDA, HALF), dims, dims.shape(HALF, CUDA), model.eos_ids)


def config(**changes: Any) -> EngineConfig:
    """Sizes of the small world."""
    base = EngineConfig(
        context=500,
        prefill_chunk=64,
        retrieval=RETRIEVED,
        draft=DraftConfig(window=72),
        graphs=False,
        cpu_attention_share=0.0,
    )
    return replace(base, **changes)


def engine_of(given: EngineConfig, kv_heads: int) -> Engine:
    """As it would be loaded, and as its plan says."""
    sizes = ((4, kv_heads, LAYERS, 0.0), (2, 2, 1, 0.1))
    target, draft = (on_device(loaded(config_of(heads, kv, layers), 3, noise)) for heads, kv, layers, noise in sizes)
    plan = make_plan(target.dims, draft.dims, given, MACHINE)
    assert plan.device.value == "cuda" and plan.dtype.value == HALF, plan.device
    return Engine(given, plan, Letters(), LoadedModels(target=target, draft=draft))


def planned_bytes(plan: Plan) -> int:
    """Of tensors on the device."""
    return plan.total_bytes - sum(row.size_bytes for row in plan.rows if row.name == "runtime")


# -------------------- what is kept, cache by cache


def kept_of(gpu: PretendedGpu, make: Callable[[], object]) -> int:
    """Bytes that what was made holds."""
    before = gpu.memory.used_bytes
    made = make()
    kept = gpu.memory.used_bytes - before
    del made
    return kept


def cache_peaks(context: int, kv_heads: int) -> list[Peak]:
    """Each cache alone, against its own rows of the plan: what one lacks hides in no other one's room."""
    own = config()
    with small_world() as gpu:
        dims = on_device(loaded(config_of(4, kv_heads, LAYERS), 3)).dims
        shape = dims.shape(HALF, CUDA)
        sizes = CacheSizes.of(dims, own, HALF, device="cuda")
        found = [full_peak(gpu, sizes, shape, context, resident) for resident in range(LAYERS, -1, -1)]
        found += other_peaks(gpu, sizes, dims, context)
    heads = "1 KV head" if kv_heads == 1 else f"{kv_heads} KV heads"
    return [replace(peak, situation=f"{peak.situation}; {context} tokens, {heads}") for peak in found]


def other_peaks(gpu: PretendedGpu, sizes: CacheSizes, dims: ModelDims, context: int) -> list[Peak]:
    """What lies beside the full cache."""
    own, shape = config(), dims.shape(HALF, CUDA)
    full = FullCache(shape, context, sizes.chunk_size, offload=sizes.offload(context, 0))
    makers: dict[str, tuple[int, Callable[[], object]]] = {
        "workspace, layer by layer": (sizes.layer_bytes(context), lambda: full.workspace(context)),
        "retrieval cache": (
            retrieval_bytes(dims, own, HALF),
            lambda: RetrievalCache(full, TopChunks(full, own.retrieval)),
        ),
        "streaming cache": (
            streaming_bytes(dims, own, HALF),
            lambda: StreamingCache(shape, grown_window(own.draft, dims, HALF), lambda keys, _: keys),
        ),
    }
    return [Peak(name, planned, kept_of(gpu, make)) for name, (planned, make) in makers.items()]


def full_peak(gpu: PretendedGpu, sizes: CacheSizes, shape: KVShape, context: int, resident: int) -> Peak:
    """The full cache before anything was read: without scores of chunks, rows on their way, a long pass's rows."""
    planned = sizes.device_bytes(context, resident)
    planned -= -(-4 * shape.num_layers * shape.num_kv_heads // sizes.chunk_size) * context
    if resident < LAYERS:
        away, long_pass = LAYERS - resident, (sizes.block_rows(context) + KEPT_ROWS - 1) * sizes.row_bytes
        planned -= sizes.sending_rows * sizes.row_bytes + away * long_pass
    offload = sizes.offload(context, resident)
    measured = kept_of(gpu, lambda: FullCache(shape, context, sizes.chunk_size, offload=offload))
    return Peak(f"full cache, {resident} of {LAYERS} layers resident", planned, measured)


# -------------------- engines at work


def engine_peaks(name: str, works: Mapping[str, Work], kv_heads: int = 4, **changes: Any) -> list[Peak]:
    """One engine, one piece of work after the other; each against the plan before or after it, the larger one."""
    found = []
    with small_world() as gpu:
        engines: list[Engine] = []
        measured = peak_of(gpu, lambda: engines.append(engine_of(config(**changes), kv_heads)))
        (engine,) = engines
        engines.clear()
        found.append(Peak(f"{name}: loading", planned_bytes(engine.plan), measured))
        for what, work in works.items():
            before, more = planned_bytes(engine.plan), 0
            measured = peak_of(gpu, partial(work, engine))
            if what == BUDGET:
                dims, given = engine._models.target.dims, config(**changes)
                wanted = replace(given, retrieval=replace(RETRIEVED, budget=MORE))
                more = retrieval_bytes(dims, wanted, HALF) - retrieval_bytes(dims, given, HALF)
            found.append(Peak(f"{name}: {what}", max(before, planned_bytes(engine.plan)) + more, measured))
        del engine  # before the device goes
    return found


def peak_of(gpu: PretendedGpu, work: Callable[[], object]) -> int:
    """The most bytes on the device meanwhile."""
    gpu.memory.reset_peak()
    work()
    return gpu.memory.peak_bytes


def answer(engine: Engine, method: str, **changes: Any) -> None:
    """Read what is new of a prompt and answer it."""
    own = GenerationConfig(method=method, max_new_tokens=5, speculation=FIXED, **changes)
    *_, finished = engine.generate(random_prompt(PROMPT), own)
    assert isinstance(finished, Finished) and len(finished.token_ids) == 5


def read(engine: Engine) -> None:
    """A prompt from its beginning."""
    engine.close()
    for _ in engine.read(random_prompt(PROMPT)):
        pass


def move(engine: Engine) -> None:
    """The device is full in the middle of a pass: a layer goes to the host."""
    before, attend = engine.plan.resident_layers, engine.full_cache.attend
    broken: list[int] = []

    def full_once(layer: int, q: torch.Tensor, scaling: float) -> torch.Tensor:
        if layer == LAYERS - 1 and not broken:
            broken.append(layer)
            raise torch.OutOfMemoryError("injected")
        return attend(layer, q, scaling)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.full_cache, "attend", full_once)
        answer(engine, "autoregressive")
    assert engine.plan.resident_layers == before - 1


READING, BUDGET, MOVING = "prefill", "a larger retrieval budget", "out of memory: a layer moves to the host"
PROMPT, MORE = 430, 160
WORKS: dict[str, Work] = {
    READING: read,
    "plain decoding": lambda engine: answer(engine, "autoregressive"),
    "TriForce": lambda engine: answer(engine, "triforce"),
    "TriForce, sampled": lambda engine: answer(
        engine, "triforce", sampling=SamplingParams(temperature=0.8, top_p=0.9, top_k=20)
    ),
}
LATER: dict[str, Work] = {BUDGET: lambda engine: answer(engine, "triforce", budget=MORE)}


def table() -> list[Peak]:
    """All situations."""
    found = [peak for context in (512, 997) for kv_heads in (4, 1) for peak in cache_peaks(context, kv_heads)]
    found += engine_peaks("resident", {**WORKS, **LATER})
    found += engine_peaks("resident, then split", {READING: read, MOVING: move, "prefill after that": read})
    found += engine_peaks("resident, 1 KV head", WORKS, 1)
    found += engine_peaks("split", {**WORKS, MOVING: move}, placement="split")
    found += engine_peaks("offloaded, chunk by chunk", WORKS, placement="offloaded", layerwise=False)
    found += engine_peaks("offloaded, layer by layer", {**WORKS, **LATER}, placement="offloaded")
    found += engine_peaks("offloaded, layer by layer, 1 KV head", WORKS, 1, placement="offloaded")
    return found


def main(arguments: list[str]) -> int:
    """Print the table, and write it; 1 where the plan is too small."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the table there")
    parser.add_argument("--date", default="", help="of the measurement")
    given = parser.parse_args(arguments)
    found = table()
    print("| situation | planned MiB | measured peak MiB | share |\n|---|---|---|---|")
    for peak in found:
        planned, measured = peak.planned_bytes / MIB, peak.measured_bytes / MIB
        print(f"| {peak.situation} | {planned:.3f} | {measured:.3f} | {100 * peak.share:.1f} % |")
    if given.json:
        rows = [
            {
                "situation": peak.situation,
                "planned_bytes": peak.planned_bytes,
                "measured_bytes": peak.measured_bytes,
                "share": round(peak.share, 4),
            }
            for peak in found
        ]
        content = {
            "date": given.date,
            "hardware": {"cpu": this_machine().cpu, "num_cores": this_machine().num_cores, "gpu": "pretended"},
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "rows": rows,
        }
        given.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 1 if any(peak.share > 1 for peak in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
