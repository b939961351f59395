"""The plan for a machine, here or only described: what each memory would hold, and whether this version runs it.

Made from configurations alone, without weights. The numbers are those of the plan for loading (`planner`): of one
device, or of each of several ranks (`tp_planning`), with the draft on the first. Plans that this version does not run
are marked as such: any width of weights, quantised or self-draft weights for several GPUs.
"""

from dataclasses import dataclass, replace

from core.config import EngineConfig
from core.errors import InvalidSetting, NotEnoughMemory
from core.models.param_count import STORED_BITS, ModelSize
from core.models.quantised import FORMATS
from core.models.self_draft import BITS as DRAFTING_BITS
from core.models.self_draft import LEAVE_OUT
from core.planning.basis import Basis
from core.planning.choices import Choice, choose_device, choose_dtype
from core.planning.composition import compose
from core.planning.hardware import Machine
from core.planning.machine_spec import Rig, nominal_bandwidths
from core.planning.memory_plan import Placement, Plan
from core.planning.planner import plan_from
from core.planning.sizes import (
    DRAFT_WEIGHTS,
    GIB,
    GRAPHS,
    RUNTIME,
    RUNTIME_BYTES,
    STREAMING,
    PlanRow,
    gib,
    usable_bytes,
)
from core.planning.tp_planning import ON_WINDOWS, check_heads, machine_share, share_of

DRAFTS = (DRAFT_WEIGHTS, STREAMING, GRAPHS)  # rows that only the first of several ranks has


