"""What fits at each context: as many of the first layers of the full cache as possible beside the weights.

The other layers wait in host memory. On a processor both are the same RAM, which only `--gpu-memory` divides.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch

from core.config import EngineConfig
from core.errors import InvalidSetting
from core.models.loader import ModelDims
from core.models.param_count import ModelSize
from core.models.quantised import FORMATS
from core.models.self_draft import BITS as DRAFTING_BITS
from core.planning import sizes
from core.planning.choices import Choice, choose_bits, choose_device, choose_dtype, choose_kv, choose_prefill_chunk
from core.planning.devices import Bandwidths, Rig, nominal_bandwidths
from core.planning.hardware import Gpu
from core.planning.sizes import GIB, RETRIEVAL, CacheSizes, PlanRow, total, usable_bytes

MOST_CONTEXT = 131_072
STEP = 64  # tokens: contexts limited by memory are multiples of it
LEAST_COPIED = 4e8  # parameters: 0.5 billion decode a third faster with a 4-bit copy; fewer were not tried
LEAST_BEGUN = 8192  # tokens: with room for fewer an engine does not begin with all layers resident
# Reading layer by layer in n blocks brings a text (n - 1) / 2 times over the link; chunk by chunk the same holds with n
# chunks. A block has at least an eighth of the context's tokens; free memory may make it longer.
MOST_PREFILL_BLOCKS = 8
MOST_HIDDEN_BYTES = 528 << 20  # hidden states of a block: of Llama2-7B's, 64K tokens in whole chunks


class Rooms(NamedTuple):
    """Bytes left for the full cache, and how a prompt is read."""

    resident: int  # on the device if all layers are resident
    offloaded: int  # if they are not
    host: int
    lent: int  # of other caches on the device, free while a prompt is read
    chunk: int  # tokens of a pass if not all layers are resident; 0: only chunk by chunk


class Fit(NamedTuple):
    """What fits at a context."""

    layers: int  # resident ones
    block: int  # tokens that are read layer by layer; 0: chunk by chunk


def find_fit(cache: CacheSizes, context: int, rooms: Rooms, most: int) -> Fit | None:
    """Resident layers, up to `most`, and the block to read, which may cost some of them. None: nothing fits."""
    layers = _layers_that_fit(cache, context, rooms, most)
    if layers is None:
        return None
    if layers == cache.layers or not cache.hidden_bytes or not rooms.chunk or context <= 2 * rooms.chunk:
        return Fit(layers, 0)
    least = -(-context // (MOST_PREFILL_BLOCKS * rooms.chunk)) * rooms.chunk
    extra = cache.block_bytes(context, least, rooms.lent)
    fewer = _layers_that_fit(cache, context, rooms._replace(resident=0, offloaded=rooms.offloaded - extra), layers)
    if fewer is None or fewer == cache.layers:
        return Fit(layers, 0)
    left = rooms.offloaded - cache.device_bytes(context, fewer) + rooms.lent - cache.layer_bytes(context)
    possible = min(left, MOST_HIDDEN_BYTES) // cache.hidden_bytes // rooms.chunk * rooms.chunk
    return Fit(fewer, min(max(least, possible), -(-context // rooms.chunk) * rooms.chunk))


def _layers_that_fit(cache: CacheSizes, context: int, rooms: Rooms, most: int) -> int | None:
    """The most layers, up to `most`, that can be resident; None if the context does not fit."""
    if most == cache.layers and cache.device_bytes(context, most) <= rooms.resident:
        return most
    here = min(most, cache.layers - 1)
    if here < 0:
        return None
    none, one = (cache.device_bytes(context, layers) for layers in (0, min(1, here)))
    if none + here * (one - none) > rooms.offloaded:  # each layer takes as much as the first
        here = (rooms.offloaded - none) // (one - none) if one > none else -1
    beside = 0 if cache.on_host else cache.remembered_bytes(context)
    return here if here >= 0 and cache.host_bytes(context, here) + beside <= rooms.host else None


def largest_context(possible: int, fits: Callable[[int], bool]) -> int:
    """The largest context that fits: `possible`, or a multiple of STEP below it. A smaller one never needs more."""
    if fits(possible):
        return possible
    low, high = 0, possible // STEP + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * STEP) else (low, middle)
    return low * STEP


@dataclass(frozen=True, kw_only=True)
class Basis:
    """The inputs of a plan (model, settings, machine), and what fits at each context.

    All sizes are those of one rank: where several share the target, of the first, which alone has the draft.
    """

    model: ModelDims  # the whole target
    draft: ModelDims | None
    size: ModelSize | None  # counted parameters of the whole target
    config: EngineConfig
    rig: Rig
    device: Choice[str]
    dtype: Choice[torch.dtype]
    kv: Choice[torch.dtype | None]  # what the target's keys and values are kept in
    bits: Choice[int]  # of the target's weights; 8 and 4 are quantised

    @classmethod
    def of(
        cls,
        model: ModelDims,
        draft: ModelDims | None,
        config: EngineConfig,
        rig: Rig,
        size: ModelSize | None = None,
        bits: Choice[int] | None = None,
    ) -> "Basis":
        """Choose device, types and sizes.

        Args:
            size: needed if any of the target's weights are to be quantised, or if several ranks share it.
            bits: replaces the settings', also by what this version does not run.
        Raises:
            InvalidSetting: the device cannot use this number of bits, or the heads are not divisible by the ranks.
            NotEnoughMemory: CUDA is not available.
        """
        device = choose_device(config, rig.machine)
        dtype = choose_dtype(device.value, model)
        basis = cls(
            model=model,
            draft=draft,
            size=size,
            config=config,
            rig=rig,
            device=Choice(device.value, "as described") if rig.assumed else device,
            dtype=dtype,
            kv=choose_kv(config, model, device.value, dtype.value, rig.machine),
            bits=bits or choose_bits(config, device.value, dtype.value),
        )
        if model.num_kv_heads % basis.ranks:
            raise InvalidSetting(
                f"{model.num_kv_heads} heads of keys and values cannot be shared by {basis.ranks} GPUs.",
                hint="Use a number of GPUs that divides them.",
            )
        return basis

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU computes."""
        return self.device.value == "cuda"

    @property
    def ranks(self) -> int:
        """Processes that share the target by heads: one for each GPU of the machine."""
        return max(1, len(self.rig.machine.gpus)) if self.on_gpu else self.config.num_gpus

    @cached_property
    def share(self) -> ModelSize | None:
        """The counted parameters of a rank."""
        if self.size is None or self.ranks == 1:
            return self.size
        return sizes.rank_share(replace(self.size, dims=self.model), self.ranks)

    @cached_property
    def target(self) -> ModelDims:
        """The target, or a rank's share of it, with the type of its keys and values."""
        dims = self.share.dims if self.share is not None and self.ranks > 1 else self.model
        return replace(dims, kv_dtype=self.kv.value)

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
    def usable_host_bytes(self) -> int:
        """Bytes of host memory that a plan may use: of a processor, beyond the limit; without a limit there is none."""
        if self.on_gpu:
            return max(0, usable_bytes("cpu", self.free_ram_bytes) - sizes.RUNTIME_BYTES)
        return max(0, usable_bytes("cpu", self.free_ram_bytes - self.available_bytes))

    @property
    def nominal(self) -> Bandwidths:
        """Rates for forecasts where nothing is measured."""
        if self.on_gpu and self.rig.kind is not None:
            return self.rig.kind.bandwidths
        return nominal_bandwidths(self.device.value, self.gpu.name if self.gpu else "")

    @property
    def packs(self) -> bool:
        """Whether the compiled kernel computes with the weights, in the bits of their file."""
        return not self.on_gpu and self.rig.machine.compiles and self.config.attention != "torch"

    @property
    def copy_pays(self) -> bool:
        """Whether passes with a 4-bit copy would be much faster: of 16-bit weights larger than any cache."""
        in_16_bits = self.target.disk_dtype.itemsize == 2 and self.bits.value not in FORMATS
        large = self.size is not None and self.size.experts is None and self.size.num_parameters >= LEAST_COPIED
        return self.packs and self.ranks == 1 and in_16_bits and large

    def chunk(self, *, offloaded: bool) -> Choice[int]:
        """Tokens to read in one pass."""
        cores = self.rig.machine.num_cores
        return choose_prefill_chunk(self.target, self.config, self.device.value, offloaded=offloaded, num_cores=cores)

    def rows_beside(self, *, offloaded: bool) -> tuple[PlanRow, ...]:
        """What the device holds beside the full cache, at every context.

        Args:
            offloaded: whether any layer of the full cache is offloaded.
        """
        target, draft, share, config, packs = self.target, self.draft, self.share, self.config, self.packs
        device, dtype, bits = self.device.value, self.dtype.value, self.bits.value
        chunk = self.chunk(offloaded=offloaded).value
        widened = share is not None and not packs and bits in sizes.WIDENED_BITS[device]
        copied = config.self_draft_bits == DRAFTING_BITS
        bytes_by_name = {
            sizes.RUNTIME: 0 if self.on_gpu else sizes.RUNTIME_BYTES,
            sizes.TARGET_WEIGHTS: sizes.target_weight_bytes(target, share, dtype, bits, packs=packs),
            RETRIEVAL: sizes.retrieval_bytes(target, config, dtype),
            sizes.PREFILL: sizes.prefill_bytes(target, chunk, dtype, offloaded=offloaded),
            sizes.STATES: sizes.state_bytes(target, dtype, device),
            sizes.DRAFT_WEIGHTS: sizes.weight_bytes(draft, dtype, packs=packs) if draft else 0,
            sizes.STREAMING: sizes.streaming_bytes(draft, config, dtype) if draft else 0,
            sizes.GRAPHS: sizes.recorded_bytes(target, draft, config, device, self.ranks),
            sizes.WIDENED: sizes.widened_bytes(target, dtype, bits) if widened else 0,
            sizes.DRAFTING_WEIGHTS: sizes.self_draft_weight_bytes(share, packs=packs) if share and copied else 0,
        }
        return tuple(PlanRow(name, size_bytes) for name, size_bytes in bytes_by_name.items() if size_bytes)

    @cached_property
    def cache_sizes(self) -> CacheSizes:
        """Sizes of the full cache."""
        return CacheSizes.of(self.target, self.config, self.dtype.value, self.device.value)

    @cached_property
    def rooms(self) -> Rooms:
        """Memory left for the full cache."""
        return Rooms(
            resident=self.usable_bytes - total(self.rows_beside(offloaded=False)),
            offloaded=self.usable_bytes - total(self.rows_beside(offloaded=True)),
            host=0 if self.config.placement == "resident" else self.usable_host_bytes,
            lent=sizes.retrieval_bytes(self.target, self.config, self.dtype.value),
            chunk=self.chunk(offloaded=True).value if self.ranks == 1 else 0,
        )

    @property
    def weights_fit(self) -> bool:
        """Whether any context fits beside the weights, with all layers resident."""
        return self.most_on_device >= STEP

    @property
    def possible(self) -> int:
        """The longest context regardless of memory: the model's where it is asked for, else at most MOST_CONTEXT."""
        asked = self.config.context or 0
        return self.model.max_context if asked > MOST_CONTEXT else min(self.model.max_context, MOST_CONTEXT)

    def fit(self, context: int) -> Fit | None:
        """How many layers of the full cache can be resident at most; None if the context does not fit."""
        layers = self.cache_sizes.layers
        most = {"split": max(0, layers - 1), "offloaded": 0}.get(self.config.placement, layers)
        return find_fit(self.cache_sizes, context, self.rooms, most)

    def longest(self) -> int:
        """The longest context that fits in device and host memory together; below STEP: none."""
        return largest_context(self.possible, lambda context: self.fit(context) is not None)

    @property
    def most_on_device(self) -> int:
        """The longest context that fits on the device alone; below STEP: none."""
        return self._most_within(self.rooms.resident, self.possible)

    def _most_within(self, room: int, possible: int) -> int:
        cache = self.cache_sizes
        return largest_context(possible, lambda context: cache.device_bytes(context, cache.layers) <= room)

    def most_begun(self, context: int) -> int:
        """Tokens with which an engine for `context` begins, all layers resident; 0: too few."""
        if self.config.placement != "auto" or self.ranks > 1:
            return 0
        most = self._most_within(self.rooms.offloaded, context)
        return most if most >= LEAST_BEGUN else 0
