"""How fast a model that is not loaded should read and answer on this machine."""

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.config import EngineConfig
from core.models.hub.catalog import entries

if TYPE_CHECKING:  # importing these loads torch: the engine's thread does that while the page is already served
    from core.models.loader import ModelDims
    from core.planning.memory_plan import Plan

AGAIN_SECONDS = 60.0
PAGES, PAGE_TOKENS = 100, 500  # a printed page has 300 to 500 words


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Modelled at the planned context; never results."""

    plain: float  # tokens per second
    triforce: float
    reading_seconds: float  # of `pages`
    pages: int  # PAGES, or as many as the context holds


def expected_speeds(
    name: str, plan: "Plan", target: "ModelDims", draft: "ModelDims | None", config: EngineConfig
) -> Speeds:
    """The model of `doctor`: nominal rates of GPUs, a processor's best rates that were measured here."""
    from core.planning.choices import Choice
    from core.planning.machine_spec import Bandwidths, nominal_flops
    from core.planning.speed_model import PUBLISHED, Acceptance, planned_reads, predict_reads, reading_seconds

    device, gpu = plan.device.value, plan.nominal.memory.because
    rates, flops = plan.nominal, nominal_flops(gpu).value
    if device == "cpu":
        bandwidth, flops = PROCESSOR.rates()
        rates = Bandwidths(Choice(bandwidth, "measured on this processor"), None)
    known = entries().get(name)
    acceptance = PUBLISHED
    if known is not None and known.acceptance is not None:
        acceptance = Acceptance(*known.acceptance, "measured with this pair on generated books")
    reads = planned_reads(plan, target, draft, config)
    found = predict_reads(device, plan.context.value, reads, rates, acceptance)
    pages = min(PAGES, plan.context.value // PAGE_TOKENS)
    parameters = target.weight_bytes // target.disk_dtype.itemsize
    return Speeds(
        plain=found.plain_tokens_per_second,
        triforce=found.triforce_tokens_per_second,
        reading_seconds=reading_seconds(pages * PAGE_TOKENS, target, parameters, flops),
        pages=pages,
    )


class Processor:
    """The processor's rates: the best that were seen, because other work only makes a measurement slower."""

    def __init__(self) -> None:
        self._best, self._measured = (0.0, 0.0), -float("inf")
        self._lock = threading.Lock()

    def rates(self) -> tuple[float, float]:
        """Bytes and operations per second. Cost: a third of a second, at most once a minute."""
        import torch

        from core.planning.cost_model import measure_bandwidth, measure_flops

        with self._lock:
            if time.monotonic() - self._measured > AGAIN_SECONDS:
                device = torch.device("cpu")
                bandwidth, flops = self._best
                self._best = max(bandwidth, measure_bandwidth(device)), max(flops, measure_flops(device))
                self._measured = time.monotonic()
            return self._best


PROCESSOR = Processor()
