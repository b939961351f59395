"""How fast a model that is not loaded should read and answer on this machine."""

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.ui.header import PAGE_TOKENS

if TYPE_CHECKING:  # importing these loads torch: the engine's thread does that while the page is already served
    from app.runtime.events import Ready
    from core.planning.composition import Cast, Composed

AGAIN_SECONDS = 60.0
PAGES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Modelled at the planned context; never results."""

    plain: float  # tokens per second
    triforce: float  # by the composition that the plan chooses
    by: str  # its name
    reading_seconds: float  # of `pages`
    pages: int  # PAGES, or as many as the context holds


def expected_speeds(composed: "Composed", cast: "Cast") -> Speeds:
    """The model of `doctor`: nominal rates of GPUs, a processor's best rates that were measured here."""
    from core.decoding.registry import PLAIN
    from core.planning.choices import Choice, Composition
    from core.planning.composition import forecast, words
    from core.planning.machine_spec import Bandwidths, nominal_flops
    from core.planning.speed_model import reading_seconds

    plan, target = composed.plan, cast.target
    device, gpu = plan.device.value, plan.nominal.memory.because
    rates, flops = plan.nominal, nominal_flops(gpu).value
    if device == "cpu":
        bandwidth, flops = PROCESSOR.rates()
        rates = Bandwidths(Choice(bandwidth, "measured on this processor"), None)
    plain = forecast(Composition(PLAIN), cast, plan, rates)
    fast = forecast(composed.chosen.composition, cast, plan, rates)
    pages = min(PAGES, plan.context.value // PAGE_TOKENS)
    experts = cast.size.experts if cast.size else None
    parameters = target.weight_bytes // target.disk_dtype.itemsize
    parameters -= experts.parameters - experts.active if experts else 0
    return Speeds(
        plain=1e3 / plain.ms_per_token,
        triforce=1e3 / fast.ms_per_token,
        by=words(composed.chosen.composition),
        reading_seconds=reading_seconds(pages * PAGE_TOKENS, target, parameters, flops),
        pages=pages,
    )


def reading_time(ready: "Ready", num_tokens: int) -> float | None:
    """Seconds that the loaded model takes to read a text of so many tokens; None: not known, as of a server elsewhere.

    By what it has read since it was loaded, else by the model of `expected_speeds`.
    """
    from core.planning.machine_spec import nominal_flops
    from core.planning.speed_model import reading_seconds

    info = ready.info
    measured, target = info.pace.whole(num_tokens), info.target_dims
    if measured is not None or target is None:
        return measured
    on_cpu = info.plan.device.value == "cpu"
    flops = PROCESSOR.rates()[1] if on_cpu else nominal_flops(info.plan.nominal.memory.because).value
    parameters = target.weight_bytes // target.disk_dtype.itemsize
    parameters -= info.experts.parameters - info.experts.active if info.experts else 0
    return reading_seconds(num_tokens, target, parameters, flops)


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
