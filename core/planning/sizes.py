"""The size in bytes of everything that a plan counts."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from core.caches.base import KVShape
from core.caches.full import MOST_WINDOW_MARKS
from core.caches.full_parts import Offload
from core.caches.layer_storage import KEPT_ROWS, tail_rows
from core.caches.policies import needs_landmarks
from core.caches.query_log import QUERY_LOG, QUERY_SAMPLE_STRIDE
from core.caches.retrieval import GROWTH
from core.caches.running_state import MOST_INPUTS, MOST_STATE_MARKS, STATE_COPIES
from core.caches.window_layer import FORGETTABLE, SHORT, window_rows
from core.config import DraftConfig, EngineConfig
from core.models.linear import ROUNDED
from core.models.loader import ModelDims
from core.models.param_count import ModelSize
from core.models.self_draft import BITS as DRAFTING_BITS
from core.models.self_draft import ROUNDED_AT_ONCE, WIDENING_BYTES
from core.models.self_draft import STORED_BITS as COPIED_BITS
from core.ops.reach import Reach
from core.ops.scores import MOST_GROUPS
from core.ops.stored_blocks import LAYOUTS
from core.planning.choices import prefill_chunk

GIB, META = 1 << 30, torch.device("meta")
# torch, transformers and Python in a process's RAM: 0.55 GB measured. On a GPU no runtime is counted: its free
# memory is what CUDA's context leaves.
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
RING_SLOTS = 3  # groups of blocks on their way, in use, or being freed
# A block is small, because the device holds the newest one of every offloaded layer; a group is large enough that
# launching a copy and attending cost little beside the copy (64 MiB: 2.6 ms at 25 GB/s).
PIECE_BYTES, GROUP = 4 << 20, 16
STEP = 64  # tokens: contexts limited by memory are multiples of it
FEWEST_BLOCKS, LEAST_BLOCK = 64, 64  # of a full context: short contexts have smaller blocks; rows

# Names of rows
RUNTIME, TARGET_WEIGHTS, RETRIEVAL = "runtime", "target weights", "retrieval cache"
DRAFT_WEIGHTS, STREAMING, GRAPHS = "draft weights", "streaming cache", "CUDA graphs"
STATES, PREFILL, PREFILL_BLOCK = "running states", "prefill buffers", "prefill, layer by layer"
WIDENED, EMBEDDINGS = "a matrix, widened", "embeddings, host"
DRAFTING_WEIGHTS = f"self-draft weights, {DRAFTING_BITS} bit"
REMEMBERED = "windows remembered at the ends of prompts"


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One thing that takes memory."""

    name: str
    size_bytes: int


def total(rows: tuple[PlanRow, ...]) -> int:
    """Sum of rows."""
    return sum(row.size_bytes for row in rows)


def taken(*rows: PlanRow) -> tuple[PlanRow, ...]:
    """The rows that take memory."""
    return tuple(row for row in rows if row.size_bytes)


def pinned_bytes(size_bytes: int) -> int:
    """What torch's pinned tensor of so many bytes takes: a power of two."""
    return 1 << (size_bytes - 1).bit_length() if size_bytes else 0


def gib(size_bytes: int) -> str:
    """12.6 GiB."""
    tiny = size_bytes < GIB // 10  # of a small model: 0.0 GiB would say nothing
    return f"{size_bytes / (1 << 20):.1f} MiB" if tiny else f"{size_bytes / GIB:.1f} GiB"


def usable_bytes(device: str, free_bytes: int) -> int:
    """Bytes of free memory that a plan may use on a device, or in host memory ("cpu")."""
    return max(0, free_bytes - GPU_MARGIN) if device == "cuda" else int(free_bytes * USABLE_SHARE)


