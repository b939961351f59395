"""What fits at each context: as many of the first layers of the full cache as possible beside the weights.

The other layers wait in host memory. On a processor both are the same RAM, which only `--gpu-memory` divides.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch

from core.config import EngineConfig
from core.models.loader import ModelDims
from core.models.param_count import ModelSize
from core.models.self_draft import BITS as DRAFTING_BITS
from core.ops.graphs import graph_bytes
from core.planning.choices import Choice, prefill_chunk
from core.planning.devices import NOMINAL_PROCESSOR, Bandwidths, Rig, kind_of
from core.planning.hardware import Gpu
from core.planning.sizes import (
    DRAFT_WEIGHTS,
    DRAFTING_WEIGHTS,
    GIB,
    GRAPHS,
    PREFILL,
    RETRIEVAL,
    RUNTIME,
    RUNTIME_BYTES,
    STATES,
    STREAMING,
    TARGET_WEIGHTS,
    WIDENED,
    PlanRow,
    Sizes,
    pinned_bytes,
    taken,
    total,
    usable_bytes,
)

MOST_CONTEXT = 131_072
STEP = 64  # tokens: contexts limited by memory are multiples of it
# Reading layer by layer in n blocks brings a text (n - 1) / 2 times over the link; chunk by chunk the same holds with n
# chunks. A block has at least an eighth of the context's tokens; free memory may make it longer.
MOST_PREFILL_BLOCKS = 8
MOST_HIDDEN_BYTES = 528 << 20  # hidden states of a block: of Llama2-7B's, 64K tokens in whole chunks


class Fit(NamedTuple):
    """What fits at a context."""

    layers: int  # resident ones
    block: int = 0  # tokens that are read layer by layer; 0: chunk by chunk


def largest_context(possible: int, fits: Callable[[int], bool]) -> int:
    """The largest context that fits: `possible`, or a multiple of STEP below it. A smaller one never needs more."""
    if fits(possible):
        return possible
    steps = range(1, possible // STEP + 1)
    return STEP * bisect_right(steps, False, key=lambda step: not fits(STEP * step))


@dataclass(frozen=True, kw_only=True)
class Basis:
    """The inputs of a plan (model, settings, machine), and what fits at each context.

    All sizes are those of one rank: where several share the target, of the first, which alone has the draft.
    """

    size: ModelSize  # of the whole target
    draft: ModelDims | None
    config: EngineConfig
    rig: Rig
    device: Choice[str]
    dtype: Choice[torch.dtype]
    kv: Choice[torch.dtype | None]  # what the target's keys and values are kept in
    bits: Choice[int]  # of the target's weights; 8 and 4 are quantised

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU computes."""
        return self.device.value == "cuda"

    @property
    def ranks(self) -> int:
        """Processes that share the target by heads: one for each GPU."""
        return self.config.num_gpus

    @property
    def model(self) -> ModelDims:
        """The whole target."""
        return self.size.dims

    @cached_property
    def share(self) -> ModelSize:
        """What a rank holds: its heads, its part of the layers' linear weights, and all other weights."""
        size, dims, ranks = self.size, self.size.dims, self.ranks
        if ranks == 1:
            return size
        layers = -(-size.layer_parameters // ranks)
        dims = replace(dims, num_heads=dims.num_heads // ranks, num_kv_heads=dims.num_kv_heads // ranks)
        dims = replace(dims, weight_bytes=dims.disk_dtype.itemsize * (layers + size.other_parameters))
        return replace(size, dims=dims, layer_parameters=layers)

    @cached_property
    def target(self) -> ModelDims:
        """The target, or a rank's share of it, with the type of its keys and values."""
        return replace(self.share.dims, kv_dtype=self.kv.value)

    @property
    def gpu(self) -> Gpu | None:
        """The GPU that computes; of several the fullest."""
        return min(self.rig.machine.gpus, key=lambda gpu: gpu.free_bytes, default=None) if self.on_gpu else None

    @property
    def free_ram_bytes(self) -> int:
        """A rank's part of free host memory."""
        return self.rig.machine.free_ram_bytes // self.ranks

    @property
    def available_bytes(self) -> int:
        """Free bytes of the device, or what it may hold of them."""
        there = self.gpu.free_bytes if self.gpu else self.free_ram_bytes
        limit = self.config.gpu_memory_gib
        return there if limit is None else min(there, int(limit * GIB))

    @property
    def usable_bytes(self) -> int:
        """Bytes of the device that a plan may use; the rest is for memory that no plan counts."""
        return usable_bytes(self.device.value, self.available_bytes)

    @property
    def nominal(self) -> Bandwidths:
        """Rates for forecasts where nothing is measured."""
        if self.gpu is None:
            return NOMINAL_PROCESSOR
        return (self.rig.kind or kind_of(self.gpu.name)).bandwidths(self.ranks)

    @property
    def packs(self) -> bool:
        """Whether the compiled kernel computes with the weights, in the bits of their file."""
        return not self.on_gpu and self.rig.machine.compiles and self.config.attention != "torch"

    @property
    def never_layerwise(self) -> str:
        """Why no prompt is read layer by layer; "": they may be."""
        if not self.config.layerwise:
            return "chunk by chunk was asked for"
        if self.ranks > 1:
            return "chunk by chunk, as several processes share each layer"
        return "" if self.target.layerwise else "chunk by chunk, as the layers of this family are not called one by one"

    @property
    def embedding_bytes(self) -> int:
        """Embeddings that a GPU reads from host memory where layers wait there, too: a pass needs a few of their rows.

        Not those that are the output layer's weights, and not where several processes hold them.
        """
        apart = self.on_gpu and self.ranks == 1 and not self.model.tied
        return self.size.output_parameters * self.dtype.value.itemsize if apart else 0

    def chunk(self, *, offloaded: bool) -> int:
        """Tokens to read in one pass."""
        cores = self.rig.machine.num_cores
        return prefill_chunk(self.target, self.config, self.device.value, offloaded=offloaded, num_cores=cores)

    def rows_beside(self, *, offloaded: bool) -> tuple[PlanRow, ...]:
        """What the device holds beside the full cache, at every context.

        Args:
            offloaded: whether any layer of the full cache is offloaded.
        """
        target, share, config = self.sizes, self.share, self.config
        draft = Sizes(self.draft, config, self.dtype.value, self.device.value, self.packs) if self.draft else None
        graphs = graph_bytes(self.target.num_layers) if self.on_gpu and config.graphs else 0
        copied, weights = config.self_draft_bits == DRAFTING_BITS, target.quantised(share, self.bits.value)
        return taken(
            PlanRow(RUNTIME, 0 if self.on_gpu else RUNTIME_BYTES),
            PlanRow(TARGET_WEIGHTS, weights - self.embedding_bytes if offloaded else weights),
            PlanRow(RETRIEVAL, target.retrieval),
            PlanRow(PREFILL, target.prefill(self.chunk(offloaded=offloaded), offloaded=offloaded)),
            PlanRow(STATES, target.states),
            PlanRow(DRAFT_WEIGHTS, draft.weights if draft else 0),
            PlanRow(STREAMING, draft.streaming if draft else 0),
            PlanRow(GRAPHS, graphs),
            PlanRow(WIDENED, target.widened(self.bits.value)),
            PlanRow(DRAFTING_WEIGHTS, target.copied(share) if copied else 0),
        )

    @cached_property
    def sizes(self) -> Sizes:
        """What the target's parts weigh."""
        return Sizes(self.target, self.config, self.dtype.value, self.device.value, self.packs)

    @cached_property
    def room(self) -> int:
        """Bytes of the device for the full cache if all of its layers are resident."""
        return self.usable_bytes - total(self.rows_beside(offloaded=False))

    @cached_property
    def room_offloaded(self) -> int:
        """Bytes of the device for the full cache if they are not."""
        return self.usable_bytes - total(self.rows_beside(offloaded=True))

    @property
    def host_room(self) -> int:
        """Bytes of host memory for the full cache: of a processor, beyond the limit; without a limit there is none."""
        if self.config.placement == "resident":
            return 0
        if self.on_gpu:
            return max(0, usable_bytes("cpu", self.free_ram_bytes) - RUNTIME_BYTES - pinned_bytes(self.embedding_bytes))
        return max(0, usable_bytes("cpu", self.free_ram_bytes - self.available_bytes))

    @property
    def possible(self) -> int:
        """The longest context regardless of memory: the model's where it is asked for, else at most MOST_CONTEXT."""
        asked = self.config.context or 0
        return self.model.max_context if asked > MOST_CONTEXT else min(self.model.max_context, MOST_CONTEXT)

    def fit(self, context: int) -> Fit | None:
        """The most resident layers, and the block to read, which may cost some of them. None: nothing fits."""
        cache, layers = self.sizes, self.sizes.layers
        most = {"split": max(0, layers - 1), "offloaded": 0}.get(self.config.placement, layers)
        if most == layers and cache.device_bytes(context, layers) <= self.room:
            return Fit(layers)
        resident = self.layers_within(self.room_offloaded, context, min(most, layers - 1))
        chunk = 0 if self.never_layerwise else self.chunk(offloaded=True)
        if resident is None or not chunk or context <= 2 * chunk:
            return None if resident is None else Fit(resident)
        least = -(-context // (MOST_PREFILL_BLOCKS * chunk)) * chunk
        extra = cache.block_bytes(context, least)
        fewer = self.layers_within(self.room_offloaded - extra, context, resident)
        if fewer is None:
            return Fit(resident)
        left = self.room_offloaded - cache.device_bytes(context, fewer) + cache.retrieval - cache.layer_bytes(context)
        possible = min(left, MOST_HIDDEN_BYTES) // cache.hidden_bytes // chunk * chunk
        return Fit(fewer, min(max(least, possible), -(-context // chunk) * chunk))

    def layers_within(self, room: int, context: int, most: int) -> int | None:
        """The most layers, up to `most`, that can be resident beside offloaded ones; None: the context does not fit."""
        cache = self.sizes
        if most >= 0 and cache.device_bytes(context, most) > room:
            most = bisect_right(range(most), room, key=lambda layers: cache.device_bytes(context, layers)) - 1
        return most if most >= 0 and total(cache.host_rows(context, most)) <= self.host_room else None

    def most_resident_within(self, room: int, possible: int) -> int:
        """The longest context up to `possible` whose full cache fits whole; below STEP: none."""
        cache = self.sizes
        return largest_context(possible, lambda context: cache.device_bytes(context, cache.layers) <= room)

    @property
    def most_on_device(self) -> int:
        """The longest context that fits on the device alone; below STEP: none."""
        return self.most_resident_within(self.room, self.possible)
