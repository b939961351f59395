"""What fits at each context: as many of the first layers of the full cache as possible beside the weights.

The other layers wait in host memory. On a processor both are the same RAM, which only `--gpu-memory` divides.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch

from core.config import EngineConfig
from core.models.loader import ModelDims
from core.models.param_count import ModelSize
from core.models.quantised import FORMATS
from core.models.self_draft import BITS as DRAFTING_BITS
from core.planning import sizes
from core.planning.choices import Choice, choose_bits, choose_device, choose_dtype, choose_kv, choose_prefill_chunk
from core.planning.hardware import Machine
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
    """The inputs of a plan (models, settings, memory), and what fits at each context."""

    target: ModelDims
    draft: ModelDims | None
    size: ModelSize | None  # counted parameters of the target
    config: EngineConfig
    machine: Machine
    device: Choice[str]
    dtype: Choice[torch.dtype]
    kv: Choice[torch.dtype | None]
    bits: Choice[int]
    drafts_apart: bool  # whether separate self-draft weights guess

    @classmethod
    def of(
        cls,
        target: ModelDims,
        draft: ModelDims | None,
        config: EngineConfig,
        machine: Machine,
        size: ModelSize | None = None,
        *,
        bits: Choice[int] | None = None,
        drafts_apart: bool | None = None,
    ) -> "Basis":
        """Choose device, types and sizes.

        Args:
            size: needed if any of the target's weights are to be quantised.
            bits, drafts_apart: replace the settings, also by what this version does not run; None: the settings.
        Raises:
            InvalidSetting: the device cannot use this number of bits. NotEnoughMemory: CUDA is not available.
        """
        device = choose_device(config, machine)
        dtype = choose_dtype(device.value, target)
        kv = choose_kv(config, target, device.value, dtype.value, machine)
        return cls(
            target=replace(target, kv_dtype=kv.value),
            draft=draft,
            size=size,
            config=config,
            machine=machine,
            device=device,
            dtype=dtype,
            kv=kv,
            bits=bits or choose_bits(config, device.value, dtype.value),
            drafts_apart=config.self_draft_bits == DRAFTING_BITS if drafts_apart is None else drafts_apart,
        )

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU computes."""
        return self.device.value == "cuda"

    @property
    def available(self) -> int:
        """Free bytes of the device, or what it may hold of them."""
        there = self.machine.gpus[0].free_bytes if self.on_gpu else self.machine.free_ram_bytes
        limit = self.config.gpu_memory_gib
        return there if limit is None else min(there, int(limit * GIB))

    @property
    def usable(self) -> int:
        """Bytes of the device that a plan may use."""
        return usable_bytes(self.device.value, self.available)

    @property
    def usable_host(self) -> int:
        """Bytes of host memory that a plan may use: of a processor, beyond the limit; without a limit there is none."""
        free = self.machine.free_ram_bytes
        if self.on_gpu:
            return max(0, usable_bytes("cpu", free) - sizes.RUNTIME_BYTES)
        return max(0, usable_bytes("cpu", free - self.available))

    @property
    def packs(self) -> bool:
        """Whether the compiled kernel computes with the weights, in the bits of their file."""
        return not self.on_gpu and self.machine.compiles and self.config.attention != "torch"

    @property
    def copy_pays(self) -> bool:
        """Whether passes with a 4-bit copy would be much faster: of 16-bit weights larger than any cache."""
        in_16_bits = self.target.disk_dtype.itemsize == 2 and self.bits.value not in FORMATS
        large = self.size is not None and self.size.experts is None and self.size.num_parameters >= LEAST_COPIED
        return self.packs and in_16_bits and large

    def prefill_chunk(self, *, offloaded: bool) -> Choice[int]:
        """Tokens to read in one pass."""
        cores = self.machine.num_cores
        return choose_prefill_chunk(self.target, self.config, self.device.value, offloaded=offloaded, num_cores=cores)

    def fixed_rows(self, *, offloaded: bool) -> tuple[PlanRow, ...]:
        """What the device holds at every context.

        Args:
            offloaded: whether any layer of the full cache is offloaded.
        """
        target, draft, size, config, packs = self.target, self.draft, self.size, self.config, self.packs
        device, dtype, bits = self.device.value, self.dtype.value, self.bits.value
        chunk, recorded = self.prefill_chunk(offloaded=offloaded).value, config.num_gpus
        widened = size is not None and not packs and bits in sizes.WIDENED_BITS[device]
        copied = self.drafts_apart and size is not None
        bytes_by_name = {
            sizes.RUNTIME: 0 if self.on_gpu else sizes.RUNTIME_BYTES,
            sizes.TARGET_WEIGHTS: sizes.target_weight_bytes(target, size, dtype, bits, packs=packs),
            RETRIEVAL: sizes.retrieval_bytes(target, config, dtype),
            sizes.PREFILL: sizes.prefill_bytes(target, chunk, dtype, offloaded=offloaded),
            sizes.STATES: sizes.state_bytes(target, dtype, device),
            sizes.DRAFT_WEIGHTS: sizes.weight_bytes(draft, dtype, packs=packs) if draft else 0,
            sizes.STREAMING: sizes.streaming_bytes(draft, config, dtype) if draft else 0,
            sizes.GRAPHS: sizes.recorded_bytes(target, draft, config, device, recorded),
            sizes.WIDENED: sizes.widened_bytes(size.dims, dtype, bits) if size and widened else 0,
            sizes.DRAFTING_WEIGHTS: sizes.self_draft_weight_bytes(size, packs=packs) if size and copied else 0,
        }
        return tuple(PlanRow(name, size_bytes) for name, size_bytes in bytes_by_name.items() if size_bytes)

    def fixed_bytes(self, *, offloaded: bool) -> int:
        """Sum of `fixed_rows`."""
        return total(self.fixed_rows(offloaded=offloaded))

    @cached_property
    def cache(self) -> CacheSizes:
        """Sizes of the full cache."""
        return CacheSizes.of(self.target, self.config, self.dtype.value, self.device.value)

    @cached_property
    def rooms(self) -> Rooms:
        """Memory left for the full cache."""
        return Rooms(
            resident=self.usable - self.fixed_bytes(offloaded=False),
            offloaded=self.usable - self.fixed_bytes(offloaded=True),
            host=0 if self.config.placement == "resident" else self.usable_host,
            lent=sizes.retrieval_bytes(self.target, self.config, self.dtype.value),
            chunk=self.prefill_chunk(offloaded=True).value if self.config.num_gpus == 1 else 0,
        )

    @property
    def weights_fit(self) -> bool:
        """Whether any context fits beside the weights, with all layers resident."""
        return self.most_within(self.rooms.resident, self.possible) >= STEP

    @property
    def possible(self) -> int:
        """The longest context regardless of memory: the model's where it is asked for, else at most MOST_CONTEXT."""
        asked = self.config.context or 0
        return self.target.max_context if asked > MOST_CONTEXT else min(self.target.max_context, MOST_CONTEXT)

    def fit(self, context: int) -> Fit | None:
        """How many layers of the full cache can be resident at most; None if the context does not fit."""
        most = {"split": max(0, self.cache.layers - 1), "offloaded": 0}.get(self.config.placement, self.cache.layers)
        return find_fit(self.cache, context, self.rooms, most)

    def most_context(self) -> int:
        """The longest context that fits in device and host memory together; below STEP: none."""
        return largest_context(self.possible, lambda context: self.fit(context) is not None)

    def most_within(self, room: int, possible: int) -> int:
        """The longest context whose layers all fit in so many bytes of the device; below STEP: none."""
        return largest_context(possible, lambda length: self.cache.device_bytes(length, self.cache.layers) <= room)

    def most_begun(self, context: int) -> int:
        """Tokens with which an engine for `context` begins, all layers resident; 0: too few."""
        if self.config.placement != "auto" or self.config.num_gpus > 1:
            return 0
        most = self.most_within(self.rooms.offloaded, context)
        return most if most >= LEAST_BEGUN else 0