def largest_context(possible: int, fits: Callable[[int], bool]) -> int:
    """The largest context that fits: `possible`, or a multiple of STEP below it. A smaller one never needs more."""
    if fits(possible):
        return possible
    steps = range(1, possible // STEP + 1)
    return STEP * bisect_right(steps, False, key=lambda step: not fits(STEP * step))


def kv_bytes_per_token(dims: ModelDims, dtype: torch.dtype) -> int:
    """Keys and values of one token, in the layers that attend to all tokens."""
    return dims.shape(dtype, META).bytes_per_token


def grown_window(config: DraftConfig, draft: ModelDims, dtype: torch.dtype) -> DraftConfig:
    """The draft's window, as large as slows its passes little: keys and values of WINDOW_SHARE of its weights.

    On a processor, which computes in 32 bits, it does not grow: reading a longer one for every answer would not pay.
    """
    if dtype.itemsize == torch.float32.itemsize:
        return config
    shape = draft.shape(dtype, META)
    rows = int(WINDOW_SHARE * draft.weight_bytes) // (shape.num_layers * shape.layer_bytes)
    most = min(MOST_WINDOW, draft.max_context // 2, rows // 64 * 64)
    return replace(config, window=max(config.window, most))


@dataclass(frozen=True)
class Sizes:
    """Bytes of a model, or of one rank's share of it, as an engine holds it: weights, caches and buffers."""

    dims: ModelDims
    config: EngineConfig
    dtype: torch.dtype  # of computation
    device: str = "cpu"
    packs: bool = False  # whether the compiled kernel computes with the weights, in the bits of their file

    @cached_property
    def shape(self) -> KVShape:
        """Of the caches."""
        return self.dims.shape(self.dtype, META)

    @cached_property
    def layers(self) -> int:
        """Layers that attend to all tokens."""
        return len(self.shape.full_layers)

    @property
    def row_bytes(self) -> int:
        """Keys and values of one token in one layer."""
        return self.shape.layer_bytes

    @property
    def chunk_size(self) -> int:
        """Tokens of a chunk."""
        return self.config.retrieval.chunk_size

    @property
    def on_host(self) -> bool:
        """Whether this is the device's own memory."""
        return self.device != "cuda"

    @property
    def hidden_bytes(self) -> int:
        """Hidden states of one token."""
        return self.dims.hidden_size * self.dtype.itemsize

    @property
    def windows(self) -> tuple[Reach, ...]:
        """The reaches of windowed layers, which always lie on the device."""
        return tuple(reach for reach in self.shape.reaches if reach is not None)

    @cached_property
    def sending_rows(self) -> int:
        """Rows of a long pass through one layer, kept until they have been read on their way to the host.

        Meanwhile the next layer computes. 0 on a processor, which stores at once.
        """
        return 0 if self.on_host else prefill_chunk(self.dims, self.config, self.device, offloaded=True)

    # -------------------- weights

    @property
    def weights(self) -> int:
        """As many weights as there are on disk, in the type of computation."""
        dims = self.dims
        if self.packs:
            return dims.packed_bytes or dims.weight_bytes
        return dims.weight_bytes * self.dtype.itemsize // dims.disk_dtype.itemsize

    def quantised(self, size: ModelSize, bits: int) -> int:
        """The weights with so many bits, which may be those of the type of computation."""
        dims, as_stored = self.dims, bits == 8 * self.dtype.itemsize
        if not self.packs:
            return self.weights if as_stored else size.weight_bytes(bits, 8 * self.dtype.itemsize)
        if as_stored and dims.packed_bytes:
            return dims.packed_bytes
        rest = 8 * dims.disk_dtype.itemsize
        packed = self.weights if as_stored else size.weight_bytes(LAYOUTS[ROUNDED[bits]].bits, rest)
        if size.experts:  # in the type of computation: the kernel has no products with them
            packed += size.experts.parameters * (self.dtype.itemsize - dims.disk_dtype.itemsize)
        return min(packed, dims.packed_bytes or packed)  # fewer bits than asked for stay as they are

    @property
    def shared(self) -> int:
        """Of linear weights that have as few bits in their file as a 4-bit copy, which on a processor shares them."""
        return int(self.dims.narrow * LAYOUTS[ROUNDED[DRAFTING_BITS]].bits / 8) if self.packs else 0

    def copied(self, size: ModelSize) -> int:
        """The 4-bit copy of all other linear weights."""
        bits = LAYOUTS[ROUNDED[DRAFTING_BITS]].bits if self.packs else COPIED_BITS
        return int((size.layer_parameters + size.output_parameters) * bits / 8) - self.shared

    def widened(self, bits: int) -> int:
        """Room for quantised weights in the type of computation: one matrix at a time, and again in recordings.

        A GPU widens 4 bits part by part, in long passes alone.
        """
        dims = self.dims
        if self.packs or bits not in (8, 4):
            return 0
        if self.device == "cuda" and bits == 4:
            return WIDENING_BYTES * ROUNDED_AT_ONCE
        copies = 2 if bits == 4 else 4  # of 8 bits before and after they are scaled
        return copies * max(self.mlp_width, dims.num_heads * dims.head_dim) * self.hidden_bytes

    @property
    def mlp_width(self) -> int:
        """Numbers within the MLP."""
        return self.dims.intermediate_size or USUAL_MLP * self.dims.hidden_size

    # -------------------- the small caches, and buffers

    @property
    def retrieval(self) -> int:
        """All rows of the retrieval cache (budget, room to grow between two selections), and the chunks' numbers."""
        config, shape = self.config.retrieval, self.shape
        numbers = config.num_chunks * self.layers * self.dims.num_kv_heads * torch.int64.itemsize
        windows = sum(window_rows(reach, SHORT) | 1 for reach in self.windows)
        rows = (config.budget + config.chunk_size + GROWTH) | 1
        return rows * shape.bytes_per_token + numbers + windows * shape.window_layer_bytes

    @property
    def states(self) -> int:
        """Running states of recurrent layers, as often as the device keeps them; inputs of a pass in two caches."""
        copies = STATE_COPIES + (MOST_STATE_MARKS if self.on_host else 0)  # a GPU's marks lie in host memory
        state = self.dims.state
        return copies * state.nbytes(self.dtype) + 2 * state.layers * MOST_INPUTS * self.hidden_bytes

    @property
    def streaming(self) -> int:
        """All rows of the streaming cache, of a draft."""
        window = grown_window(self.config.draft, self.dims, self.dtype).window
        return (window | 1) * self.shape.num_layers * self.shape.layer_bytes

    def prefill(self, chunk: int, *, offloaded: bool) -> int:
        """Activations of one prompt chunk at their peak, in the MLP or where parts of attention are merged.

        Args:
            offloaded: whether any layer is; then each part is added to the sum of the earlier parts, in float32.
        """
        dims, width, wide, hidden = self.dims, self.dtype.itemsize, torch.float32.itemsize, self.hidden_bytes
        # Embeddings, a layer's input, its sum with attention, the norm of that; gate, its activation, the other factor
        mlp = 4 * hidden + 3 * self.mlp_width * width
        # Embeddings, a layer's input, the norm of that; queries, perhaps folded too, and one or two parts; their sum
        merged = 3 * (width + wide) if offloaded else 4 * width + 2 * wide
        merging = 3 * hidden + dims.num_heads * dims.head_dim * merged
        merging += 8 * wide * dims.num_heads  # log-sum-exps
        rotary = 2 * dims.head_dim * width + 4 * torch.int64.itemsize  # cosines, sines, positions
        return chunk * (max(mlp, merging) + rotary)

    # -------------------- the full cache

    def layer_bytes(self, context: int) -> int:
        """Keys and values of one resident layer, an odd number of rows (`KVShape.allocate`)."""
        return self.row_bytes * (context | 1)

    def beside_bytes(self, context: int, resident: int) -> int:
        """What chooses chunks, which always lies on the device: landmarks, votes, scores and query log.

        Of offloaded layers it has votes by groups of tokens, or landmarks if the policy needs them; sampled queries
        only if no layer is offloaded.
        """
        dims, width, chunk = self.dims, self.dtype.itemsize, self.chunk_size
        queries = dims.full_layers * dims.num_heads * dims.head_dim * width  # of a token
        landmark = -(-dims.num_kv_heads * dims.head_dim * width // chunk)  # a key in the type of computation
        votes = -(-MOST_GROUPS * dims.num_kv_heads * min(width, 4) // chunk)
        away = landmark if needs_landmarks(self.config.retrieval) else votes
        scores = -(-4 * dims.full_layers * dims.num_kv_heads // chunk)
        samples = -(-queries // QUERY_SAMPLE_STRIDE) if resident == self.layers else 0
        # Rows added by rounding up: of sampled queries one for those not sampled and one for the last interval, and one
        # landmark of each layer, in the type of computation
        rounded = self.shape.bytes_per_token * width // self.shape.kv_dtype.itemsize // 2
        of_a_token = scores + resident * landmark + (self.layers - resident) * away + samples
        return of_a_token * context + (QUERY_LOG + 2) * queries + rounded

    def remembered_bytes(self, context: int) -> int:
        """Host memory for the windows at the ends of the book and of the newest prompts."""
        rows = sum(min(reach.size, context) for reach in self.windows)
        return MOST_WINDOW_MARKS * rows * self.shape.window_layer_bytes

    def block_rows(self, context: int) -> int:
        """Rows of one layer that cross the link in one block; a multiple of the chunk size."""
        rows = max(LEAST_BLOCK, min(PIECE_BYTES // self.row_bytes, context // FEWEST_BLOCKS))
        return -(-rows // self.chunk_size) * self.chunk_size

    def tail_bytes(self, context: int) -> int:
        """Newest rows of one offloaded layer that stay on the device, and those that a long pass keeps beside them."""
        block = self.block_rows(context)
        return ((tail_rows(block) | 1) + KEPT_ROWS + block - 1) * self.row_bytes

    def device_rows(self, context: int, resident: int) -> tuple[PlanRow, ...]:
        """Device memory of the full cache with this many resident layers.

        For the other layers there are buffers for blocks on their way: the ring's, and one to the host with the rows
        that it takes.
        """
        kept, side = resident * self.layer_bytes(context), self.beside_bytes(context, resident)
        away, windows = self.layers - resident, self.windows
        rows = sum(min(window_rows(reach, FORGETTABLE), context) | 1 for reach in windows)
        shared = (
            PlanRow(f"windows of {len(windows)} layers", rows * self.shape.window_layer_bytes),
            PlanRow(REMEMBERED, self.remembered_bytes(context) if self.on_host else 0),
        )
        if not away:
            return taken(PlanRow("full cache, landmarks, query log", kept + side), *shared)
        block = self.block_rows(context)
        ring = RING_SLOTS * GROUP * block + (block + self.sending_rows if self.sending_rows else 0)
        return taken(
            PlanRow(f"full cache, {resident} of {self.layers} layers", kept),
            *shared,
            PlanRow("votes, query log", side),
            PlanRow("newest rows of offloaded layers", away * self.tail_bytes(context)),
            PlanRow("ring of copies", ring * self.row_bytes),
        )

    def device_bytes(self, context: int, resident: int) -> int:
        """Sum of `device_rows`."""
        return total(self.device_rows(context, resident))

    def host_bytes(self, context: int, resident: int) -> int:
        """Host memory of the full cache: whole blocks."""
        away = self.layers - resident
        block = self.block_rows(context) if away else 1
        return away * self.row_bytes * (-(-context // block) * block)

    def host_rows(self, context: int, resident: int) -> tuple[PlanRow, ...]:
        """What lies in the memory of a GPU's host: the full cache's other layers, and remembered windows."""
        which = f", {self.layers - resident} of {self.layers} layers" if resident else ""
        remembered = 0 if self.on_host else self.remembered_bytes(context)
        return taken(
            PlanRow(f"full cache{which}, host", self.host_bytes(context, resident)), PlanRow(REMEMBERED, remembered)
        )

    def block_bytes(self, context: int, block: int) -> int:
        """Device memory for reading blocks of so many tokens layer by layer: one layer's rows, and hidden states.

        The retrieval cache lends its own meanwhile.
        """
        return max(0, self.layer_bytes(context) + block * self.hidden_bytes - self.retrieval) if block else 0

    def offload(self, context: int, resident: int) -> Offload | None:
        """The settings for the cache's offloaded layers; None: there are none."""
        if resident == self.layers:
            return None
        return Offload(num_resident=resident, block_rows=self.block_rows(context), group=GROUP, num_slots=RING_SLOTS)

    # -------------------- what fits

    def layers_within(self, context: int, most: int, room: int, host_room: int) -> int | None:
        """The most layers, up to `most`, that can be resident beside offloaded ones; None: the context does not fit."""
        if most >= 0 and self.device_bytes(context, most) > room:
            most = bisect_right(range(most), room, key=lambda layers: self.device_bytes(context, layers)) - 1
        return most if most >= 0 and total(self.host_rows(context, most)) <= host_room else None

    def most_resident(self, room: int, possible: int) -> int:
        """The longest context up to `possible` whose full cache fits whole; below STEP: none."""
        return largest_context(possible, lambda context: self.device_bytes(context, self.layers) <= room)
