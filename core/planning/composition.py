"""Who guesses for the target, by the memory of a machine, which may be this one or one that is described.

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
from core.models.param_count import ModelSize
from core.models.quantised import FORMATS
from core.models.self_draft import BITS as DRAFTING_BITS
from core.planning.choices import Choice, Composition, choose_device
from core.planning.devices import Rig
from core.planning.fit import Basis
from core.planning.forecast import outline
from core.planning.hardware import Machine, gpus_in_words
from core.planning.plan import Plan, plan_from
from core.planning.sizes import (
    DRAFT_WEIGHTS,
    DRAFTING_WEIGHTS,
    GRAPHS,
    RUNTIME,
    RUNTIME_BYTES,
    STREAMING,
    PlanRow,
    total,
    usable_bytes,
)

ON_WINDOWS = sys.platform == "win32"
ON_FIRST = (DRAFT_WEIGHTS, STREAMING, GRAPHS)  # rows that only the first of several ranks has
LARGER = (2, 3)  # times the usual budget: 8,192 and 12,288, as published for offloading on one and on two GPUs
Planner = Callable[[EngineConfig, bool], Plan]  # plans by settings, with the draft or without


# -------------------- who guesses


def compose(
    model: ModelDims,
    draft: ModelDims | None,
    config: EngineConfig,
    rig: Rig,
    size: ModelSize,
    bits: Choice[int] | None = None,
) -> Plan:
    """The plan with the draft, the 4-bit copy and the retrieval budget that suit a machine, as far as settings allow.

    Loading begins with it. Nothing is loaded yet: model and machine may be known by their figures alone.

    Args:
        draft: one with the target's tokens. config: `num_gpus` counts on a processor alone; the GPUs are the rig's.
        size, bits: as in `Basis.of`.
    Raises:
        NotEnoughMemory, ContextTooSmall, InvalidSetting: as `Basis.of` and `plan_from`.
    """

    def plan_of(settings: EngineConfig, has_draft: bool) -> Plan:
        return plan_from(Basis.of(model, draft if has_draft else None, settings, rig, size, bits))

    planned = _with_budget(config, plan_of, has_draft=draft is not None)
    if config.self_draft_bits is not None or not planned.copy_pays:
        return planned
    copied = replace(config, self_draft_bits=DRAFTING_BITS, context=planned.context.value)
    try:
        more = _with_budget(copied, plan_of, has_draft=draft is not None)
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
        chosen = Composition(default_method(has_draft=drafts), drafts, config.self_draft_bits or 16)
        return replace(plan, composition=Choice(chosen, because))

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


# -------------------- several ranks


def check_ranks(folder: Path, config: EngineConfig, machine: Machine) -> None:
    """Check that `config.num_gpus` ranks can share the target in `folder` on this machine.

    Raises:
        InvalidSetting: quantised weights, too few GPUs, or GPUs under Windows.
        UnsupportedModel: a family whose layers are not divided by heads.
        NotEnoughMemory: the user wants CUDA, which is not available.
    """
    if config.bits in FORMATS:
        raise InvalidSetting("Quantised weights are not shared between GPUs.", hint="Leave out --bits or --gpus.")
    ranks, gpus, unused = config.num_gpus, machine.gpus, machine.unused_gpu
    if config.device != "cpu" and not gpus and unused is not None:
        raise NotPossibleHere(unused.because, hint=unused.hint)
    if config.device != "cpu" and len(gpus) < ranks:
        raise NotPossibleHere(
            f"--gpus {ranks} asks for {ranks} GPUs, this machine has {gpus_in_words(len(gpus))}.",
            hint="Leave out --gpus.",
        )
    if choose_device(config, machine).value == "cuda" and ON_WINDOWS:
        raise NotPossibleHere(
            "GPUs cannot share a model under Windows, where torch comes without NCCL.",
            hint="Start it in WSL2, or leave out --gpus.",
        )
    division_of(read_config(folder))


# -------------------- the memories of a machine


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


def tiers_of(plan: Plan) -> tuple[Tier, ...]:
    """What each memory of the plan's machine would hold: GPUs first, the host last."""
    machine = plan.rig.machine
    if not plan.on_gpu:
        return (Tier("memory", machine.ram_bytes, machine.free_ram_bytes, plan.rows),)
    others = tuple(row for row in plan.rows if row.name not in ON_FIRST)
    gpus = [
        Tier(f"GPU {number}: {gpu.name}", gpu.total_bytes, gpu.free_bytes, others if number else plan.rows, "cuda")
        for number, gpu in enumerate(machine.gpus)
    ]
    of_one = (PlanRow(RUNTIME, RUNTIME_BYTES), *plan.host_rows)
    host = tuple(PlanRow(row.name, plan.ranks * row.size_bytes) for row in of_one)
    return (*gpus, Tier("host memory", machine.ram_bytes, machine.free_ram_bytes, host))


def runs_here(plan: Plan) -> Choice[bool]:
    """Whether this version runs a plan, which may be for another machine."""
    bits, width, shared = plan.bits.value, 8 * plan.dtype.value.itemsize, plan.ranks > 1
    if shared and ON_WINDOWS and plan.rig.kind is None:
        return Choice(False, "GPUs cannot share a model under Windows, where torch comes without NCCL: use WSL2")
    if shared and plan.size is not None and not plan.size.divisible:
        return Choice(False, "this version cannot share the layers of this family between GPUs by heads")
    if shared and bits in FORMATS:
        return Choice(False, "this version does not share quantised weights between GPUs")
    if shared and plan.bytes_of(DRAFTING_WEIGHTS):
        return Choice(False, "this version does not share self-draft weights of 4 bits between GPUs")
    if bits not in (width, *FORMATS):
        return Choice(False, f"this version loads weights of {width} bits here")
    if shared:
        return Choice(True, f"one process a GPU, each with its heads: start with --gpus {plan.ranks}")
    return Choice(
        True, "one GPU and host memory hold everything" if plan.layers_away else "everything fits on one device"
    )
