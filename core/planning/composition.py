"""Who guesses for a target, chosen by what is sure before anything has run.

Plain decoding and lookups need nothing beside the target. A draft is loaded where memory holds it, unless the full
cache would lie on the device without it and not with it; a 4-bit copy of the target's weights where it is asked for,
and where passes take as long as reading their weights, if it takes no context away.
Whether guesses pay is measured while an answer is decoded. Level 2 verifies in every composition: the choice changes
speed, never a text's distribution.
"""

from collections.abc import Callable
from dataclasses import replace

from core.config import EngineConfig
from core.decoding.registry import METHODS, default_method
from core.errors import ContextTooSmall, CoreError, NotEnoughMemory
from core.models.loader import ModelDims
from core.models.param_count import ModelSize
from core.models.self_draft import BITS as DRAFTING_BITS
from core.planning.choices import Choice, Composition
from core.planning.hardware import Machine
from core.planning.memory_plan import Plan
from core.planning.planner import make_plan
from core.planning.speed_model import PUBLISHED, Acceptance, outline

LARGER = (2, 3)  # times the usual budget: 8,192 and 12,288, as published for offloading on one and on two GPUs
Planner = Callable[[EngineConfig, bool], Plan]  # plans by settings, with the draft or without


def compose(config: EngineConfig, plan_of: Planner, *, has_draft: bool) -> Plan:
    """The plan with the draft, the 4-bit copy and the retrieval budget that suit its memory, as far as settings allow.

    Args:
        has_draft: whether there is a draft with the target's tokens.
    Raises:
        CoreError: as `plan_of`.
    """
    found = _with_budget(config, plan_of, has_draft=has_draft)
    if config.self_draft_bits is not None or not found.copy_pays:
        return found
    copied = replace(config, self_draft_bits=DRAFTING_BITS, context=found.context.value)
    try:
        more = _with_budget(copied, plan_of, has_draft=has_draft)
    except (NotEnoughMemory, ContextTooSmall):
        return found
    alike = (more.resident_layers, more.budget) == (found.resident_layers, found.budget)
    return replace(more, context=found.context, most_context=found.most_context) if alike else found


def _with_budget(config: EngineConfig, plan_of: Planner, *, has_draft: bool) -> Plan:
    if not config.retrieval.grows:
        return with_guesser(config, plan_of, has_draft=has_draft)
    usual = config.retrieval.budget
    try:
        found = with_guesser(config, plan_of, has_draft=has_draft)
    except NotEnoughMemory:
        try:
            fewer = with_guesser(_budgeted(config, usual // 2), plan_of, has_draft=has_draft)
        except CoreError:
            fewer = None
        if fewer is None:
            raise
        return replace(fewer, budget=Choice(usual // 2, f"there is no room for the usual {usual:,} tokens"))
    found = replace(found, budget=Choice(usual, "as usual for the model"))
    return _roomier(config, found, plan_of)


def _budgeted(config: EngineConfig, budget: int) -> EngineConfig:
    return replace(config, retrieval=replace(config.retrieval, budget=budget))


def _roomier(config: EngineConfig, found: Plan, plan_of: Planner) -> Plan:
    """The plan with the larger budget that is forecast to decode fastest, where a GPU's passes wait for the link."""
    if found.device.value != "cuda" or found.resident_layers == found.num_layers or found.composition is None:
        return found
    usual, has_draft = config.retrieval.budget, found.composition.value.has_draft
    alone, least, best = outline(found, usual), outline(found, usual), found
    for budget in (times * usual for times in LARGER):
        wanted = replace(_budgeted(config, budget), context=found.context.value)
        try:
            plan = plan_of(wanted, has_draft)
        except (NotEnoughMemory, ContextTooSmall):
            break
        if (ms := outline(plan, budget)) < least:
            because = (
                f"more guesses are right, and passes over the full cache wait for the link: forecast {ms:.0f} ms a "
            )
            because += f"token instead of {alone:.0f} with {usual:,}"
            least, best = (
                ms,
                replace(plan, budget=Choice(budget, because), context=found.context, composition=found.composition),
            )
    return best


def with_guesser(config: EngineConfig, plan_of: Planner, *, has_draft: bool) -> Plan:
    """The plan with the draft unless that alone would move a part of the full cache away; it names the composition.

    Args:
        has_draft: whether there is a draft with the target's tokens.
    Raises:
        CoreError: as `plan_of`.
    """
    methods = [METHODS[name] for name in config.methods if name in METHODS]
    needed = any(method.needs_draft for method in methods)
    if not has_draft:
        return _named(plan_of(config, False), config, False, "there is no draft with its tokens")
    if needed or config.draft_model != "auto":
        return _named(plan_of(config, True), config, True, "the draft was asked for")
    if methods:
        return _named(plan_of(config, False), config, False, "no method that was asked for needs the draft")
    try:
        found = plan_of(config, True)
    except (NotEnoughMemory, ContextTooSmall) as error:
        return _named(plan_of(config, False), config, False, f"with the draft: {error.problem}")
    if (away := found.num_layers - found.resident_layers) > 0:
        alone = plan_of(replace(config, context=found.context.value), False)
        if alone.resident_layers == alone.num_layers:
            because = (
                f"beside the draft {away} of {found.num_layers} layers of the full cache would wait in host memory"
            )
            return _named(alone, config, False, because)
    return _named(found, config, True, "the draft fits, too; whether guesses pay is measured in each answer")


def _named(plan: Plan, config: EngineConfig, has_draft: bool, because: str) -> Plan:
    one = Composition(default_method(has_draft=has_draft), has_draft, config.self_draft_bits or 16)
    return replace(plan, composition=Choice(one, because))


def compose_here(
    target: ModelDims, draft: ModelDims | None, config: EngineConfig, machine: Machine, size: ModelSize | None
) -> Plan:
    """The plan with which loading on a machine begins.

    Raises:
        InvalidSetting, NotEnoughMemory, ContextTooSmall: as `make_plan`.
    """

    def plan(one: EngineConfig, has_draft: bool) -> Plan:
        return make_plan(target, draft if has_draft else None, one, machine, size)

    return compose(config, plan, has_draft=draft is not None)


def usual_acceptance(measured: tuple[float, float] | None) -> Acceptance:
    """The acceptance measured with a pair, else the published one, which is another pair's."""
    return PUBLISHED if measured is None else Acceptance(*measured, "measured with this pair on generated books")
