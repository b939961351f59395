"""The size in bytes of everything that a plan counts, except the full cache, which is in `cache_sizes`."""

from dataclasses import dataclass, replace

import torch

from core.caches.query_log import QUERY_LOG, QUERY_SAMPLE_STRIDE
from core.caches.retrieval import GROWTH
from core.caches.running_state import MOST_INPUTS, MOST_STATE_MARKS, STATE_COPIES
from core.caches.window_layer import SHORT, window_rows
from core.config import DraftConfig, EngineConfig
from core.models.linear import ROUNDED
from core.models.loader import ModelDims
from core.models.param_count import ModelSize
from core.models.quantised import FORMATS
from core.models.self_draft import BITS as DRAFTING_BITS
from core.ops.graphs import graph_bytes
from core.ops.scores import MOST_GROUPS
from core.ops.stored_blocks import LAYOUTS

GIB = 1 << 30
# torch, transformers and Python themselves in a process's RAM: 0.55 GB measured. What CUDA tells as a GPU's free memory
# is left beside the context of this process: no runtime is counted there.
RUNTIME_BYTES = 600 << 20
# Part of free RAM that a plan may use: the rest is for the system and unforeseen needs.
USABLE_SHARE = 0.9
# Free memory of a GPU that a plan leaves: for kernels, which load when they are first used (0.2 to 0.3 GiB of
# torch's and cuBLAS's), page tables of pinned host memory (0.12 GiB for 64 GiB), the allocator's gaps, NCCL's buffers,
# and what a desktop takes meanwhile. An estimate: the plan's own rows were 1% above the allocator's peak, which has
# cuBLAS's workspaces in it (NVIDIA H200, 2026-11-26).
GPU_MARGIN = 800 << 20
WINDOW_SHARE, MOST_WINDOW = 1 / 16, 1024  # of a draft's weights, in bytes; tokens
USUAL_MLP = 4  # times as wide as hidden states, if the configuration does not say
RUNTIME, TARGET_WEIGHTS, RETRIEVAL = "runtime", "target weights", "retrieval cache"
DRAFT_WEIGHTS, STREAMING, GRAPHS = "draft weights", "streaming cache", "CUDA graphs"
STATES = "running states"
WIDENED, WIDENED_BITS = "a matrix, widened", {"cpu": (8, 4), "cuda": (8,)}  # a GPU multiplies with 4 bits as they are
DRAFTING_WEIGHTS = f"self-draft weights, {DRAFTING_BITS} bit"


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One thing that takes memory."""

    name: str
    size_bytes: int


def usable_bytes(device: str, free_bytes: int) -> int:
    """Bytes of free memory that a plan may use on a device, or in host memory ("cpu")."""
    return max(0, free_bytes - GPU_MARGIN) if device == "cuda" else int(free_bytes * USABLE_SHARE)


def graph_rows(
    target: ModelDims, draft: ModelDims | None, config: EngineConfig, device: str, num_shares: int
) -> tuple[PlanRow, ...]:
    """Memory of recorded passes on a GPU. If several share the target, only the draft's passes are recorded.

    Args:
        draft: also None on a GPU without the draft.
    """
    largest = target if num_shares == 1 else draft
    if device != "cuda" or not config.graphs or largest is None:
        return ()
    return (PlanRow(GRAPHS, graph_bytes(largest.num_layers)),)


def retrieval_bytes(target: ModelDims, config: EngineConfig, dtype: torch.dtype) -> int:
    """All rows of the retrieval cache (the budget, and room to grow between two selections) and the chunks' numbers."""
    retrieval = config.retrieval
    shape = target.shape(dtype, torch.device("meta"))
    numbers = retrieval.num_chunks * len(shape.full_layers) * target.num_kv_heads * torch.int64.itemsize
    windows = sum(window_rows(reach, SHORT) | 1 for reach in shape.reaches if reach is not None)
    rows = (retrieval.budget + retrieval.chunk_size + GROWTH) | 1
    return rows * kv_bytes_per_token(target, dtype) + numbers + windows * shape.window_layer_bytes


def state_rows(target: ModelDims, dtype: torch.dtype, device: str) -> tuple[PlanRow, ...]:
    """Running states of recurrent layers, as often as the device keeps them, and inputs of a pass in two caches."""
    copies = STATE_COPIES + (MOST_STATE_MARKS if device == "cpu" else 0)  # a GPU's marks lie in host memory
    inputs = 2 * target.state.layers * MOST_INPUTS * target.hidden_size * dtype.itemsize
    size = copies * target.state.nbytes(dtype) + inputs
    return (PlanRow(STATES, size),) if size else ()


def streaming_bytes(draft: ModelDims, config: EngineConfig, dtype: torch.dtype) -> int:
    """All rows of the streaming cache."""
    shape = draft.shape(dtype, torch.device("meta"))
    return (grown_window(config.draft, draft, dtype).window | 1) * shape.num_layers * shape.layer_bytes


