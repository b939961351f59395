"""How fast a model that is not loaded should read and answer on this machine."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from app import formats
from app.ui.header import PAGE_TOKENS

if TYPE_CHECKING:  # importing these loads torch: the engine's thread does that while the page is already served
    from app.runtime.events import Ready
    from core.planning.forecast import Acceptance
    from core.planning.plan import Plan

PAGES = 100
USABLE_TOKENS_PER_SECOND = 5.0  # a little faster than people read aloud
USABLE_READING_SECONDS = 600.0  # of the pages in `Speeds`


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Modelled at the planned context; never results."""

    plain: float  # tokens per second
    triforce: float  # with guesses, if they are accepted as `because` says
    because: str  # what acceptance that rests on
    reading_seconds: float  # of `pages`
    pages: int  # PAGES, or as many as the context holds

    @property
    def is_usable(self) -> bool:
        """Quick enough to work with."""
        return self.triforce >= USABLE_TOKENS_PER_SECOND and self.reading_seconds <= USABLE_READING_SECONDS

    @property
    def in_words(self) -> str:
        """How long 100 pages take, and how fast an answer is written then."""
        read = f"{formats.plural(self.pages, 'page')} are read in {formats.duration(self.reading_seconds)}"
        least = formats.figure(self.plain)
        most = f" to {formats.figure(self.triforce)}" if self.triforce > self.plain else ""
        return f"{read}, then {least}{most} tokens a second are written"

    @property
    def reason(self) -> str:
        """What the figures are."""
        told = "Expected at the full context of this machine, not measured."
        return (
            f"{told} The higher speed: guesses are accepted as {self.because}." if self.triforce > self.plain else told
        )


def expected_speeds(plan: "Plan", acceptance: "Acceptance") -> Speeds:
    """The model of `doctor`: nominal rates of GPUs, rates of a processor that were measured here."""
    from core.planning.forecast import bandwidths, predict, reading_seconds

    rates = bandwidths(plan)
    found, pages = predict(plan, rates, acceptance), min(PAGES, plan.context.value // PAGE_TOKENS)
    flops = rates.products.value
    assert flops is not None, "known of this machine"
    return Speeds(
        plain=1e3 / found.plain_ms_per_token,
        triforce=1e3 / found.triforce_ms_per_token,
        because=acceptance.because,
        reading_seconds=reading_seconds(pages * PAGE_TOKENS, plan.model, plan.size.active_parameters, flops),
        pages=pages,
    )


def reading_time(ready: "Ready", num_tokens: int) -> float | None:
    """Seconds that the loaded model takes to read a text of so many tokens; None: not known, as of a server elsewhere.

    By what it has read since it was loaded, else by the model of `expected_speeds`.
    """
    from core.planning.forecast import bandwidths, reading_seconds

    info = ready.info
    measured, target = info.pace.whole(num_tokens), info.target_dims
    if measured is not None or target is None:
        return measured
    parameters = target.weight_bytes // target.disk_dtype.itemsize
    parameters -= info.experts.parameters - info.experts.active if info.experts else 0
    flops = bandwidths(info.plan).products.value
    assert flops is not None, "known of this machine"
    return reading_seconds(num_tokens, target, parameters, flops)
