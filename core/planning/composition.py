"""Who guesses for a target on a machine: the compositions of methods and weights, compared by the model of costs.

With few keys and values a token (GQA) the weights are most of what a pass reads. Then cheaper weights make guesses
cheaper: a 4-bit copy of the target's own, or a small model of its family, with or without the retrieval cache between
them. Each composition is planned with the memory that it takes, so that one whose weights push a part of the full cache
into host memory pays for it. Level 2 verifies in all of them: the choice changes speed, never a text's distribution.

Everything follows from sizes and nominal bandwidths, so that a machine always makes the same choice.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from core.config import EngineConfig
from core.decoding.adaptive import best_gamma, cost_per_token
from core.decoding.registry import FASTEST, METHODS, PLAIN
from core.errors import ContextTooSmall, NotEnoughMemory
from core.models.experts import Experts
from core.models.loader import ModelDims
from core.models.param_count import ModelSize
from core.models.quantised import FORMATS
from core.models.self_draft import BITS as DRAFTING_BITS
from core.planning.choices import Choice, Composition, choose_most_guesses
from core.planning.cost_model import PassReads, pass_cost
from core.planning.hardware import Machine
from core.planning.machine_spec import Bandwidths
from core.planning.memory_plan import Plan
from core.planning.planner import make_plan
from core.planning.speed_model import PUBLISHED, Acceptance, Reads, planned_reads, predict_reads, self_draft_reads

# In the order in which they are taken where forecasts hardly differ
COMPOSITIONS = (
    Composition(FASTEST, has_draft=True),
    Composition("lookup"),
    Composition(PLAIN),
    Composition("draft", has_draft=True),
    Composition(FASTEST, has_draft=True, self_draft_bits=DRAFTING_BITS),
    Composition("lookup", self_draft_bits=DRAFTING_BITS),
)
LEAST_GAIN = 0.03  # of a token's time: a smaller one is not worth other weights or another method
SHORTEST = 8192  # tokens: acceptance is known for long texts, so for shorter ones nothing is compared
# Level 2 accepts less of what rounded weights guess: overlap of their distributions with the 16-bit ones, measured on
# three books of the bundled pair (`core.models.self_draft`). Larger models are said to lose less.
SELF_DRAFT_OVERLAP = 0.943
# Of a draft of half a billion parameters or more. Published for one of 1B with a streaming window, at 122K tokens: 0.73
LARGE_DRAFT = 400_000_000
WITH_LARGE_DRAFT = replace(PUBLISHED, level1=0.7, because=f"{PUBLISHED.because}; level 1 as published for drafts of 1B")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """The models, and what the user fixed."""

    target: ModelDims
    draft: ModelDims | None  # None: there is none, or none was wanted
    size: ModelSize | None  # counted parameters of the target; None: weights of 4 bits are not compared
    config: EngineConfig
    acceptance: Acceptance  # of the draft and of the retrieval cache, with the target's own weights
    bits: int | None  # of the target's weights
    num_gpus: int
    no_self_draft: str = ""  # why there can be no copy in 4 bits; empty: nothing is known against it

    @property
    def draft_asked(self) -> bool:
        """Whether the draft is loaded whatever the forecast says."""
        needed = any(name in METHODS and METHODS[name].needs_draft for name in self.config.methods)
        return self.draft is not None and (needed or self.config.draft_model != "auto")

    def is_wanted(self, one: Composition) -> bool:
        """Whether the settings name a method of the composition's models."""
        models = {METHODS[name].models for name in self.config.methods if name in METHODS}
        return METHODS[one.method].models in models and (one.has_draft or not self.draft_asked)

    def loaded(self, one: Composition) -> Composition:
        """A composition with the weights that the settings load in any case."""
        bits = self.config.self_draft_bits or one.self_draft_bits
        return replace(one, has_draft=one.has_draft or self.draft_asked, self_draft_bits=bits)

    def refused(self, one: Composition, device: str) -> str:
        """Why a composition cannot be here; empty: it can."""
        if one.has_draft and self.draft is None:
            return "there is no draft with its tokens"
        asked = self.config.self_draft_bits
        if one.self_draft_bits == 16:
            return ""
        if asked is not None:
            return "" if asked == DRAFTING_BITS else "16 bits were asked for"
        if device != "cuda":
            return "a processor is not faster with weights of 4 bits"
        if self.num_gpus > 1:
            return "a 4-bit copy is not shared between GPUs"
        if self.bits in FORMATS:
            return "the weights are quantised already"
        return self.no_self_draft or ("" if self.size is not None else "its parameters were not counted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One composition at the planned context, or why it cannot be."""

    composition: Composition
    plan: Plan | None = None
    ms_per_token: float = 0.0
    gamma1: int = 0
    gamma2: int = 0  # 0: no guess pays, it decodes as plain decoding does
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Composed:
    """All forecasts, in the order of COMPOSITIONS; the chosen one, and why."""

    forecasts: tuple[Forecast, ...]
    chosen: Forecast
    loaded: Composition  # the chosen one, with weights that the settings load in any case
    because: str

    @property
    def plan(self) -> Plan:
        """The chosen composition's plan, which names it."""
        assert self.chosen.plan is not None, "a plan was refused and chosen"
        return replace(self.chosen.plan, composition=Choice(self.loaded, self.because))


def compose(cast: Cast, plan_of: Callable[[EngineConfig, bool], Plan]) -> Composed:
    """Plan and forecast every composition at one context, and choose.

    The context is the one that fits with the draft in 16 bits; if not even its weights fit, without it. A composition
    that would make it shorter is none.

    Args:
        plan_of: plans by settings, with the draft or without.
    Raises:
        CoreError: as `plan_of`, of the simplest plan.
    """
    first = _first_plan(cast, plan_of)
    forecasts = []
    for one in COMPOSITIONS:
        refused = cast.refused(one, first.device.value)
        if refused:
            forecasts.append(Forecast(composition=one, refused=refused))
            continue
        weights = cast.loaded(one)
        config = replace(cast.config, self_draft_bits=weights.self_draft_bits, context=first.context.value)
        try:
            plan = plan_of(config, weights.has_draft)
        except (NotEnoughMemory, ContextTooSmall) as error:
            forecasts.append(Forecast(composition=one, refused=error.problem))
            continue
        plan = replace(plan, context=first.context, most_context=max(plan.most_context, first.context.value))
        forecasts.append(forecast(one, cast, plan, plan.nominal))
    return _choose(tuple(forecasts), cast)


def compose_here(cast: Cast, machine: Machine) -> Composed:
    """Compare the plans with which loading on a machine would begin.

    Raises:
        InvalidSetting, NotEnoughMemory, ContextTooSmall: as `make_plan`.
    """

    def plan(config: EngineConfig, has_draft: bool) -> Plan:
        return make_plan(cast.target, cast.draft if has_draft else None, config, machine, cast.size)

    return compose(cast, plan)


def _first_plan(cast: Cast, plan_of: Callable[[EngineConfig, bool], Plan]) -> Plan:
    config = replace(cast.config, self_draft_bits=cast.config.self_draft_bits or 16)
    if cast.draft is not None:
        try:
            return plan_of(config, True)
        except NotEnoughMemory:
            if cast.draft_asked:
                raise
    return plan_of(config, False)


def forecast(one: Composition, cast: Cast, plan: Plan, rates: Bandwidths) -> Forecast:
    """A composition's time for a token, and its best round."""
    device, level1 = plan.device.value, cast.acceptance.level1
    reads = reads_of(one, cast, plan)
    full = pass_cost(device, reads.full, rates)
    if one.method == PLAIN:
        return Forecast(composition=one, plan=plan, ms_per_token=1e3 * full.of(0))
    if one.method == "draft":
        assert reads.draft is not None, "a draft is refused before"
        guess = pass_cost(device, reads.draft, rates).of(0)
        most = choose_most_guesses(device, away=bool(reads.full.link or reads.full.host)).value
        gamma2 = best_gamma(level1, guess, full, most)
        ms = 1e3 * cost_per_token(level1, guess, full, gamma2)
        return Forecast(composition=one, plan=plan, ms_per_token=ms, gamma2=gamma2)
    rounded = one.self_draft_bits == DRAFTING_BITS
    seen = with_copy(cast.acceptance) if rounded else cast.acceptance
    found = predict_reads(device, plan.context.value, reads, rates, seen)
    return Forecast(
        composition=one,
        plan=plan,
        ms_per_token=found.triforce_ms_per_token,
        gamma1=found.gamma1,
        gamma2=found.gamma2,
    )


def reads_of(one: Composition, cast: Cast, plan: Plan) -> Reads:
    """What the passes of a composition read by its plan."""
    guessing = self_draft_reads(plan, cast.size) if one.self_draft_bits == DRAFTING_BITS else None
    draft = cast.draft if one.has_draft else None
    return planned_reads(plan, cast.target, draft, cast.config, guessing, _experts(cast))


def _experts(cast: Cast) -> Experts | None:
    return cast.size.experts if cast.size is not None else None


# -------------------- the choice


def _choose(forecasts: tuple[Forecast, ...], cast: Cast) -> Composed:
    """The fastest; of those that are about as fast the first. One whose best round has no guesses is plain decoding."""
    allowed = [one for one in forecasts if not one.refused]
    possible = [one for one in allowed if one.gamma2 or one.composition.method == PLAIN]
    wanted = [one for one in allowed if cast.is_wanted(one.composition)]
    among = wanted or possible
    if not wanted and any(one.plan is not None and one.plan.context.value < SHORTEST for one in possible):
        among = possible[:1]
    best = min(one.ms_per_token for one in among)
    chosen = next(one for one in among if one.ms_per_token * (1 - LEAST_GAIN) <= best)
    return Composed(forecasts, chosen, cast.loaded(chosen.composition), _because(chosen, allowed, cast))


def _because(chosen: Forecast, allowed: list[Forecast], cast: Cast) -> str:
    """The forecast, those of plain decoding and of the best other composition, and what limits a pass."""
    assert chosen.plan is not None, "a plan was refused and chosen"
    reads = reads_of(chosen.composition, cast, chosen.plan).full
    others = [one for one in allowed if one is not chosen and one.composition.method != PLAIN]
    plain = [one for one in allowed if one is not chosen and one.composition.method == PLAIN]
    best_other = sorted(others, key=lambda one: one.ms_per_token)[:1]
    compared = [f"{words(one.composition)} {one.ms_per_token:.3g}" for one in (*plain, *best_other)]
    told = f"predicted {chosen.ms_per_token:.3g} ms a token at {chosen.plan.context.value:,} tokens"
    asked = "asked for; " if cast.is_wanted(chosen.composition) else ""
    asked += "not compared for a text this short; " if chosen.plan.context.value < SHORTEST else ""
    return asked + "; ".join(filter(None, [told, ", ".join(compared), _limit(chosen, reads)]))


def _limit(chosen: Forecast, reads: PassReads) -> str:
    plan = chosen.plan
    assert plan is not None, "a plan was refused and chosen"
    if reads.link:
        return "a pass over the full cache waits for the link, so that many guesses a pass pay"
    if reads.experts and chosen.composition.method == PLAIN:
        return "a pass that verifies several tokens reads more of the experts, which costs more than guesses save"
    kv = plan.num_layers * plan.cache_sizes.row_bytes * plan.context.value
    weights = reads.here - kv + reads.experts * reads.used
    return f"weights are {weights / (weights + kv):.0%} of what plain decoding reads for a token"


def words(one: Composition) -> str:
    """A composition as people read it."""
    copy = " over a 4-bit copy" if one.self_draft_bits == DRAFTING_BITS else ""
    label = METHODS[one.method].label
    return (label if label.startswith("TriForce") else label.lower()) + copy


def with_copy(acceptance: Acceptance) -> Acceptance:
    """The acceptance where a 4-bit copy guesses at level 2."""
    because = f"{acceptance.because}; of a 4-bit copy {SELF_DRAFT_OVERLAP:.0%} of level 2's, as with the bundled pair"
    return replace(acceptance, level2=acceptance.level2 * SELF_DRAFT_OVERLAP, because=because)


def usual_acceptance(measured: tuple[float, float] | None, draft: ModelDims | None) -> Acceptance:
    """The acceptance measured with a pair, else what is published, by the size of the draft.

    Args:
        draft: with the bytes of its weights.
    """
    if measured is not None:
        return Acceptance(*measured, "measured with this pair on generated books")
    if draft is None or draft.weight_bytes // draft.disk_dtype.itemsize < LARGE_DRAFT:
        return PUBLISHED
    return WITH_LARGE_DRAFT
