"""The plan of memory is never below what is really allocated: bytes of all tensors, counted on a pretended GPU.

A small model in 16 bit has the proportions of a large one; pieces, chunks and windows are as much smaller, so that no
buffer is lost in the rounding. Tensors count from their first use to their last, as an allocator without gaps would
hold them; not what kernels use within themselves. On a card `tests/gpu` compares the same.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from core.caches.full import FullCache
from core.caches.layer_storage import KEPT_ROWS
from core.caches.policies import TopChunks
from core.caches.retrieval import RetrievalCache
from core.caches.streaming import StreamingCache
from core.config import DraftConfig, EngineConfig, PlacementWish, RetrievalConfig, SpeculationConfig
from core.engine import Engine
from core.generation.levels import LoadedModels
from core.models.loader import LoadedModel
from core.planning.hardware import Gpu, Machine
from core.planning.plan import make_plan
from core.planning.sizes import Sizes, grown_window
from tests.core.cuda_stubs import CUDA, PretendedGpu, pretended_gpu
from tests.core.toys import Letters, answer, loaded, random_prompt, sized

GIB, HALF, LAYERS = 1 << 30, torch.float16, 2
MACHINE = Machine("test processor", 2, 16 * GIB, 12 * GIB, (Gpu("Pretended GPU", 24 * GIB, 23 * GIB),))
CONFIG = EngineConfig(
    context=500,
    prefill_chunk=64,
    retrieval=RetrievalConfig(budget=96, chunk_size=8, local_window=32),
    draft=DraftConfig(window=72),
    graphs=False,
    cpu_attention_share=0.0,
)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedGpu]:
    """A pretended GPU, and constants in proportion to a small model."""
    for name, value in {
        "planning.sizes.PIECE_BYTES": 1 << 15,
        "planning.choices.LINK_BOUND_ROWS": 128,
        "ops.transfer.PICKED_BYTES": 1 << 15,
        "planning.measured.LINK_BYTES": 1 << 12,
        "planning.measured.SHARING_BYTES": 1 << 12,
    }.items():
        monkeypatch.setattr(f"core.{name}", value)
    with pretended_gpu() as found:
        yield found


def on_device(heads: int, kv_heads: int, layers: int = LAYERS, noise: float = 0.0) -> LoadedModel:
    """A random model with widths in Llama's proportions, in 16 bit on the GPU."""
    sizes = {"hidden_size": 32 * heads, "intermediate_size": 86 * heads, "num_hidden_layers": layers, "head_dim": 32}
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "max_position_embeddings": 4096}
    ends: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}
    model = loaded(LlamaConfig(vocab_size=64, initializer_range=0.1, **sizes, **ends), 3, noise)
    dims = replace(model.dims, weight_bytes=model.dims.weight_bytes // 2, disk_dtype=HALF)
    return LoadedModel(model.module.to(CUDA, HALF), dims, dims.shape(HALF, CUDA), model.eos_ids)


def share_of(gpu: PretendedGpu, planned: int, make: Callable[[], object]) -> float:
    """Bytes that what was made holds, of those planned for it."""
    before = gpu.memory.used_bytes
    made = make()
    kept = gpu.memory.used_bytes - before
    del made
    return kept / planned


def full_share(gpu: PretendedGpu, sizes: Sizes, context: int, resident: int) -> float:
    """Of a full cache before anything was read: without scores of chunks, rows on their way, a long pass's rows."""
    shape = sizes.dims.shape(HALF, CUDA)
    planned = sizes.device_bytes(context, resident)
    planned -= -(-4 * shape.num_layers * shape.num_kv_heads // sizes.chunk_size) * context
    if resident < LAYERS:
        long_pass = (sizes.block_rows(context) + KEPT_ROWS - 1) * sizes.row_bytes
        planned -= sizes.sending_rows * sizes.row_bytes + (LAYERS - resident) * long_pass
    offload = sizes.offload(context, resident)
    return share_of(gpu, planned, lambda: FullCache(shape, context, sizes.chunk_size, offload=offload))


@pytest.mark.parametrize("kv_heads", [4, 1])
@pytest.mark.parametrize("context", [512, 997])
def test_no_cache_takes_more_than_its_row_of_the_plan_and_no_row_is_much_too_large(
    gpu: PretendedGpu, context: int, kv_heads: int
) -> None:
    """Each alone: what one lacks hides in no other one's room."""
    dims = on_device(4, kv_heads).dims
    shape, sizes = dims.shape(HALF, CUDA), Sizes(dims, CONFIG, HALF, device="cuda")
    full = FullCache(shape, context, sizes.chunk_size, offload=sizes.offload(context, 0))
    window = grown_window(CONFIG.draft, dims, HALF)
    made: list[tuple[int, Callable[[], object]]] = [
        (sizes.layer_bytes(context), lambda: full.workspace(context)),
        (sizes.retrieval, lambda: RetrievalCache(full, TopChunks(full, CONFIG.retrieval))),
        (sizes.streaming, lambda: StreamingCache(shape, window, lambda keys, _: keys)),
    ]
    shares = [share_of(gpu, *one) for one in made]
    shares += [full_share(gpu, sizes, context, resident) for resident in range(LAYERS + 1)]
    assert all(0.98 < share <= 1 for share in shares), shares


def test_a_plan_without_the_newest_queries_is_too_small(gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the count notices a buffer that is left out."""
    monkeypatch.setattr("core.planning.sizes.QUERY_LOG", -2)
    assert full_share(gpu, Sizes(on_device(4, 4).dims, CONFIG, HALF, device="cuda"), 512, LAYERS) > 1.05


SLOW = [("resident", True, 4), ("split", True, 4), ("offloaded", False, 4), ("offloaded", True, 1)]


@pytest.mark.parametrize(
    ("placement", "layerwise", "kv_heads"),
    [("offloaded", True, 4), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_no_peak_of_an_engine_is_above_its_plan(
    gpu: PretendedGpu, placement: PlacementWish, layerwise: bool, kv_heads: int
) -> None:
    config = replace(CONFIG, placement=placement, layerwise=layerwise)
    target, draft = on_device(4, kv_heads), on_device(2, 2, 1, 0.1)
    plan = make_plan(sized(target.dims), draft.dims, config, MACHINE)
    engine = Engine(config, plan, Letters(), LoadedModels(target=target, draft=draft))
    planned = plan.total_bytes - plan.bytes_of("runtime")  # which is no tensor
    assert gpu.memory.peak_bytes <= planned, "loading"
    for method in ("autoregressive", "triforce"):
        gpu.memory.reset_peak()
        fixed = SpeculationConfig(gamma1=1, gamma2=3, adaptive=False)
        found = answer(engine, random_prompt(430), method, 5, speculation=fixed)  # the first one reads
        assert len(found.token_ids) == 5 and gpu.memory.peak_bytes <= planned, method
    del engine  # before the device goes
