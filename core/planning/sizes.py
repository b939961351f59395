"""What each thing weighs that a plan counts, in bytes; what the full cache takes is in `cache_sizes`."""

from dataclasses import dataclass

import torch

from core.caches.query_log import QUERY_LOG, QUERY_SAMPLE_STRIDE
from core.caches.retrieval import GROWTH
from core.config import EngineConfig
from core.models.loader import ModelDims
from core.models.param_count import ModelSize
from core.models.quantised import FORMATS
from core.models.self_draft import BITS as DRAFTING_BITS
from core.ops.graphs import graph_bytes

GIB = 1 << 30
# torch, transformers and Python themselves, measured: 0.55 GB on CPU (a CUDA context takes about as much on the GPU)
RUNTIME_BYTES = 600 << 20
# Part of the free memory that a plan may use: the rest stays for the system and for what cannot be foreseen.
USABLE_SHARE = 0.9
USUAL_MLP = 4  # times as wide as hidden states, where the configuration does not say
RUNTIME, TARGET_WEIGHTS, RETRIEVAL = "runtime", "target weights", "retrieval cache"
DRAFT_WEIGHTS, STREAMING, GRAPHS = "draft weights", "streaming cache", "CUDA graphs"
DRAFTING_WEIGHTS = f"self-draft weights, {DRAFTING_BITS} bit"


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One thing that takes memory."""

    name: str
    size_bytes: int


def graph_rows(
    target: ModelDims, draft: ModelDims | None, config: EngineConfig, device: str, num_shares: int
) -> tuple[PlanRow, ...]:
    """What recorded passes take on a GPU. Where several share the target, only the draft's are recorded.

    Args:
        draft: None also on a GPU that holds none.
    """
    largest = target if num_shares == 1 else draft
    if device != "cuda" or not config.graphs or largest is None:
        return ()
    return (PlanRow(GRAPHS, graph_bytes(largest.num_layers)),)


def retrieval_bytes(target: ModelDims, config: EngineConfig, dtype: torch.dtype) -> int:
    """All rows of the retrieval cache: the budget, and room to grow between two selections; the chunks' numbers."""
    retrieval = config.retrieval
    numbers = retrieval.num_chunks * target.num_layers * target.num_kv_heads * torch.int64.itemsize
    return ((retrieval.budget + retrieval.chunk_size + GROWTH) | 1) * kv_bytes_per_token(target, dtype) + numbers


def streaming_bytes(draft: ModelDims, config: EngineConfig, dtype: torch.dtype) -> int:
    """All rows of the streaming cache."""
    return (config.draft.window | 1) * kv_bytes_per_token(draft, dtype)


def prefill_bytes(target: ModelDims, config: EngineConfig, dtype: torch.dtype, *, offloaded: bool) -> int:
    """Activations of one chunk of the prompt where most are alive, in the MLP or where parts of attention are merged.

    Args:
        offloaded: any layer is; a part is then added to the sum of those before, in float32.
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


def widened_row(size: ModelSize, dtype: torch.dtype) -> PlanRow:
    """Room for the quantised weights of one layer in the type that is computed in."""
    return PlanRow("one layer, widened", size.layer_parameters // size.dims.num_layers * dtype.itemsize)


def weight_bytes(dims: ModelDims, dtype: torch.dtype) -> int:
    """Of weights in the type that is computed in, as many as there are on disk."""
    return dims.weight_bytes * dtype.itemsize // dims.disk_dtype.itemsize


def target_weight_bytes(dims: ModelDims, size: ModelSize | None, dtype: torch.dtype, bits: int) -> int:
    """Of the target's weights with so many bits.

    Args:
        size: its parameters, counted; needed where `bits` is not the width of `dtype`.
    """
    if bits == 8 * dtype.itemsize:
        return weight_bytes(dims, dtype)
    assert size is not None, "quantised weights are planned from counted parameters"
    return size.quantised_bytes(bits, dtype) if bits in FORMATS else size.weight_bytes(bits)


def kv_bytes_per_token(dims: ModelDims, dtype: torch.dtype) -> int:
    """Keys and values of one token."""
    return dims.shape(dtype, torch.device("meta")).bytes_per_token


def context_bytes_per_token(target: ModelDims, config: EngineConfig, dtype: torch.dtype) -> int:
    """What a token of context takes. Full cache; a landmark per chunk (keys only), its score; every 64th query."""
    kv = kv_bytes_per_token(target, dtype)
    landmark = -(-kv // (2 * config.retrieval.chunk_size))
    score = -(-4 * target.num_layers * target.num_kv_heads // config.retrieval.chunk_size)
    samples = -(-_query_bytes(target, dtype) // QUERY_SAMPLE_STRIDE)
    return kv + landmark + score + samples


def beside_bytes(target: ModelDims, dtype: torch.dtype) -> int:
    """What lies beside the full cache whatever the context is: the newest queries, and rows that are rounded up to.

    Of sampled queries the row that takes no sample, and the last one, begun; a landmark, as their rows are odd.
    """
    return (QUERY_LOG + 2) * _query_bytes(target, dtype) + kv_bytes_per_token(target, dtype) // 2


def _query_bytes(target: ModelDims, dtype: torch.dtype) -> int:
    return target.num_layers * target.num_heads * target.head_dim * dtype.itemsize


def gib(size_bytes: int) -> str:
    """12.6 GiB."""
    tiny = size_bytes < GIB // 10  # of a small model: 0.0 GiB would say nothing
    return f"{size_bytes / (1 << 20):.1f} MiB" if tiny else f"{size_bytes / GIB:.1f} GiB"
