"""Which memory would hold what: weights, keys and values over one or more GPUs and the host. Pure arithmetic on sizes.

`planner` plans what this version is about to load; this plans any machine, model, context and precision from
configurations alone, and says whether this version can already run it. Two things can be refused, and are told apart:
weights that do not fit, and a context that does not (with the largest that would).

Several GPUs share the layers by heads: linear weights, keys, values, landmarks and the retrieval cache are divided;
embeddings, output layer and norms are on each; the draft is on the first. Landmarks stay on the devices, wherever the
keys lie: every selection reads them all.
"""

from dataclasses import dataclass, replace

import torch

from core.config import EngineConfig
from core.errors import ContextTooSmall, InvalidSetting, NotEnoughMemory
from core.models.param_count import STORED_BITS, ModelSize
from core.models.quantised import FORMATS
from core.models.self_draft import BITS as DRAFTING_BITS
from core.models.self_draft import LEAVE_OUT
from core.planning.machine_spec import Rig
from core.planning.planner import (
    DRAFTING_WEIGHTS,
    MOST_CONTEXT,
    RUNTIME_BYTES,
    STEP,
    USABLE_SHARE,
    Bandwidths,
    CacheSizes,
    Choice,
    Fit,
    Placement,
    PlanRow,
    Rooms,
    choose_coattention,
    choose_device,
    choose_dtype,
    choose_prefill_chunk,
    gib,
    graph_rows,
    largest_context,
    nominal_bandwidths,
    prefill_bytes,
    prefill_rows,
    retrieval_bytes,
    streaming_bytes,
    widened_row,
)
from core.planning.tp_planning import ON_WINDOWS, check_heads


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
    drafting_bits: Choice[int]  # of those that passes over the retrieval cache multiply with
    placement: Choice[Placement]
    context: Choice[int]
    most_context: int  # that would fit, all memories taken together
    most_resident: int  # that would fit beside the weights, without the host's memory
    resident_layers: int
    num_layers: int
    num_gpus: int  # 0: the processor computes
    tiers: tuple[Tier, ...]  # GPUs first, the host last
    runs: Choice[bool]  # whether this version can do it
    # Share of the blocks in host memory that the host attends to; None: to be measured where the plan is carried out.
    coattention: Choice[float | None]
    nominal: Bandwidths

    @property
    def host_share(self) -> float:
        """Part of the full cache that waits in host memory, from where every pass over it needs it."""
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
    most = largest_context(possible, lambda context: plan.fit(context) is not None)
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
    most_resident = largest_context(possible, plan.fits_resident)
    return plan.plan(context, most, most_resident)


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
        check_heads(target.dims.num_kv_heads, self._shares)
        self._drafts_apart = config.drafting_bits == DRAFTING_BITS
        if bits is not None and bits not in STORED_BITS:
            raise InvalidSetting(f"Weights of {bits} bits are not usable.", hint="Use --bits 16, 8 or 4.")
        width = 8 * self.dtype.value.itemsize
        self.bits = Choice(width, f"what the {self._place} computes in") if bits is None else Choice(bits, "asked for")
        self.sizes = CacheSizes.of(target.dims, config, self.dtype.value, self._shares, self.device.value)
        usable = [gpu.free_bytes for gpu in machine.gpus] if self.on_gpu else [machine.free_ram_bytes]
        self._usable = [int(size * USABLE_SHARE) for size in usable]
        self._usable_host = int(machine.free_ram_bytes * USABLE_SHARE)
        # What each device holds beside the full cache, and the room it leaves: if all layers are resident, if not.
        self._fixed = [
            [self._fixed_rows(number, offloaded=offloaded) for number in range(self._shares)]
            for offloaded in (False, True)
        ]
        self._free = [
            [room - sum(row.size_bytes for row in rows) for room, rows in zip(self._usable, fixed, strict=True)]
            for fixed in self._fixed
        ]

    @property
    def _rooms(self) -> Rooms:
        dims = self._target.dims
        chunk = choose_prefill_chunk(dims, self._config, self.device.value, offloaded=True).value
        return Rooms(
            resident=min(self._free[0]),
            offloaded=min(self._free[1]),
            host=self._usable_host - RUNTIME_BYTES,
            lent=retrieval_bytes(dims, self._config, self.dtype.value) // self._shares,
            chunk=chunk if self._shares == 1 else 0,
        )

    @property
    def _drafting_bits(self) -> Choice[int]:
        if not self._drafts_apart:
            return Choice(self.bits.value, "the target's own weights")
        return Choice(DRAFTING_BITS, "asked for: a second copy of the linear weights, which guesses and never decides")

    @property
    def _place(self) -> str:
        return "GPU" if self.on_gpu else "processor"

    def _fixed_rows(
        self, number: int, bits: int | None = None, shares: int | None = None, *, offloaded: bool = False
    ) -> tuple[PlanRow, ...]:
        """What a device holds whatever the context is."""
        dims, dtype = self._target.dims, self.dtype.value
        chunk = choose_prefill_chunk(dims, self._config, self.device.value, offloaded=offloaded).value
        read = replace(self._config, prefill_chunk=chunk)
        bits, shares = bits or self.bits.value, shares or self._shares
        rows = [
            PlanRow("runtime", RUNTIME_BYTES),
            PlanRow("target weights", self._target.weight_bytes(bits, shares)),
            PlanRow("retrieval cache", retrieval_bytes(dims, self._config, dtype) // shares),
            PlanRow("prefill buffers", prefill_bytes(dims, read, dtype, offloaded=offloaded)),
        ]
        if bits in FORMATS:
            rows.append(widened_row(self._target, dtype))
        if self._drafts_apart:
            rows.append(PlanRow(DRAFTING_WEIGHTS, self._target.drafting_bytes // shares))
        if self._draft is not None and number == 0:
            rows.append(PlanRow("draft weights", self._draft.weight_bytes(8 * dtype.itemsize)))
            rows.append(PlanRow("streaming cache", streaming_bytes(self._draft.dims, self._config, dtype)))
        draft = self._draft.dims if self._draft is not None and number == 0 else None
        return (*rows, *graph_rows(dims, draft, self._config, self.device.value, shares))

    # -------------------- what fits

    def fits_resident(self, context: int) -> bool:
        """The whole full cache lies beside the weights."""
        return min(self._free[0]) >= self.sizes.device_bytes(context, self.sizes.layers)

    def fit(self, context: int) -> Fit | None:
        """How many layers of the full cache lie on the GPUs, as many as can; None where the context does not fit."""
        if not self.on_gpu:
            return Fit(self.sizes.layers, 0) if self.fits_resident(context) else None
        return self.sizes.fit(context, self._rooms, self.sizes.layers)

    # -------------------- the plan

    def plan(self, context: Choice[int], most: int, most_resident: int) -> TierPlan:
        """Everything in its place."""
        fit = self.fit(context.value)
        assert fit is not None, "a context that does not fit is refused before"
        here = fit.layers
        return TierPlan(
            device=self.device,
            dtype=self.dtype,
            bits=self.bits,
            drafting_bits=self._drafting_bits,
            placement=self._placement(here, context.value),
            context=context,
            most_context=most,
            most_resident=most_resident,
            resident_layers=here,
            num_layers=self._target.dims.num_layers,
            num_gpus=self.num_gpus,
            tiers=tuple(self._tiers(fit, context.value)),
            runs=self._runs(here),
            coattention=self._coattention(here),
            nominal=self._nominal,
        )

    @property
    def _nominal(self) -> Bandwidths:
        gpus, kind = self._rig.machine.gpus, self._rig.kind
        return nominal_bandwidths(self.device.value, kind.name if kind else gpus[0].name if gpus else "")

    def _coattention(self, here: int) -> Choice[float | None]:
        if self.num_gpus > 1 and here < self.sizes.layers:
            return Choice(0.0, "several processes share the model")
        return choose_coattention(self._config, self.device.value, away=self.on_gpu and here < self.sizes.layers)

    def _placement(self, here: int, context: int) -> Choice[Placement]:
        layers = self.sizes.layers
        each = "each GPU" if self.num_gpus > 1 else f"the {self._place}"
        if here == layers:
            where = f"beside the weights on {each}" if self.on_gpu else "beside the weights in memory"
            return Choice("resident", f"the whole context fits {where}")
        away = gib(self.sizes.host_bytes(context, here))
        crossing = f"{away} wait in host memory and cross the link for every pass over the full cache"
        free = gib(max(0, min(self._free[1])))
        if here == 0:
            return Choice(
                "offloaded", f"landmarks and buffers leave no room for a layer in the {free} on {each}; {crossing}"
            )
        return Choice("split", f"{here} of {layers} layers fit into the {free} left on {each}; {crossing}")

    def _tiers(self, fit: Fit, context: int) -> list[Tier]:
        machine, here = self._rig.machine, fit.layers
        reading = prefill_rows(self.sizes, context, fit.block, self._rooms.lent)
        fixed_rows = self._fixed[here < self.sizes.layers]
        devices = [(*fixed, *reading, *self.sizes.device_rows(context, here)) for fixed in fixed_rows]
        if not self.on_gpu:
            return [Tier("memory", machine.ram_bytes, machine.free_ram_bytes, devices[0])]
        tiers = [
            Tier(f"GPU {number}: {gpu.name}", gpu.total_bytes, gpu.free_bytes, rows)
            for number, (gpu, rows) in enumerate(zip(machine.gpus, devices, strict=True))
        ]
        host = (PlanRow("runtime", RUNTIME_BYTES), *self.sizes.host_rows(context, here))
        return [*tiers, Tier("host memory", machine.ram_bytes, machine.free_ram_bytes, host)]

    def _runs(self, here: int) -> Choice[bool]:
        if self.num_gpus > 1 and ON_WINDOWS and self._rig.gpus_are_here:
            return Choice(False, "GPUs cannot share a model under Windows, where torch comes without NCCL: use WSL2")
        if self.num_gpus > 1 and not self._target.divisible:
            return Choice(False, "this version cannot share the layers of this family between GPUs by heads")
        if self.num_gpus > 1 and self.bits.value in FORMATS:
            return Choice(False, "this version does not share quantised weights between GPUs")
        if self.num_gpus > 1 and self._drafts_apart:
            return Choice(False, "this version does not share drafting weights of 4 bits between GPUs")
        if self.bits.value not in (8 * self.dtype.value.itemsize, *FORMATS):
            return Choice(False, f"this version loads weights of {8 * self.dtype.value.itemsize} bits here")
        if self.num_gpus > 1:
            return Choice(True, f"one process a GPU, each with its heads: start with --gpus {self.num_gpus}")
        if here < self.sizes.layers:
            return Choice(True, "one GPU and host memory hold everything")
        return Choice(True, "everything fits on one device")

    # -------------------- the two refusals

    def weights_do_not_fit(self) -> NotEnoughMemory:
        """Not even an empty conversation fits; the hint is the smallest change that would do."""
        number = min(range(self._shares), key=lambda device: self._free[0][device])
        needed = sum(row.size_bytes for row in self._fixed[0][number])
        each = f"GPU {number}" if self.on_gpu else "this machine"
        return NotEnoughMemory(
            f"The weights do not fit: at {self.bits.value} bits they and what always lies beside them need "
            f"{gib(needed)}, {gib(self._usable[number])} can be used on {each}.",
            hint=self._way_out(self._usable[number]),
        )

    def _way_out(self, usable: int) -> str:
        dims = self._target.dims
        if self._drafts_apart:
            return LEAVE_OUT

        def fits(bits: int, shares: int) -> bool:
            size = sum(row.size_bytes for row in self._fixed_rows(0, bits, shares))
            return size + self.sizes.device_bytes(STEP, dims.num_layers) <= usable

        for bits in (16, 8, 4):
            if bits < self.bits.value and fits(bits, self._shares):
                exactly = "" if bits == 16 else "; answers are then exact for the quantised model"
                return f"With --bits {bits} they would fit{exactly}."
        if self.on_gpu and self._shares == 1 and dims.num_kv_heads % 2 == 0 and fits(self.bits.value, 2):
            return "Plan for two such GPUs, which would hold them."
        return "Choose a smaller model or a machine with more memory."

    def context_does_not_fit(self, context: int, most: int) -> NotEnoughMemory:
        """The weights fit, so many tokens do not."""
        needed = self.sizes.device_bytes(context, self.sizes.layers) * self._shares
        left = sum(max(0, free) for free in self._free[0])
        memories = "beside the weights"
        buffers, room = self.sizes.device_bytes(context, 0), min(self._free[1])
        if self.on_gpu and buffers > room:
            needed, left, memories = buffers, max(0, room), "on the GPU"
            what = "its landmarks and buffers need"
        else:
            what = "it needs"
        if self.on_gpu and buffers <= room:
            left += max(0, self._usable_host - RUNTIME_BYTES)
            memories = "on the GPUs and in host memory together" if self.num_gpus > 1 else "on GPU and host together"
        return NotEnoughMemory(
            f"The weights fit, a context of {context:,} tokens does not: {what} {gib(needed)}, "
            f"{gib(left)} are left {memories}.",
            hint=f"Use --context {most} or less.",
            largest_context=most,
        )
