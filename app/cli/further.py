"""What `doctor` tells beside the plan: how long reading takes, whose acceptance it is, which width would fit better."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from app.formats import duration
from core.config import EngineConfig
from core.errors import CoreError
from core.planning.composition import RigPlan, compose_rig
from core.planning.devices import Rig
from core.planning.fit import MOST_CONTEXT
from core.planning.forecast import reading_seconds
from core.planning.measured import PROCESSOR

if TYPE_CHECKING:
    from app.cli.doctor import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Further:
    """Beside the plan."""

    reading_tokens: int  # of a text as long as the model reads, up to 128K
    reading_seconds: float | None  # None: the GPU's computing rate is not known
    reading_because: str
    proposal: str  # "": none


def further(subject: "Subject", rig: Rig, told: RigPlan, config: EngineConfig, bits: int | None) -> Further:
    """How long a text of 128K tokens is read on the machine, and a width that would hold more.

    Args:
        bits: of the weights, as asked for.
    """
    target, experts = subject.target, subject.target.experts
    rate, because = products(rig, told)
    tokens = min(target.dims.max_context, MOST_CONTEXT)
    parameters = target.num_parameters - (experts.parameters - experts.active if experts else 0)
    seconds = None if rate is None else reading_seconds(tokens, target.dims, parameters, rate)
    return Further(
        reading_tokens=tokens,
        reading_seconds=seconds,
        reading_because=because,
        proposal=narrower(subject, rig, told, config) if bits is None else "",
    )


def products(rig: Rig, told: RigPlan) -> tuple[float | None, str]:
    """Operations per second of large products, and where the number is from."""
    if told.plan.device.value == "cpu":
        if rig.assumed:
            return None, "not known of a processor that is described"
        return PROCESSOR.flops(), "by products that were measured here"
    found, several = told.plan.nominal.products, f" x {told.num_gpus}" if told.num_gpus > 1 else ""
    if found is None:
        return None, "not known: describe the GPU with its TFLOPS as the fifth figure"
    return told.num_gpus * found.value, found.because + several


def narrower(subject: "Subject", rig: Rig, told: RigPlan, config: EngineConfig) -> str:
    """A proposal of 8-bit or 4-bit weights where more of the context would then lie beside them."""
    plan = told.plan
    most = min(subject.target.dims.max_context, MOST_CONTEXT)
    if plan.placement.value == "resident" and (config.context is not None or plan.context.value >= most):
        return ""
    asked = config if config.context is not None else replace(config, context=plan.context.value)
    for bits in (8, 4):
        if bits >= plan.bits.value or told.num_gpus > 1:  # which share no quantised weights
            return ""
        try:
            other = compose_rig(subject.target, subject.draft, asked, rig, bits)
        except CoreError:
            continue
        if other.plan.placement.value == "resident" and plan.placement.value != "resident":
            return f"With --bits {bits} all {plan.context.value:,} tokens would lie beside the weights"
        if other.plan.most_context > plan.most_context:
            return f"With --bits {bits} a context of {other.plan.most_context:,} tokens would fit"
    return ""


def further_lines(more: Further) -> list[str]:
    """The same for people."""
    took = "-" if more.reading_seconds is None else f"about {duration(more.reading_seconds)}"
    shown = [f"  reading {more.reading_tokens:,} tokens: {took}, {more.reading_because}"]
    if more.proposal:
        shown += ["", f"Note: {more.proposal}; answers are then exact for the quantised model."]
    return shown
