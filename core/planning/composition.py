"""The plan for a machine, with who guesses for the target: on one device, on several ranks, or on a described machine.

A draft is loaded where it fits, unless it alone would move a part of the full cache away; a 4-bit copy where asked for
or where it pays. Level 2 always verifies: the choice changes speed, never a text's distribution.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from core.config import EngineConfig
from core.decoding.registry import METHODS, default_method
from core.errors import ContextTooSmall, CoreError, InvalidSetting, NotEnoughMemory, NotPossibleHere
from core.models.head_layout import division_of
from core.models.loader import ModelDims, read_config
from core.models.param_count import STORED_BITS, ModelSize, size_in
from core.models.quantised import FORMATS
from core.models.self_draft import BITS as DRAFTING_BITS
from core.planning.choices import Choice, Composition, choose_device
from core.planning.devices import Rig, nominal_bandwidths
from core.planning.forecast import outline
from core.planning.hardware import Machine, gpus_in_words
from core.planning.plan import Plan, make_plan
from core.planning.sizes import (
    DRAFT_WEIGHTS,
    DRAFTING_WEIGHTS,
    GRAPHS,
    RUNTIME,
    RUNTIME_BYTES,
    STREAMING,
    PlanRow,
    rank_share,
    total,
    usable_bytes,
)

ON_WINDOWS = sys.platform == "win32"
ON_FIRST = (DRAFT_WEIGHTS, STREAMING, GRAPHS)  # rows that only the first of several ranks has
LARGER = (2, 3)  # times the usual budget: 8,192 and 12,288, as published for offloading on one and on two GPUs
Planner = Callable[[EngineConfig, bool], Plan]  # plans by settings, with the draft or without


# -------------------- who guesses


def compose(config: EngineConfig, plan_of: Planner, *, has_draft: bool) -> Plan:
    """The plan with the draft, the 4-bit copy and the retrieval budget that suit its memory, as far as settings allow.

    Args:
        has_draft: whether there is a draft with the target's tokens.
    Raises:
        CoreError: as `plan_of`.
    """
    planned = _with_budget(config, plan_of, has_draft=has_draft)
    if config.self_draft_bits is not None or not planned.copy_pays:
        return planned
    copied = replace(config, self_draft_bits=DRAFTING_BITS, context=planned.context.value)
    try:
        more = _with_budget(copied, plan_of, has_draft=has_draft)
    except (NotEnoughMemory, ContextTooSmall):
        return planned
    alike = (more.resident_layers, more.budget) == (planned.resident_layers, planned.budget)
    return replace(more, context=planned.context, most_context=planned.most_context) if alike else planned


def _with_budget(config: EngineConfig, plan_of: Planner, *, has_draft: bool) -> Plan:
    usual = config.retrieval.budget
    if not config.retrieval.grows:
        return _with_guesser(config, plan_of, has_draft=has_draft)
    try:
        planned = _with_guesser(config, plan_of, has_draft=has_draft)
    except NotEnoughMemory:
        with suppress(CoreError):
            fewer = _with_guesser(_budgeted(config, usual // 2), plan_of, has_draft=has_draft)
            return replace(fewer, budget=Choice(usual // 2, f"there is no room for the usual {usual:,} tokens"))
        raise
    return _roomier(config, replace(planned, budget=Choice(usual, "as usual for the model")), plan_of)


def _budgeted(config: EngineConfig, budget: int) -> EngineConfig:
    return replace(config, retrieval=replace(config.retrieval, budget=budget))


def _roomier(config: EngineConfig, planned: Plan, plan_of: Planner) -> Plan:
    """The plan with the larger budget that is forecast to decode fastest, where a GPU's passes wait for the link."""
    if planned.device.value != "cuda" or not planned.layers_away or planned.composition is None:
        return planned
    usual, has_draft = config.retrieval.budget, planned.composition.value.has_draft
    alone, best = outline(planned, usual), planned
    least = alone
    for budget in (times * usual for times in LARGER):
        try:
            plan = plan_of(replace(_budgeted(config, budget), context=planned.context.value), has_draft)
        except (NotEnoughMemory, ContextTooSmall):
            break
        if (ms := outline(plan, budget)) < least:
            because = "more guesses are right, and passes over the full cache wait for the link: forecast "
            because += f"{ms:.0f} ms a token instead of {alone:.0f} with {usual:,}"
            chosen = Choice(budget, because)
            least, best = ms, replace(plan, budget=chosen, context=planned.context, composition=planned.composition)
    return best


