"""The plan: where everything lies, how much it takes, and why. Loading uses it; `doctor` and the page show it.

As many of the first layers of the full cache as possible lie beside the weights, the others in host memory. On a
processor both are the same RAM, which only `--gpu-memory` divides.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch

from core.caches.full_parts import Offload
from core.config import MOST_GUESSES, MOST_GUESSES_OVER_LINK, EngineConfig
from core.decoding.registry import default_method
from core.models.loader import ModelDims
from core.models.param_count import ModelSize
from core.models.self_draft import BITS as DRAFTING_BITS
from core.ops.graphs import graph_bytes
from core.planning import fit, sizes
from core.planning.choices import (
    NO_BLOCK,
    NOTHING_SHARED,
    Choice,
    Composition,
    choose_bits,
    choose_cpu_attention,
    choose_device,
    choose_dtype,
    choose_kv,
    prefill_chunk,
)
from core.planning.devices import NOMINAL_PROCESSOR, Bandwidths, Rig, kind_of
from core.planning.fit import MOST_CONTEXT, UNPLACED, Placement
from core.planning.hardware import Gpu, Machine
from core.planning.sizes import GIB, PlanRow, Sizes, taken, total, usable_bytes

LEAST_BEGUN = 8192  # tokens: with room for fewer an engine does not begin with all layers resident
# Reading layer by layer in n blocks brings a text (n - 1) / 2 times over the link; chunk by chunk the same holds with n
# chunks. A block has at least an eighth of the context's tokens; free memory may make it longer.
MOST_PREFILL_BLOCKS = 8
MOST_HIDDEN_BYTES = 528 << 20  # hidden states of a block: of Llama2-7B's, 64K tokens in whole chunks


class Fit(NamedTuple):
    """What fits at a context."""

    layers: int  # resident ones
    block: int = 0  # tokens that are read layer by layer; 0: chunk by chunk


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Model, settings and machine; what fits at each context; where everything goes. Made by `make_plan`.

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

    context: Choice[int] = NO_BLOCK
    most_context: int = 0  # the longest that would fit in device and host memory together
    placement: Choice[Placement] = UNPLACED
    resident_layers: int = 0
    offloads: bool = False  # whether it was made with layers in host memory, which changes how a prompt is read
    prefill_block: Choice[int] = NO_BLOCK  # tokens read layer by layer; 0: chunk by chunk
    # Share of the blocks in host memory that the host attends to; None: the engine measures it at its start.
    cpu_attention: Choice[float | None] = NOTHING_SHARED
    why_budget: str = ""  # of the retrieval cache; "": as it was set
    why_guesser: str = ""  # with the draft, or without it; "": not chosen (`core.planning.composition`)
    most_resident: int = 0  # tokens up to which all layers would be resident, where they are not at `context`; 0: none
    longer: "Plan | None" = None  # of an engine that begins with `most_resident` tokens: the plan beyond them

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

    @cached_property
    def sizes(self) -> Sizes:
        """What the target's parts weigh."""
        return Sizes(self.target, self.config, self.dtype.value, self.device.value, self.packs)

    @property
    def num_layers(self) -> int:
        """Layers of the full cache."""
        return self.sizes.layers

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
    def as_stored(self) -> bool:
        """Whether passes multiply with the weights as their file has them; `bits` are then those of the sums."""
        return self.packs and self.bits.value == 8 * self.dtype.value.itemsize

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

    @property
    def embeds_from_host(self) -> bool:
        """Whether the device reads embeddings from host memory."""
        return self.offloads and self.embedding_bytes > 0

    def chunk(self, *, offloaded: bool) -> int:
        """Tokens to read in one pass."""
        cores = self.rig.machine.num_cores
        return prefill_chunk(self.target, self.config, self.device.value, offloaded=offloaded, num_cores=cores)

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
            beside = sizes.RUNTIME_BYTES + sizes.pinned_bytes(self.embedding_bytes)
            return max(0, usable_bytes("cpu", self.free_ram_bytes) - beside)
        return max(0, usable_bytes("cpu", self.free_ram_bytes - self.available_bytes))

    @property
    def possible(self) -> int:
        """The longest context regardless of memory: the model's where it is asked for, else at most MOST_CONTEXT."""
        asked = self.config.context or 0
        return self.model.max_context if asked > MOST_CONTEXT else min(self.model.max_context, MOST_CONTEXT)

    def fit(self, context: int) -> Fit | None:
        """The most resident layers, and the block to read, which may cost some of them. None: nothing fits."""
        cache, layers = self.sizes, self.num_layers
        most = {"split": max(0, layers - 1), "offloaded": 0}.get(self.config.placement, layers)
        if most == layers and cache.device_bytes(context, layers) <= self.room:
            return Fit(layers)
        resident = cache.layers_within(context, min(most, layers - 1), self.room_offloaded, self.host_room)
        chunk = 0 if self.never_layerwise else self.chunk(offloaded=True)
        if resident is None or not chunk or context <= 2 * chunk:
            return None if resident is None else Fit(resident)
        least = -(-context // (MOST_PREFILL_BLOCKS * chunk)) * chunk
        extra = cache.block_bytes(context, least)
        fewer = cache.layers_within(context, resident, self.room_offloaded - extra, self.host_room)
        if fewer is None:
            return Fit(resident)
        left = self.room_offloaded - cache.device_bytes(context, fewer) + cache.retrieval - cache.layer_bytes(context)
        possible = min(left, MOST_HIDDEN_BYTES) // cache.hidden_bytes // chunk * chunk
        return Fit(fewer, min(max(least, possible), -(-context // chunk) * chunk))

    def rows_beside(self, *, offloaded: bool) -> tuple[PlanRow, ...]:
        """What the device holds beside the full cache, at every context.

        Args:
            offloaded: whether any layer of the full cache is offloaded.
        """
        target, share, config = self.sizes, self.share, self.config
        draft = replace(target, dims=self.draft) if self.draft else None
        graphs = graph_bytes(self.target.num_layers) if self.on_gpu and config.graphs else 0
        copied, weights = config.self_draft_bits == DRAFTING_BITS, target.quantised(share, self.bits.value)
        return taken(
            PlanRow(sizes.RUNTIME, 0 if self.on_gpu else sizes.RUNTIME_BYTES),
            PlanRow(sizes.TARGET_WEIGHTS, weights - self.embedding_bytes if offloaded else weights),
            PlanRow(sizes.RETRIEVAL, target.retrieval),
            PlanRow(sizes.PREFILL, target.prefill(self.chunk(offloaded=offloaded), offloaded=offloaded)),
            PlanRow(sizes.STATES, target.states),
            PlanRow(sizes.DRAFT_WEIGHTS, draft.weights if draft else 0),
            PlanRow(sizes.STREAMING, draft.streaming if draft else 0),
            PlanRow(sizes.GRAPHS, graphs),
            PlanRow(sizes.WIDENED, target.widened(self.bits.value)),
            PlanRow(sizes.DRAFTING_WEIGHTS, target.copied(share) if copied else 0),
        )

    @property
    def most_on_device(self) -> int:
        """The longest context that fits on the device alone; below STEP: none."""
        return self.sizes.most_resident(self.room, self.possible)

    @property
    def budget(self) -> Choice[int] | None:
        """Tokens of the retrieval cache; None: as it was set."""
        return Choice(self.config.retrieval.budget, self.why_budget) if self.why_budget else None

    @property
    def composition(self) -> Choice[Composition] | None:
        """Who guesses; None: not chosen."""
        drafts = self.draft is not None
        chosen = Composition(default_method(has_draft=drafts), drafts, self.config.self_draft_bits or 16)
        return Choice(chosen, self.why_guesser) if self.why_guesser else None

    def settled(self, config: EngineConfig) -> EngineConfig:
        """The settings with the self-draft and the retrieval budget of this plan."""
        if self.why_guesser:
            config = replace(config, self_draft_bits=self.config.self_draft_bits or 16)
        if self.why_budget:
            config = replace(config, retrieval=replace(self.config.retrieval, grows=False))
        return config

    @property
    def capacity(self) -> int:
        """Tokens that the full cache has rows for."""
        return self.most_resident if self.longer else self.context.value

    def at(self, num_tokens: int) -> "Plan":
        """The plan that holds for so many tokens."""
        return self.longer if self.longer and num_tokens > self.capacity else self

    @property
    def precision(self) -> str:
        """Such as "float32", and the type of keys and values where it differs."""
        dtype, kv = (str(kind).removeprefix("torch.") for kind in (self.dtype.value, self.kv.value))
        return dtype if self.kv.value is None else f"{dtype}, {kv} cache"

    @property
    def self_draft_bits(self) -> Choice[int]:
        """Of the weights for passes over the retrieval cache."""
        if self.config.self_draft_bits == DRAFTING_BITS:
            return Choice(DRAFTING_BITS, "a second copy of the linear weights, used for guesses only")
        return Choice(self.bits.value, "the target's own weights")

    @property
    def layers_away(self) -> int:
        """Layers of the full cache that wait in host memory."""
        return self.num_layers - self.resident_layers

    @property
    def prefill_chunk(self) -> int:
        """Tokens read in one pass."""
        return self.chunk(offloaded=self.offloads)

    @property
    def most_guesses(self) -> int:
        """The longest round that adaptation may choose: guesses that the full cache verifies.

        A pass that waits for the link takes as long however many it verifies. Else more rows are not recorded on a GPU,
        and would not come out as each does alone, to the last bit, on a processor.
        """
        return MOST_GUESSES_OVER_LINK if self.on_gpu and self.layers_away else MOST_GUESSES

    @property
    def offload(self) -> Offload | None:
        """The settings of the full cache's other layers; None: all are resident."""
        return self.sizes.offload(self.context.value, self.resident_layers)

    @cached_property
    def rows(self) -> tuple[PlanRow, ...]:
        """All that takes memory on the device."""
        beside, cache = self.rows_beside(offloaded=self.offloads), self.sizes
        block = cache.block_bytes(self.capacity, self.prefill_block.value)
        reading = (PlanRow(sizes.PREFILL_BLOCK, block),) if block else ()
        return (*beside, *reading, *cache.device_rows(self.capacity, self.resident_layers))

    @property
    def host_rows(self) -> tuple[PlanRow, ...]:
        """All that takes host memory beside a GPU, or beyond --gpu-memory."""
        embeddings = sizes.pinned_bytes(self.embedding_bytes) if self.offloads else 0
        rows = self.sizes.host_rows(self.capacity, self.resident_layers)
        return taken(PlanRow(sizes.EMBEDDINGS, embeddings), *rows)

    @property
    def total_bytes(self) -> int:
        """All rows on the device."""
        return total(self.rows)

    def bytes_of(self, name: str) -> int:
        """Bytes of a row on the device; 0 if there is none of this name."""
        return sum(row.size_bytes for row in self.rows if row.name == name)

    @property
    def host_bytes(self) -> int:
        """All rows in host memory."""
        return total(self.host_rows)


def make_plan(target: ModelSize, draft: ModelDims | None, config: EngineConfig, machine: Machine | Rig) -> Plan:
    """Plan an engine with this draft and these settings: choose device and types, find what fits, place everything.

    Args:
        machine: as it was found, or described.
    Raises:
        InvalidSetting, NotPossibleHere: this machine, or this version, does not compute as the settings say.
        NotEnoughMemory: the weights alone do not fit; or the wanted context does not, with the largest that would.
        ContextBeyondModel: the wanted context is longer than the model's.
    """
    rig = machine if isinstance(machine, Rig) else Rig(machine=machine)
    rig = replace(rig, machine=replace(rig.machine, gpus=rig.machine.gpus[: config.num_gpus]))
    device = choose_device(config, rig.machine)
    dtype = choose_dtype(device.value, target.dims)
    plan = Plan(
        size=target,
        draft=draft,
        config=config,
        rig=rig,
        device=Choice(device.value, "as described") if rig.assumed else device,
        dtype=dtype,
        kv=choose_kv(config, target.dims, device.value, dtype.value, rig.machine),
        bits=choose_bits(config, device.value, dtype.value),
    )
    fit.check_ranks(plan)
    context, most = fit.choose_context(plan)
    fits = plan.fit(context.value)
    assert fits is not None, "a context that does not fit is refused before"
    away = fits.layers < plan.num_layers
    begins = away and config.placement == "auto" and plan.ranks == 1
    most_begun = plan.sizes.most_resident(plan.room_offloaded, context.value) if begins else 0
    return replace(
        plan,
        context=context,
        most_context=most,
        placement=fit.placement(plan, fits.layers, context.value),
        resident_layers=fits.layers,
        offloads=away,
        prefill_block=fit.prefill_block(plan, fits.block, context.value) if away else NO_BLOCK,
        cpu_attention=choose_cpu_attention(config, device.value, away=away),
        most_resident=most_begun if most_begun >= LEAST_BEGUN else 0,
    )