def grown_window(config: DraftConfig, draft: ModelDims, dtype: torch.dtype) -> DraftConfig:
    """The draft's window, as large as its passes hardly notice: keys and values of WINDOW_SHARE of its weights.

    On a processor, which computes in 32 bits, it stays: reading a longer one for every answer takes more than it saves.
    """
    if dtype.itemsize == torch.float32.itemsize:
        return config
    shape = draft.shape(dtype, torch.device("meta"))
    rows = int(WINDOW_SHARE * draft.weight_bytes) // (shape.num_layers * shape.layer_bytes)
    most = min(MOST_WINDOW, draft.max_context // 2, rows // 64 * 64)
    return replace(config, window=max(config.window, most))


def prefill_bytes(target: ModelDims, config: EngineConfig, dtype: torch.dtype, *, offloaded: bool) -> int:
    """Activations of one prompt chunk at their peak, in the MLP or where parts of attention are merged.

    Args:
        offloaded: whether any layer is; then each part is added to the sum of the earlier parts, in float32.
    """
    wide, hidden = torch.float32.itemsize, target.hidden_size * dtype.itemsize
    heads = target.num_heads * target.head_dim
    # Embeddings, a layer's input, its sum with attention, the norm of that; gate, its activation, the other factor
    mlp = 4 * hidden + 3 * (target.intermediate_size or USUAL_MLP * target.hidden_size) * dtype.itemsize
    # Embeddings, a layer's input, the norm of that; queries, perhaps folded too, and one or two parts; their sum
    merging = 3 * hidden + heads * (3 * (dtype.itemsize + wide) if offloaded else 4 * dtype.itemsize + 2 * wide)
    merging += 8 * wide * target.num_heads  # log-sum-exps
    rotary = 2 * target.head_dim * dtype.itemsize + 4 * torch.int64.itemsize  # cosines, sines, positions
    return config.prefill_chunk * (max(mlp, merging) + rotary)


def widened_row(size: ModelSize, dtype: torch.dtype, bits: int) -> PlanRow:
    """Room for quantised weights widened to the type of computation: one matrix at a time, and again in recordings."""
    dims = size.dims
    wide = max(dims.intermediate_size or USUAL_MLP * dims.hidden_size, dims.num_heads * dims.head_dim)
    copies = 2 if bits == 4 else 4  # of 8 bits before and after they are scaled
    return PlanRow(WIDENED, copies * wide * dims.hidden_size * dtype.itemsize)


def weight_bytes(dims: ModelDims, dtype: torch.dtype, *, packs: bool = False) -> int:
    """Bytes of as many weights as there are on disk, in the type of computation.

    Args:
        packs: whether the compiled kernel computes with them: then matrices stay in the bits of their file.
    """
    if packs:
        return dims.packed_bytes or dims.weight_bytes
    return dims.weight_bytes * dtype.itemsize // dims.disk_dtype.itemsize


def target_weight_bytes(
    dims: ModelDims, size: ModelSize | None, dtype: torch.dtype, bits: int, *, packs: bool = False
) -> int:
    """Bytes of the target's weights with so many bits.

    Args:
        size: its counted parameters; needed if `bits` is not the width of `dtype`.
        packs: as in `weight_bytes`.
    """
    if bits == 8 * dtype.itemsize:
        return weight_bytes(dims, dtype, packs=packs)
    assert size is not None, "quantised weights are planned from counted parameters"
    if bits not in FORMATS:
        return size.weight_bytes(bits)
    return size.rounded_bytes(LAYOUTS[ROUNDED[bits]].bits) if packs else size.quantised_bytes(bits, dtype)


def self_draft_weight_bytes(size: ModelSize, *, packs: bool) -> int:
    """Bytes of the 4-bit copy of all linear weights; `packs`: as in `weight_bytes`."""
    linear = size.layer_parameters + size.output_parameters
    return int(linear * LAYOUTS[ROUNDED[DRAFTING_BITS]].bits / 8) if packs else size.self_draft_bytes


def kv_bytes_per_token(dims: ModelDims, dtype: torch.dtype) -> int:
    """Keys and values of one token, in the layers that attend to all tokens."""
    return dims.shape(dtype, torch.device("meta")).bytes_per_token


def side_bytes_per_token(target: ModelDims, config: EngineConfig, dtype: torch.dtype) -> int:
    """Bytes of a token of context beside its keys and values, in all layers: a chunk's score."""
    return -(-4 * target.full_layers * target.num_kv_heads // config.retrieval.chunk_size)


def sample_bytes_per_token(target: ModelDims, dtype: torch.dtype) -> int:
    """Of all layers: every 64th query."""
    return -(-_query_bytes(target, dtype) // QUERY_SAMPLE_STRIDE)


def landmark_bytes_per_token(target: ModelDims, config: EngineConfig, dtype: torch.dtype) -> int:
    """Of one layer: a landmark per chunk, a key in the type of computation."""
    return -(-target.num_kv_heads * target.head_dim * dtype.itemsize // config.retrieval.chunk_size)


def vote_bytes_per_token(target: ModelDims, config: EngineConfig, dtype: torch.dtype) -> int:
    """Of one layer in host memory: what its newest pass attended to, by groups of tokens."""
    return -(-MOST_GROUPS * target.num_kv_heads * min(dtype.itemsize, 4) // config.retrieval.chunk_size)


def beside_bytes(target: ModelDims, dtype: torch.dtype) -> int:
    """Bytes beside the full cache at every context: the newest queries, and rows added by rounding up.

    Those are two rows of sampled queries (one for queries not sampled, one for the last interval), and one landmark.
    """
    landmark = _wide(kv_bytes_per_token(target, dtype), target, dtype) // 2
    return (QUERY_LOG + 2) * _query_bytes(target, dtype) + landmark


def _wide(kv_bytes: int, target: ModelDims, dtype: torch.dtype) -> int:
    """Keys and values in the type of computation, which landmarks have."""
    return kv_bytes * dtype.itemsize // (target.kv_dtype or dtype).itemsize


def _query_bytes(target: ModelDims, dtype: torch.dtype) -> int:
    return target.full_layers * target.num_heads * target.head_dim * dtype.itemsize


def gib(size_bytes: int) -> str:
    """12.6 GiB."""
    tiny = size_bytes < GIB // 10  # of a small model: 0.0 GiB would say nothing
    return f"{size_bytes / (1 << 20):.1f} MiB" if tiny else f"{size_bytes / GIB:.1f} GiB"
