"""Who guesses for the target, by the memory of a machine, which may be this one or one that is described.

A draft is loaded where it fits, unless it alone would move a part of the full cache away; a 4-bit copy where asked for
or where it pays. Level 2 always verifies: the choice changes speed, never a text's distribution.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from core.config import EngineConfig
from core.decoding.registry import METHODS
from core.errors import ContextTooSmall, NotEnoughMemory
from core.models.loader import ModelDims
from core.models.param_count import ModelSize
from core.models.quantised import FORMATS
from core.models.self_draft import BITS as DRAFTING_BITS
from core.planning.devices import Rig
from core.planning.forecast import predict, published_at
from core.planning.hardware import Machine
from core.planning.plan import Plan, make_plan
from core.planning.sizes import (
    DRAFT_WEIGHTS,
    RUNTIME,
    RUNTIME_BYTES,
    STREAMING,
    PlanRow,
    total,
    usable_bytes,
)

ON_FIRST = (DRAFT_WEIGHTS, STREAMING)  # rows that only the first of several ranks has
LARGER = (2, 3)  # times the usual budget: 8,192 and 12,288, as published for offloading on one and on two GPUs
WORTH = 0.99  # of a forecast with fewer tokens: a larger budget that gains less is none
LEAST_COPIED = 4e8  # parameters: 0.5 billion decode a third faster with a 4-bit copy; fewer were not tried
Planner = Callable[[EngineConfig, bool], Plan]  # plans by settings, with the draft or without


# -------------------- who guesses


def compose(target: ModelSize, draft: ModelDims | None, config: EngineConfig, machine: Machine | Rig) -> Plan:
    """The plan with the draft, the 4-bit copy and the retrieval budget that suit a machine, as far as settings allow.

    Loading begins with it. Nothing is loaded yet: model and machine may be known by their figures alone.

    Args:
        draft: one with the target's tokens.
        machine: as in `make_plan`, which raises what this raises.
    """

    def plan_of(settings: EngineConfig, has_draft: bool) -> Plan:
        return make_plan(target, draft if has_draft else None, settings, machine)

    def guessed(settings: EngineConfig) -> Plan:
        return _with_guesser(settings, plan_of, has_draft=draft is not None)

    usual, grows = config.retrieval.budget, config.retrieval.grows
    try:
        plan = guessed(config)
    except NotEnoughMemory as error:
        if not grows:
            raise
        try:
            plan = guessed(_budgeted(config, usual // 2))
        except NotEnoughMemory as less:
            raise max(error, less, key=lambda one: one.largest_context or 0) from None
        return replace(plan, why_budget=f"there is no room for the usual {usual:,} tokens")
    if grows:
        plan = _roomier(replace(plan, why_budget="as usual for the model"), plan_of)
    return _with_copy(plan, guessed) if config.self_draft_bits is None else plan


def _budgeted(config: EngineConfig, budget: int) -> EngineConfig:
    return replace(config, retrieval=replace(config.retrieval, budget=budget))


def _roomier(plan: Plan, plan_of: Planner) -> Plan:
    """The plan with the larger budget that is forecast to decode fastest, where a GPU's passes wait for the link."""
    if not plan.on_gpu or not plan.layers_away:
        return plan

    def forecast(plan: Plan) -> float:
        return predict(plan, plan.nominal, published_at(plan.config.retrieval.budget)).triforce_ms_per_token

    usual = plan.config.retrieval.budget
    alone, best = forecast(plan), plan
    for budget in (times * usual for times in LARGER):
        try:
            other = plan_of(replace(_budgeted(plan.config, budget), context=plan.context.value), plan.draft is not None)
        except (NotEnoughMemory, ContextTooSmall):
            break
        if (ms := forecast(other)) < WORTH * forecast(best):
            because = "more guesses are right, and passes over the full cache wait for the link: forecast "
            because += f"{ms:.0f} ms a token instead of {alone:.0f} with {usual:,}"
            best = replace(other, why_budget=because, context=plan.context, why_guesser=plan.why_guesser)
    return best


def _with_copy(plan: Plan, guessed: Callable[[EngineConfig], Plan]) -> Plan:
    """The plan with a 4-bit copy, where that takes nothing else away and passes with it would be much faster.

    That is so of 16-bit weights larger than any cache, which the compiled kernel multiplies.
    """
    in_16_bits = plan.target.disk_dtype.itemsize == 2 and plan.bits.value not in FORMATS
    large = plan.size.experts is None and plan.size.num_parameters >= LEAST_COPIED
    if plan.packs and plan.ranks == 1 and in_16_bits and large:
        copied = replace(plan.config, self_draft_bits=DRAFTING_BITS, context=plan.context.value)
        with suppress(NotEnoughMemory, ContextTooSmall):
            more = guessed(copied)
            if more.resident_layers == plan.resident_layers:
                return replace(more, why_budget=plan.why_budget, context=plan.context, most_context=plan.most_context)
    return plan


def _with_guesser(config: EngineConfig, plan_of: Planner, *, has_draft: bool) -> Plan:
    """The plan with the draft, unless it alone would move a part of the full cache away. Names the composition."""

    methods = [METHODS[name] for name in config.methods if name in METHODS]
    asked = any(method.needs_draft for method in methods) or config.draft_model != "auto"
    if not has_draft or (methods and not asked):
        why = "no method that was asked for needs the draft" if has_draft else "there is no draft with its tokens"
        return replace(plan_of(config, False), why_guesser=why)
    if asked:
        return replace(plan_of(config, True), why_guesser="the draft was asked for")
    try:
        drafting = plan_of(config, True)
    except (NotEnoughMemory, ContextTooSmall) as error:
        return replace(plan_of(config, False), why_guesser=f"with the draft: {error.problem}")
    if drafting.layers_away:
        alone = plan_of(replace(config, context=drafting.context.value), False)
        if not alone.layers_away:
            layers = f"{drafting.layers_away} of {drafting.num_layers} layers"
            why = f"beside the draft {layers} of the full cache would wait in host memory"
            return replace(alone, why_guesser=why)
    return replace(drafting, why_guesser="the draft fits, too; whether guesses pay is measured in each answer")


# -------------------- the memories of a machine


class Tier(NamedTuple):
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
    machine, others = plan.rig.machine, tuple(row for row in plan.rows if row.name not in ON_FIRST)
    gpus = [
        Tier(f"GPU {number}: {gpu.name}", gpu.total_bytes, gpu.free_bytes, others if number else plan.rows, "cuda")
        for number, gpu in enumerate(machine.gpus if plan.on_gpu else ())
    ]
    of_one = (PlanRow(RUNTIME, RUNTIME_BYTES), *plan.host_rows) if plan.on_gpu else plan.rows
    of_all = tuple(PlanRow(row.name, (1 if row.name in ON_FIRST else plan.ranks) * row.size_bytes) for row in of_one)
    return (*gpus, Tier("host memory" if gpus else "memory", machine.ram_bytes, machine.free_ram_bytes, of_all))