def _with_guesser(config: EngineConfig, plan_of: Planner, *, has_draft: bool) -> Plan:
    """The plan with the draft, unless it alone would move a part of the full cache away. Names the composition."""

    def named(plan: Plan, because: str, *, drafts: bool = False) -> Plan:
        one = Composition(default_method(has_draft=drafts), drafts, config.self_draft_bits or 16)
        return replace(plan, composition=Choice(one, because))

    methods = [METHODS[name] for name in config.methods if name in METHODS]
    if not has_draft:
        return named(plan_of(config, False), "there is no draft with its tokens")
    if any(method.needs_draft for method in methods) or config.draft_model != "auto":
        return named(plan_of(config, True), "the draft was asked for", drafts=True)
    if methods:
        return named(plan_of(config, False), "no method that was asked for needs the draft")
    try:
        drafting = plan_of(config, True)
    except (NotEnoughMemory, ContextTooSmall) as error:
        return named(plan_of(config, False), f"with the draft: {error.problem}")
    if (away := drafting.layers_away) > 0:
        alone = plan_of(replace(config, context=drafting.context.value), False)
        if not alone.layers_away:
            layers = f"{away} of {drafting.num_layers} layers"
            beside = f"beside the draft {layers} of the full cache would wait in host memory"
            return named(alone, beside)
    return named(drafting, "the draft fits, too; whether guesses pay is measured in each answer", drafts=True)


def compose_here(
    target: ModelDims, draft: ModelDims | None, config: EngineConfig, machine: Machine, size: ModelSize | None
) -> Plan:
    """The plan with which loading on a machine begins.

    Raises:
        InvalidSetting, NotEnoughMemory, ContextTooSmall: as `make_plan`.
    """

    def plan(settings: EngineConfig, has_draft: bool) -> Plan:
        return make_plan(target, draft if has_draft else None, settings, machine, size)

    return compose(config, plan, has_draft=draft is not None)


# -------------------- several ranks


def _check_heads(num_kv_heads: int, num_ranks: int) -> None:
    """Raises InvalidSetting unless every rank gets equally many whole KV heads, with their groups of query heads."""
    if num_kv_heads % num_ranks:
        raise InvalidSetting(
            f"{num_kv_heads} heads of keys and values cannot be shared by {num_ranks} GPUs.",
            hint="Use a number of GPUs that divides them.",
        )


def _machine_share(machine: Machine, num_ranks: int, *, on_gpus: bool) -> Machine:
    """What each rank may use: the fullest of the first GPUs, and an equal part of memory."""
    gpus = (min(machine.gpus[:num_ranks], key=lambda gpu: gpu.free_bytes),) if on_gpus else machine.gpus
    ram, free = machine.ram_bytes // num_ranks, machine.free_ram_bytes // num_ranks
    return replace(machine, gpus=gpus, ram_bytes=ram, free_ram_bytes=free)


def one_share(folder: Path, dims: ModelDims, config: EngineConfig, machine: Machine) -> tuple[ModelDims, Machine]:
    """The model and the machine for each of `config.num_gpus` ranks; plans made from them are per rank.

    Linear weights of the layers are divided; each rank has embeddings, norms and output layer. A share of the machine
    is its fullest GPU and an equal part of host memory; on the processor, an equal part of memory.

    Raises:
        InvalidSetting: too few GPUs, heads that cannot be divided evenly, or GPUs under Windows.
        UnsupportedModel: a family whose layers are not divided by heads.
        NotEnoughMemory: the user wants CUDA, which is not available.
    """
    ranks, gpus, unused = config.num_gpus, machine.gpus, machine.unused_gpu
    if config.device != "cpu" and not gpus and unused is not None:
        raise NotPossibleHere(unused.because, hint=unused.hint)
    if config.device != "cpu" and len(gpus) < ranks:
        raise NotPossibleHere(
            f"--gpus {ranks} asks for {ranks} GPUs, this machine has {gpus_in_words(len(gpus))}.",
            hint="Leave out --gpus.",
        )
    on_gpus = choose_device(config, machine).value == "cuda"
    if on_gpus and ON_WINDOWS:
        raise NotPossibleHere(
            "GPUs cannot share a model under Windows, where torch comes without NCCL.",
            hint="Start it in WSL2, or leave out --gpus.",
        )
    division_of(read_config(folder))
    _check_heads(dims.num_kv_heads, ranks)
    size = replace(size_in(folder), dims=dims)
    return rank_share(size, ranks).dims, _machine_share(machine, ranks, on_gpus=on_gpus)


