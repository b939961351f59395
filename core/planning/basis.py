"""The inputs of a plan (models, settings and memory), and what fits at each context."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from core.config import EngineConfig
from core.models.loader import ModelDims
from core.models.param_count import ModelSize
from core.models.quantised import FORMATS
from core.models.self_draft import BITS as DRAFTING_BITS
from core.planning.cache_sizes import CacheSizes
from core.planning.choices import Choice, choose_bits, choose_device, choose_dtype, choose_kv, choose_prefill_chunk
from core.planning.hardware import Machine
from core.planning.placement import STEP, Fit, Rooms, Usable, find_fit, largest_context
from core.planning.sizes import (
    DRAFT_WEIGHTS,
    DRAFTING_WEIGHTS,
    RETRIEVAL,
    RUNTIME,
    RUNTIME_BYTES,
    STREAMING,
    TARGET_WEIGHTS,
    WIDENED_BITS,
    PlanRow,
    graph_rows,
    prefill_bytes,
    retrieval_bytes,
    self_draft_weight_bytes,
    state_rows,
    streaming_bytes,
    target_weight_bytes,
    weight_bytes,
    widened_row,
)

MOST_CONTEXT = 131_072
LEAST_COPIED = 4e8  # parameters: 0.5 billion gain a third by a 4-bit copy, fewer were not tried
LEAST_BEGUN = 8192  # tokens: with fewer an engine does not begin with all layers resident


@dataclass(frozen=True, kw_only=True)
class Basis:
    """The inputs for one device, or for one of several ranks that share the target."""

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
    usable: Usable

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
        kv = choose_kv(config, target, device.value, dtype.value, compiles=machine.compiles)
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
            usable=Usable.of(device.value, config, machine),
        )

    # -------------------- what lies beside the full cache

    @property
    def packs(self) -> bool:
        """Whether the compiled kernel computes with the weights, in the bits of their file."""
        return self.device.value == "cpu" and self.machine.compiles and self.config.attention != "torch"

    @property
    def copy_pays(self) -> bool:
        """Whether passes with a 4-bit copy would take a fraction of the time: of 16-bit weights beyond any cache."""
        kept = self.target.disk_dtype.itemsize == 2 and self.bits.value not in FORMATS
        large = self.size is not None and self.size.experts is None and self.size.num_parameters >= LEAST_COPIED
        return self.packs and kept and large

    def prefill_chunk(self, *, offloaded: bool) -> Choice[int]:
        """Tokens to read in one pass."""
        cores = self.machine.num_cores
        return choose_prefill_chunk(self.target, self.config, self.device.value, offloaded=offloaded, num_cores=cores)

    def fixed_rows(self, *, offloaded: bool) -> tuple[PlanRow, ...]:
        """What the device holds at every context.

        Args:
            offloaded: whether any layer of the full cache is offloaded.
        """
        dims, dtype, bits = self.target, self.dtype.value, self.bits.value
        read = replace(self.config, prefill_chunk=self.prefill_chunk(offloaded=offloaded).value)
        rows = [
            *([] if self.device.value == "cuda" else [PlanRow(RUNTIME, RUNTIME_BYTES)]),
            PlanRow(TARGET_WEIGHTS, target_weight_bytes(dims, self.size, dtype, bits, packs=self.packs)),
            PlanRow(RETRIEVAL, retrieval_bytes(dims, self.config, dtype)),
            PlanRow("prefill buffers", prefill_bytes(dims, read, dtype, offloaded=offloaded)),
        ]
        rows += state_rows(dims, dtype, self.device.value)
        if self.draft is not None:
            rows.append(PlanRow(DRAFT_WEIGHTS, weight_bytes(self.draft, dtype, packs=self.packs)))
            rows.append(PlanRow(STREAMING, streaming_bytes(self.draft, self.config, dtype)))
        rows += graph_rows(dims, self.draft, self.config, self.device.value, self.config.num_gpus)
        if bits in WIDENED_BITS[self.device.value] and self.size is not None and not self.packs:
            rows.append(widened_row(self.size, dtype, bits))
        if self.drafts_apart:
            assert self.size is not None, "self-draft weights are planned from counted parameters"
            rows.append(PlanRow(DRAFTING_WEIGHTS, self_draft_weight_bytes(self.size, packs=self.packs)))
        return tuple(rows)

    def fixed_bytes(self, *, offloaded: bool) -> int:
        """Sum of `fixed_rows`."""
        return sum(row.size_bytes for row in self.fixed_rows(offloaded=offloaded))

    # -------------------- what fits

    @cached_property
    def sizes(self) -> CacheSizes:
        """Sizes of the full cache."""
        return CacheSizes.of(self.target, self.config, self.dtype.value, self.device.value)

    @cached_property
    def rooms(self) -> Rooms:
        """Memory left for the full cache."""
        return Rooms(
            resident=self.usable.device - self.fixed_bytes(offloaded=False),
            offloaded=self.usable.device - self.fixed_bytes(offloaded=True),
            host=0 if self.config.placement == "resident" else self.usable.host,
            lent=retrieval_bytes(self.target, self.config, self.dtype.value),
            chunk=self.prefill_chunk(offloaded=True).value if self.config.num_gpus == 1 else 0,
        )

    @property
    def possible(self) -> int:
        """The longest context, without regard to memory: the model's own where it is asked for, else MOST_CONTEXT."""
        asked = self.config.context or 0
        return self.target.max_context if asked > MOST_CONTEXT else min(self.target.max_context, MOST_CONTEXT)

    def fit(self, context: int) -> Fit | None:
        """How many layers of the full cache can be resident at most; None if the context does not fit."""
        most = {"split": max(0, self.sizes.layers - 1), "offloaded": 0}.get(self.config.placement, self.sizes.layers)
        return find_fit(self.sizes, context, self.rooms, most)

    def most_context(self) -> int:
        """The longest context that fits in device and host memory together; below STEP: none."""
        return largest_context(self.possible, lambda context: self.fit(context) is not None)

    def most_resident(self) -> int:
        """The longest context that fits on the device alone; below STEP: none."""
        layers = self.sizes.layers
        return largest_context(
            self.possible, lambda context: self.sizes.device_bytes(context, layers) <= self.rooms.resident
        )

    def most_begun(self, context: int) -> int:
        """Tokens for which all layers are resident in an engine that may become one for `context`; 0: too few."""
        if self.config.placement != "auto" or self.config.num_gpus > 1:
            return 0
        room, layers = self.rooms.offloaded, self.sizes.layers
        most = largest_context(context, lambda length: self.sizes.device_bytes(length, layers) <= room)
        return most if most >= LEAST_BEGUN else 0

    @property
    def fits(self) -> bool:
        """Whether any context fits beside the weights, with all layers resident."""
        return self.most_resident() >= STEP