@dataclass(frozen=True, slots=True)
class Tier:
    """One memory and what it would hold."""

    name: str
    total_bytes: int
    free_bytes: int
    rows: tuple[PlanRow, ...]
    device: str = "cpu"

    @property
    def usable_bytes(self) -> int:
        """Bytes that a plan may use."""
        return usable_bytes(self.device, self.free_bytes)

    @property
    def used_bytes(self) -> int:
        """Sum of all rows."""
        return sum(row.size_bytes for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class RigPlan:
    """A plan, and the memories of the machine that it was made for."""

    plan: Plan  # of one device, or of the first rank
    self_draft_bits: Choice[int]  # of the weights for passes over the retrieval cache
    most_resident: int  # tokens that would fit beside the weights, without host memory
    num_gpus: int  # 0: the processor computes
    tiers: tuple[Tier, ...]  # GPUs first, the host last
    runs: Choice[bool]  # whether this version can run it

    @property
    def cpu_attention_share(self) -> float:
        """Part of the full cache in host memory, where every pass over it needs it."""
        return 1 - self.plan.resident_layers / self.plan.num_layers


def plan_rig(
    target: ModelSize, draft: ModelSize | None, config: EngineConfig, rig: Rig, bits: int | None = None
) -> RigPlan:
    """Plan one model on one machine.

    Args:
        config: without the GPUs and their memory, which `rig` states, and without the width of weights.
    Raises:
        NotEnoughMemory: the weights alone do not fit (`largest_context` is None); or the wanted context does not.
        ContextTooSmall: the wanted context is longer than the model's.
        InvalidSetting: an impossible number of bits or of GPUs.
    """
    asked = _Asked(target, draft, config, rig, bits)
    basis = asked.basis()
    self_draft = Choice(basis.bits.value, "the target's own weights")
    if basis.drafts_apart:
        self_draft = Choice(DRAFTING_BITS, "a second copy of the linear weights, used for guesses only")
    plan = plan_from(basis, asked)
    if rig.assumed:
        plan = replace(plan, device=Choice(plan.device.value, "as described"))
    if rig.kind is not None:
        cuda = plan.device.value == "cuda"
        plan = replace(plan, nominal=rig.kind.bandwidths if cuda else nominal_bandwidths("cpu"))
    return RigPlan(
        plan=plan,
        self_draft_bits=self_draft,
        most_resident=basis.most_resident(),
        num_gpus=asked.num_gpus,
        tiers=_tiers(plan, rig.machine, asked.num_gpus),
        runs=_runs(plan, basis, rig, asked.num_gpus),
    )


def compose_rig(
    target: ModelSize, draft: ModelSize | None, config: EngineConfig, rig: Rig, bits: int | None = None
) -> RigPlan:
    """The plan with which loading would begin on a machine.

    Raises:
        NotEnoughMemory, ContextTooSmall, InvalidSetting: as `plan_rig`.
    """
    made: list[RigPlan] = []

    def plan(one: EngineConfig, has_draft: bool) -> Plan:
        made.append(plan_rig(target, draft if has_draft else None, one, rig, bits))
        return made[-1].plan

    found = compose(config, plan, has_draft=draft is not None)
    return replace(next(one for one in made if one.plan.rows == found.rows), plan=found)


def _tiers(plan: Plan, machine: Machine, num_gpus: int) -> tuple[Tier, ...]:
    if not num_gpus:
        return (Tier("memory", machine.ram_bytes, machine.free_ram_bytes, plan.rows),)
    others = tuple(row for row in plan.rows if row.name not in DRAFTS)
    gpus = [
        Tier(f"GPU {number}: {gpu.name}", gpu.total_bytes, gpu.free_bytes, others if number else plan.rows, "cuda")
        for number, gpu in enumerate(machine.gpus)
    ]
    of_one = (PlanRow(RUNTIME, RUNTIME_BYTES), *plan.host_rows)
    host = tuple(PlanRow(row.name, num_gpus * row.size_bytes) for row in of_one)
    return (*gpus, Tier("host memory", machine.ram_bytes, machine.free_ram_bytes, host))


def _runs(plan: Plan, basis: Basis, rig: Rig, num_gpus: int) -> Choice[bool]:
    bits, width = plan.bits.value, 8 * plan.dtype.value.itemsize
    if num_gpus > 1 and ON_WINDOWS and rig.gpus_are_here:
        return Choice(False, "GPUs cannot share a model under Windows, where torch comes without NCCL: use WSL2")
    if num_gpus > 1 and basis.size is not None and not basis.size.divisible:
        return Choice(False, "this version cannot share the layers of this family between GPUs by heads")
    if num_gpus > 1 and bits in FORMATS:
        return Choice(False, "this version does not share quantised weights between GPUs")
    if num_gpus > 1 and basis.drafts_apart:
        return Choice(False, "this version does not share self-draft weights of 4 bits between GPUs")
    if bits not in (width, *FORMATS):
        return Choice(False, f"this version loads weights of {width} bits here")
    if num_gpus > 1:
        return Choice(True, f"one process a GPU, each with its heads: start with --gpus {num_gpus}")
    if plan.resident_layers < plan.num_layers:
        return Choice(True, "one GPU and host memory hold everything")
    return Choice(True, "everything fits on one device")


@dataclass(frozen=True, slots=True)
class _Asked:
    """The request, and the wording of its answer."""

    target: ModelSize
    draft: ModelSize | None
    config: EngineConfig
    rig: Rig
    bits: int | None

    @property
    def device(self) -> str:
        return choose_device(self.config, self.rig.machine).value

    @property
    def place(self) -> str:
        return "GPU" if self.device == "cuda" else "processor"

    @property
    def num_gpus(self) -> int:
        return len(self.rig.machine.gpus) if self.device == "cuda" else 0

    def basis(self) -> Basis:
        """The inputs for the one device, or for each rank."""
        if self.bits is not None and self.bits not in STORED_BITS:
            raise InvalidSetting(f"Weights of {self.bits} bits are not usable.", hint="Use --bits 16, 8 or 4.")
        ranks = max(1, self.num_gpus)
        check_heads(self.target.dims.num_kv_heads, ranks)
        target, width = share_of(self.target, ranks), 8 * choose_dtype(self.device, self.target.dims).value.itemsize
        return Basis.of(
            target.dims,
            share_of(self.draft, 1).dims if self.draft is not None else None,
            replace(
                self.config,
                bits=None,
                self_draft_bits=16,
                num_gpus=ranks,
                gpu_memory_gib=None,
            ),
            machine_share(self.rig.machine, ranks, on_gpus=self.device == "cuda"),
            target,
            bits=Choice(self.bits, "asked for") if self.bits else Choice(width, f"what the {self.place} computes in"),
            drafts_apart=self.config.self_draft_bits == DRAFTING_BITS,
        )

    # -------------------- words

    def no_room(self, basis: Basis) -> NotEnoughMemory:
        """Not even an empty conversation fits; the hint is the smallest change that would help."""
        gpus = self.rig.machine.gpus
        fullest = min(range(self.num_gpus), key=lambda number: gpus[number].free_bytes, default=0)
        each = f"GPU {fullest}" if self.num_gpus else "this machine"
        return NotEnoughMemory(
            f"The weights do not fit: at {basis.bits.value} bits they and what always lies beside them need "
            f"{gib(basis.fixed_bytes(offloaded=False))}, {gib(basis.usable.device)} can be used on {each}.",
            hint=self._way_out(basis),
        )

    def _way_out(self, basis: Basis) -> str:
        if basis.drafts_apart:
            return LEAVE_OUT
        for bits in (16, 8, 4):
            if bits < basis.bits.value and replace(self, bits=bits).basis().fits:
                exactly = "" if bits == 16 else "; answers are then exact for the quantised model"
                return f"With --bits {bits} they would fit{exactly}."
        if self.num_gpus == 1 and self.target.dims.num_kv_heads % 2 == 0:
            machine = replace(self.rig.machine, gpus=self.rig.machine.gpus * 2)
            if replace(self, rig=replace(self.rig, machine=machine)).basis().fits:
                return "Plan for two such GPUs, which would hold them."
        return "Choose a smaller model or a machine with more memory."

    def too_long(self, basis: Basis, context: int, most: int) -> NotEnoughMemory:
        """The weights fit, this many tokens do not. Sizes are those of all GPUs together, if they share the target."""
        sizes, rooms, ranks = basis.sizes, basis.rooms, max(1, self.num_gpus)
        needed, left = ranks * sizes.device_bytes(context, sizes.layers), ranks * max(0, rooms.resident)
        what, memories, buffers = "it needs", "beside the weights", sizes.device_bytes(context, 0)
        if self.num_gpus and buffers > rooms.offloaded:
            needed, left = buffers, max(0, rooms.offloaded)
            what, memories = "its buffers need", "on the GPU"
        elif self.num_gpus:  # whole layers: what is left of a GPU holds no part of one
            here = max(layer for layer in range(sizes.layers) if sizes.device_bytes(context, layer) <= rooms.offloaded)
            each = "each GPU" if ranks > 1 else "the GPU"
            what = f"{here} of its {sizes.layers} layers fit on {each}, the others need"
            needed = ranks * (sizes.host_bytes(context, here) + sizes.remembered_bytes(context))
            left, memories = ranks * max(0, rooms.host), "in host memory"
        digits = next((digits for digits in (1, 2, 3) if f"{needed / GIB:.{digits}f}" != f"{left / GIB:.{digits}f}"), 3)
        return NotEnoughMemory(
            f"The weights fit, a context of {context:,} tokens does not: {what} {needed / GIB:.{digits}f} GiB, "
            f"{left / GIB:.{digits}f} GiB are left {memories}.",
            hint=f"Use --context {most} or less{self._narrower(basis, context)}.",
            largest_context=most,
        )

    def _narrower(self, basis: Basis, context: int) -> str:
        """The width of weights that would leave room for a context, as a further hint."""
        for bits in (8, 4):
            if bits < basis.bits.value and replace(self, bits=bits).basis().fit(context) is not None:
                return f", or --bits {bits}: answers are then exact for the quantised model"
        return ""

    def cut(self, basis: Basis) -> str:
        """Names every memory."""
        return "the memory holds no more"

    def placement(self, basis: Basis, resident: int, context: int) -> Choice[Placement]:
        """Names what is left on each device."""
        layers, ranks = basis.sizes.layers, max(1, self.num_gpus)
        each = "each GPU" if ranks > 1 else f"the {self.place}"
        if resident == layers:
            where = f"beside the weights on {each}" if self.num_gpus else "beside the weights in memory"
            return Choice("resident", f"the whole context fits {where}")
        away = gib(ranks * basis.sizes.host_bytes(context, resident))
        crossing = f"{away} wait in host memory and cross the link for every pass over the full cache"
        free = gib(max(0, basis.rooms.offloaded))
        if resident == 0:
            because = f"buffers leave no room for a layer in the {free} on {each}; {crossing}"
            return Choice("offloaded", because)
        return Choice("split", f"{resident} of {layers} layers fit into the {free} left on {each}; {crossing}")
