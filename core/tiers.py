"""Which memory would hold what: weights, keys and values over one or more GPUs and the host. Pure arithmetic on sizes.

`planner` plans what this version is about to load; this plans any machine, model, context and precision from
configurations alone, and says whether this version can already run it. Two things can be refused, and are told apart:
weights that do not fit, and a context that does not (with the largest that would).

Several GPUs share the layers by heads: linear weights, keys, values, landmarks and the retrieval cache are divided;
embeddings, output layer and norms are on each; the draft is on the first. A layer's landmarks lie where its keys lie.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from core.config import EngineConfig
from core.errors import ContextTooSmall, InvalidSetting, NotEnoughMemory
from core.models.census import STORED_BITS, ModelSize
from core.models.quantised import FORMATS
from core.planner import (
    MOST_CONTEXT,
    RUNTIME_BYTES,
    USABLE_SHARE,
    Choice,
    PlanRow,
    choose_device,
    choose_dtype,
    context_bytes_per_token,
    gib,
    kv_bytes_per_token,
    prefill_bytes,
    retrieval_bytes,
)
from core.rigs import Rig

Placement = Literal["resident", "split", "offloaded"]
STEP = 64  # tokens: contexts are planned in multiples of it
# Keys and values cross the link in pieces of so many tokens of one layer; three are on their way, in use, being freed.
RING_TOKENS, RING_SLOTS = 4096, 3


@dataclass(frozen=True, slots=True)
class Tier:
    """One memory and what it would hold."""

    name: str
    total_bytes: int
    free_bytes: int
    rows: tuple[PlanRow, ...]

    @property
    def usable_bytes(self) -> int:
        """What a plan may use."""
        return int(self.free_bytes * USABLE_SHARE)

    @property
    def used_bytes(self) -> int:
        """All rows."""
        return sum(row.size_bytes for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPlan:
    """Where everything would go, and why."""

    device: Choice[str]
    dtype: Choice[torch.dtype]  # of computing, keys and values
    bits: Choice[int]  # of the weights
    placement: Choice[Placement]
    context: Choice[int]
    most_context: int  # that would fit, all memories taken together
    most_resident: int  # that would fit beside the weights, without the host's memory
    resident_layers: int
    num_layers: int
    num_gpus: int  # 0: the processor computes
    tiers: tuple[Tier, ...]  # GPUs first, the host last
    runs: Choice[bool]  # whether this version can do it

    @property
    def host_share(self) -> float:
        """Part of the full cache that waits in host memory and crosses the link for every pass over it."""
        return 1 - self.resident_layers / self.num_layers if self.num_gpus else 0.0


def plan_tiers(
    target: ModelSize, draft: ModelSize | None, config: EngineConfig, rig: Rig, bits: int | None = None
) -> TierPlan:
    """Plan one model on one machine.

    Raises:
        NotEnoughMemory: the weights alone do not fit (`largest_context` is None); or the context asked for does not.
        ContextTooSmall: the context asked for is longer than the model's.
        InvalidSetting: a number of bits or of GPUs that cannot be.
    """
    plan = _Planner(target, draft, config, rig, bits)
    possible = min(target.dims.max_context, MOST_CONTEXT)
    if config.context is not None and config.context > possible:
        raise ContextTooSmall(config.context, possible, possible=possible)
    most = _largest(possible, lambda context: plan.resident_layers(context) is not None)
    if most < STEP:
        raise plan.weights_do_not_fit()
    if config.context is not None and config.context > most:
        raise plan.context_does_not_fit(config.context, most)
    if config.context is not None:
        context = Choice(config.context, "asked for")
    elif most == possible:
        context = Choice(possible, "all that the model can read")
    else:
        context = Choice(most, "the memory holds no more")
    most_resident = _largest(possible, plan.fits_resident)
    return plan.plan(context, most, most_resident)


def _largest(possible: int, fits: Callable[[int], bool]) -> int:
    """The largest context that fits: `possible`, or a multiple of STEP below it. A smaller one never needs more."""
    if fits(possible):
        return possible
    low, high = 0, possible // STEP + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * STEP) else (low, middle)
    return low * STEP


class _Planner:
    """The sizes that every context is tried with."""

    def __init__(
        self, target: ModelSize, draft: ModelSize | None, config: EngineConfig, rig: Rig, bits: int | None
    ) -> None:
        self._target, self._draft, self._config, self._rig = target, draft, config, rig
        machine = rig.machine
        self.device = choose_device(config, machine)
        if rig.assumed:
            self.device = replace(self.device, because="as described")
        self.dtype = choose_dtype(self.device.value, target.dims)
        self.on_gpu = self.device.value == "cuda"
        self.num_gpus = len(machine.gpus) if self.on_gpu else 0
        self._shares = max(1, self.num_gpus)
        if target.dims.num_kv_heads % self._shares:
            raise InvalidSetting(
                f"{target.dims.num_kv_heads} heads of keys and values cannot be shared by {self._shares} GPUs.",
                hint="Use a number of GPUs that divides them.",
            )
        if bits is not None and bits not in STORED_BITS:
            raise InvalidSetting(f"Weights of {bits} bits are not usable.", hint="Use --bits 16, 8 or 4.")
        width = 8 * self.dtype.value.itemsize
        self.bits = Choice(width, f"what the {self._place} computes in") if bits is None else Choice(bits, "asked for")
        layers = target.dims.num_layers
        per_token = context_bytes_per_token(target.dims, config, self.dtype.value)
        self._layer_bytes = -(-per_token // layers // self._shares)  # per token of context, on each device
        kv = kv_bytes_per_token(target.dims, self.dtype.value)
        self._kv_share = kv / per_token
        self._ring = RING_SLOTS * RING_TOKENS * kv // layers // self._shares
        usable = [gpu.free_bytes for gpu in machine.gpus] if self.on_gpu else [machine.free_ram_bytes]
        self._usable = [int(size * USABLE_SHARE) for size in usable]
        self._usable_host = int(machine.free_ram_bytes * USABLE_SHARE)
        self._fixed = [self._fixed_rows(number) for number in range(self._shares)]
        self._free = [
            room - sum(row.size_bytes for row in rows) for room, rows in zip(self._usable, self._fixed, strict=True)
        ]

    @property
    def _place(self) -> str:
        return "GPU" if self.on_gpu else "processor"

    def _fixed_rows(self, number: int, bits: int | None = None, shares: int | None = None) -> tuple[PlanRow, ...]:
        """What a device holds whatever the context is."""
        dims, dtype = self._target.dims, self.dtype.value
        bits, shares = bits or self.bits.value, shares or self._shares
        rows = [
            PlanRow("runtime", RUNTIME_BYTES),
            PlanRow("target weights", self._target.weight_bytes(bits, shares)),
            PlanRow("retrieval cache", retrieval_bytes(dims, self._config, dtype) // shares),
            PlanRow("prefill buffers", prefill_bytes(dims, self._config)),
        ]
        if self._draft is not None and number == 0:
            rows.append(PlanRow("draft weights", self._draft.weight_bytes(8 * dtype.itemsize)))
            window = self._config.draft.window
            rows.append(PlanRow("streaming cache", window * kv_bytes_per_token(self._draft.dims, dtype)))
        return tuple(rows)

    # -------------------- what fits

    def fits_resident(self, context: int) -> bool:
        """The whole full cache lies beside the weights."""
        return min(self._free) >= self._target.dims.num_layers * self._layer_bytes * context

    def resident_layers(self, context: int) -> int | None:
        """How many layers of the full cache lie on the GPUs, as many as can; None where the context does not fit."""
        layers = self._target.dims.num_layers
        if self.fits_resident(context):
            return layers
        room = min(self._free) - self._ring
        if not self.on_gpu or room < 0:
            return None
        here = min(layers - 1, room // (self._layer_bytes * context))
        away = (layers - here) * self._layer_bytes * self._shares * context
        return here if away + RUNTIME_BYTES <= self._usable_host else None

    # -------------------- the plan

    def plan(self, context: Choice[int], most: int, most_resident: int) -> TierPlan:
        """Everything in its place."""
        here = self.resident_layers(context.value)
        assert here is not None, "a context that does not fit is refused before"
        return TierPlan(
            device=self.device,
            dtype=self.dtype,
            bits=self.bits,
            placement=self._placement(here, context.value),
            context=context,
            most_context=most,
            most_resident=most_resident,
            resident_layers=here,
            num_layers=self._target.dims.num_layers,
            num_gpus=self.num_gpus,
            tiers=tuple(self._tiers(here, context.value)),
            runs=self._runs(here),
        )

    def _placement(self, here: int, context: int) -> Choice[Placement]:
        layers = self._target.dims.num_layers
        each = "each GPU" if self.num_gpus > 1 else f"the {self._place}"
        if here == layers:
            where = f"beside the weights on {each}" if self.on_gpu else "beside the weights in memory"
            return Choice("resident", f"the whole context fits {where}")
        away = (layers - here) * self._layer_bytes * self._shares * context
        crossing = f"{gib(away)} wait in host memory and cross the link for every pass over the full cache"
        free = gib(max(0, min(self._free)))
        if here == 0:
            return Choice("offloaded", f"{free} left beside the weights on {each} hold no layer of it; {crossing}")
        return Choice("split", f"{here} of {layers} layers fit into the {free} left on {each}; {crossing}")

    def _tiers(self, here: int, context: int) -> list[Tier]:
        machine, layers = self._rig.machine, self._target.dims.num_layers

        def cache(num_layers: int, shares: int) -> list[PlanRow]:
            size = num_layers * self._layer_bytes * shares * context
            kept = int(size * self._kv_share)
            which = "" if num_layers == layers else f", {num_layers} of {layers} layers"
            rows = [PlanRow(f"full cache{which}", kept), PlanRow("landmarks, query log", size - kept)]
            return rows if num_layers else []

        ring = [PlanRow("ring of copies", self._ring)] if here < layers else []
        tiers = []
        devices = [(*fixed, *ring, *cache(here, 1)) for fixed in self._fixed]
        if not self.on_gpu:
            return [Tier("memory", machine.ram_bytes, machine.free_ram_bytes, devices[0])]
        tiers = [
            Tier(f"GPU {number}: {gpu.name}", gpu.total_bytes, gpu.free_bytes, rows)
            for number, (gpu, rows) in enumerate(zip(machine.gpus, devices, strict=True))
        ]
        host = (PlanRow("runtime", RUNTIME_BYTES), *cache(layers - here, self._shares))
        return [*tiers, Tier("host memory", machine.ram_bytes, machine.free_ram_bytes, host)]

    def _runs(self, here: int) -> Choice[bool]:
        if here < self._target.dims.num_layers:
            return Choice(False, "this version keeps the whole full cache on one device: offloading is not there yet")
        if self.num_gpus > 1:
            return Choice(False, "this version uses one GPU")
        if self.bits.value not in (8 * self.dtype.value.itemsize, *FORMATS):
            return Choice(False, f"this version loads weights of {8 * self.dtype.value.itemsize} bits here")
        return Choice(True, "everything fits on one device")

    # -------------------- the two refusals

    def weights_do_not_fit(self) -> NotEnoughMemory:
        """Not even an empty conversation fits; the hint is the smallest change that would do."""
        number = min(range(self._shares), key=lambda device: self._free[device])
        needed = sum(row.size_bytes for row in self._fixed[number])
        each = f"GPU {number}" if self.on_gpu else "this machine"
        return NotEnoughMemory(
            f"The weights do not fit: at {self.bits.value} bits they and what always lies beside them need "
            f"{gib(needed)}, {gib(self._usable[number])} can be used on {each}.",
            hint=self._way_out(self._usable[number]),
        )

    def _way_out(self, usable: int) -> str:
        dims = self._target.dims

        def fits(bits: int, shares: int) -> bool:
            size = sum(row.size_bytes for row in self._fixed_rows(0, bits, shares))
            return size + STEP * dims.num_layers * self._layer_bytes <= usable

        for bits in (16, 8, 4):
            if bits < self.bits.value and fits(bits, self._shares):
                exactly = "" if bits == 16 else "; answers are then exact for the quantised model"
                return f"With --bits {bits} they would fit{exactly}."
        if self.on_gpu and self._shares == 1 and dims.num_kv_heads % 2 == 0 and fits(self.bits.value, 2):
            return "Plan for two such GPUs, which would hold them."
        return "Choose a smaller model or a machine with more memory."

    def context_does_not_fit(self, context: int, most: int) -> NotEnoughMemory:
        """The weights fit, so many tokens do not."""
        needed = self._target.dims.num_layers * self._layer_bytes * self._shares * context
        left = sum(max(0, free) for free in self._free)
        memories = "beside the weights"
        if self.on_gpu:
            left += max(0, self._usable_host - RUNTIME_BYTES)
            memories = "on the GPUs and in host memory together" if self.num_gpus > 1 else "on GPU and host together"
        return NotEnoughMemory(
            f"The weights fit, a context of {context:,} tokens does not: it needs {gib(needed)}, "
            f"{gib(left)} are left {memories}.",
            hint=f"Use --context {most} or less.",
            largest_context=most,
        )