# -------------------- machines that are described


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
        return total(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class RigPlan:
    """A plan, and the memories of the machine that it was made for."""

    plan: Plan  # of one device, or of the first rank
    num_gpus: int  # 0: the processor computes
    tiers: tuple[Tier, ...]  # GPUs first, the host last
    runs: Choice[bool]  # whether this version can run it

    @property
    def self_draft_bits(self) -> Choice[int]:
        """Of the weights for passes over the retrieval cache."""
        if self.plan.bytes_of(DRAFTING_WEIGHTS):
            return Choice(DRAFTING_BITS, "a second copy of the linear weights, used for guesses only")
        return Choice(self.plan.bits.value, "the target's own weights")


def compose_rig(
    target: ModelSize, draft: ModelSize | None, config: EngineConfig, rig: Rig, bits: int | None = None
) -> RigPlan:
    """The plan with which loading would begin on a machine, made from configurations alone, without weights.

    Of one device, or of each of several ranks, with the draft on the first. `runs` says what this version does not
    run, such as quantised or self-draft weights on several GPUs.

    Args:
        config: without the GPUs and their memory, which `rig` states. bits: of the weights; None: as usual.
    Raises:
        NotEnoughMemory: the weights alone do not fit (`largest_context` is None); or the wanted context does not.
        ContextTooSmall: the wanted context is longer than the model's.
        InvalidSetting: an impossible number of bits or of GPUs.
    """

    def plan(settings: EngineConfig, has_draft: bool) -> Plan:
        return plan_rig(target, draft if has_draft else None, settings, rig, bits)

    return told_of(compose(config, plan, has_draft=draft is not None), target, config, rig)


def plan_rig(
    target: ModelSize, draft: ModelSize | None, config: EngineConfig, rig: Rig, bits: int | None = None
) -> Plan:
    """The plan for a machine with this draft, these weights and this budget; arguments as `compose_rig`."""
    if bits is not None and bits not in STORED_BITS:
        raise InvalidSetting(f"Weights of {bits} bits are not usable.", hint="Use --bits 16, 8 or 4.")
    ranks = max(1, num_gpus(config, rig))
    _check_heads(target.dims.num_kv_heads, ranks)
    share = rank_share(target, ranks)
    plan = make_plan(
        share.dims,
        rank_share(draft, 1).dims if draft is not None else None,
        replace(config, bits=None, self_draft_bits=16, num_gpus=ranks, gpu_memory_gib=None),
        _machine_share(rig.machine, ranks, on_gpus=num_gpus(config, rig) > 0),
        share,
        bits=Choice(bits, "asked for") if bits else None,
        drafts_apart=config.self_draft_bits == DRAFTING_BITS,
    )
    if rig.assumed:
        plan = replace(plan, device=Choice(plan.device.value, "as described"))
    if rig.kind is not None:
        cuda = plan.device.value == "cuda"
        plan = replace(plan, nominal=rig.kind.bandwidths if cuda else nominal_bandwidths("cpu"))
    return plan


def num_gpus(config: EngineConfig, rig: Rig) -> int:
    """GPUs that compute; 0: the processor does."""
    return len(rig.machine.gpus) if choose_device(config, rig.machine).value == "cuda" else 0


def told_of(plan: Plan, target: ModelSize, config: EngineConfig, rig: Rig) -> RigPlan:
    """A plan of `plan_rig` over the memories of its machine."""
    count = num_gpus(config, rig)
    return RigPlan(
        plan=plan, num_gpus=count, tiers=_tiers(plan, rig.machine, count), runs=_runs(plan, target, rig, count)
    )


def _tiers(plan: Plan, machine: Machine, count: int) -> tuple[Tier, ...]:
    if not count:
        return (Tier("memory", machine.ram_bytes, machine.free_ram_bytes, plan.rows),)
    others = tuple(row for row in plan.rows if row.name not in ON_FIRST)
    gpus = [
        Tier(f"GPU {number}: {gpu.name}", gpu.total_bytes, gpu.free_bytes, others if number else plan.rows, "cuda")
        for number, gpu in enumerate(machine.gpus)
    ]
    of_one = (PlanRow(RUNTIME, RUNTIME_BYTES), *plan.host_rows)
    host = tuple(PlanRow(row.name, count * row.size_bytes) for row in of_one)
    return (*gpus, Tier("host memory", machine.ram_bytes, machine.free_ram_bytes, host))


def _runs(plan: Plan, target: ModelSize, rig: Rig, count: int) -> Choice[bool]:
    bits, width = plan.bits.value, 8 * plan.dtype.value.itemsize
    if count > 1 and ON_WINDOWS and rig.gpus_are_here:
        return Choice(False, "GPUs cannot share a model under Windows, where torch comes without NCCL: use WSL2")
    if count > 1 and not target.divisible:
        return Choice(False, "this version cannot share the layers of this family between GPUs by heads")
    if count > 1 and bits in FORMATS:
        return Choice(False, "this version does not share quantised weights between GPUs")
    if count > 1 and plan.bytes_of(DRAFTING_WEIGHTS):
        return Choice(False, "this version does not share self-draft weights of 4 bits between GPUs")
    if bits not in (width, *FORMATS):
        return Choice(False, f"this version loads weights of {width} bits here")
    if count > 1:
        return Choice(True, f"one process a GPU, each with its heads: start with --gpus {count}")
    return Choice(
        True, "one GPU and host memory hold everything" if plan.layers_away else "everything fits on one device"
    )
