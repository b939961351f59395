"""How fast a planned machine should decode, from bytes, bandwidths and acceptance. Predictions, never results.

A pass over the full cache takes as long as the slowest of three, beside each other: the GPU reading its own memory, the
link carrying the layers that wait in host memory, the host reading what it attends to there. TriForce's round is
modelled as in arXiv 2211.17192 with the best round shape. Where the figures come from is said with them: measured here,
nominal, published, or seen.
"""

from dataclasses import dataclass, replace

import torch

from core.config import EngineConfig, SpeculationConfig
from core.decoding.adaptive import PassCost, best_gamma, cost_per_token
from core.models.census import ModelSize
from core.models.drafting import BITS as DRAFTING_BITS
from core.planner import Choice, kv_bytes_per_token
from core.rigs import Rig
from core.roofline import NOMINAL_BANDWIDTH, ROW_SLOPE, measure_bandwidth, measure_link, pass_seconds
from core.tiers import TierPlan

GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Accepted / tested guesses of both levels, and where the figures come from."""

    level1: float
    level2: float
    because: str


# TriForce on PG-19 at 120K tokens, temperature 0: level 2 with a budget of 4,096 tokens; level 1 is its 68M draft's.
PUBLISHED_BUDGET = 4096
PUBLISHED = Acceptance(
    0.3, 0.923, f"published for Llama2-7B-128K with a budget of {PUBLISHED_BUDGET:,} tokens (arXiv 2404.11912)"
)


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Bytes per second, of each device."""

    memory: Choice[float]  # that the device computes from
    link: Choice[float] | None  # from host memory to a GPU; None on the processor
    host: Choice[float] | None = None  # of host memory, where the host attends; None: it does not


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Modelled decoding at the planned context."""

    context: int
    bandwidth_bytes_per_second: float
    bandwidth_because: str
    link_bytes_per_second: float | None
    link_because: str | None
    link_bytes_per_full_pass: int  # over each link
    host_bytes_per_full_pass: int = 0  # that the host attends to where they lie
    host_bytes_per_second: float | None = None
    host_because: str | None = None
    plain_ms_per_token: float
    triforce_ms_per_token: float
    plain_tokens_per_second: float
    triforce_tokens_per_second: float
    acceptance1: float | None  # None: there is no draft, the retrieval cache guesses
    acceptance2: float
    acceptance_because: str
    gamma1: int
    gamma2: int


def bandwidths(plan: TierPlan, rig: Rig) -> Bandwidths:
    """Measured where the machine is this one, nominal where it is described."""
    if plan.device.value == "cpu":
        return Bandwidths(Choice(measure_bandwidth(torch.device("cpu")), "measured on this processor"), None)
    host = None
    if plan.coattention.value:
        host = Choice(NOMINAL_BANDWIDTH["cpu"], "nominal, as of two server cores")
        if not rig.assumed:
            host = Choice(measure_bandwidth(torch.device("cpu")), "measured on this processor, in 32 bit")
    if rig.kind is None:
        device = torch.device("cuda")
        return Bandwidths(Choice(measure_bandwidth(device), "measured here"), measure_link(device), host)
    memory, link_rate = GIGA * rig.kind.memory_gb_per_second, GIGA * rig.kind.link_gb_per_second
    because = f"nominal, as of an {rig.kind.name}"
    return Bandwidths(Choice(memory, because), Choice(link_rate, because), host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """What passes read, in bytes, on each device."""

    layers: int  # of the target
    full: int  # weights and the resident part of the full cache
    away: int = 0  # of the full cache, over the link
    attended: int = 0  # of the full cache, by the host where it lies
    retrieval: int  # weights and the retrieval cache
    draft_layers: int = 0  # 0: there is no draft
    draft: int = 0  # weights and window


def predict(
    target: ModelSize,
    draft: ModelSize | None,
    config: EngineConfig,
    plan: TierPlan,
    rates: Bandwidths,
    acceptance: Acceptance,
) -> Prediction:
    """Model plain decoding and TriForce at the planned context."""
    context, shares = plan.context.value, max(1, plan.num_gpus)
    kv = kv_bytes_per_token(target.dims, plan.dtype.value)
    weights = target.weight_bytes(plan.bits.value, shares)
    away, attended = plan.host_share * kv * context / shares, plan.coattention.value or 0.0
    drafts_apart = config.drafting_bits == DRAFTING_BITS and plan.device.value == "cuda"  # a processor gains nothing
    guessing = target.drafting_pass_bytes // shares if drafts_apart else weights
    reads = Reads(
        layers=target.dims.num_layers,
        full=weights + round((1 - plan.host_share) * kv * context / shares),
        away=round((1 - attended) * away),
        attended=round(attended * away),
        retrieval=guessing + kv * min(context, config.retrieval.budget) // shares,
    )
    if draft is not None:
        window = config.draft.window * kv_bytes_per_token(draft.dims, plan.dtype.value)
        weights = draft.weight_bytes(8 * plan.dtype.value.itemsize)
        reads = replace(reads, draft_layers=draft.dims.num_layers, draft=weights + window)
    return predict_reads(plan.device.value, context, reads, rates, acceptance)


def predict_reads(device: str, context: int, reads: Reads, rates: Bandwidths, acceptance: Acceptance) -> Prediction:
    """Model plain decoding and TriForce from what their passes read."""

    def seconds(num_layers: int, bytes_here: int, bytes_over_link: int = 0, bytes_by_host: int = 0) -> float:
        here = bytes_here / rates.memory.value
        carried = bytes_over_link / rates.link.value if rates.link else 0.0
        attended = bytes_by_host / rates.host.value if rates.host else 0.0
        return pass_seconds(device, num_layers, 0) + max(here, carried, attended)

    full = PassCost(seconds(reads.layers, reads.full, reads.away, reads.attended), ROW_SLOPE[device])
    retrieval = PassCost(seconds(reads.layers, reads.retrieval), ROW_SLOPE[device])
    limits, gamma1, guess = SpeculationConfig(), 0, retrieval.base
    if reads.draft_layers:
        guess = seconds(reads.draft_layers, reads.draft)
        gamma1 = best_gamma(acceptance.level1, guess, retrieval, limits.max_gamma1)
        guess = cost_per_token(acceptance.level1, guess, retrieval, gamma1)
    gamma2 = best_gamma(acceptance.level2, guess, full, limits.max_gamma2)
    fast = cost_per_token(acceptance.level2, guess, full, gamma2)
    return Prediction(
        context=context,
        bandwidth_bytes_per_second=rates.memory.value,
        bandwidth_because=rates.memory.because,
        link_bytes_per_second=rates.link.value if rates.link else None,
        link_because=rates.link.because if rates.link else None,
        link_bytes_per_full_pass=reads.away,
        host_bytes_per_full_pass=reads.attended,
        host_bytes_per_second=rates.host.value if rates.host else None,
        host_because=rates.host.because if rates.host else None,
        plain_ms_per_token=1e3 * full.base,
        triforce_ms_per_token=1e3 * fast,
        plain_tokens_per_second=1 / full.base,
        triforce_tokens_per_second=1 / fast,
        acceptance1=acceptance.level1 if reads.draft_layers else None,
        acceptance2=acceptance.level2,
        acceptance_because=acceptance.because,
        gamma1=gamma1,
        gamma2=gamma2,
    )


def bandwidth_of(device: str, num_layers: int, num_passes: int, bytes_read: int, seconds: float) -> float | None:
    """Bytes per second that passes of one row read with, their fixed cost left out; None where nothing can be told."""
    reading = seconds - num_passes * pass_seconds(device, num_layers, 0)
    return bytes_read / reading if num_passes and reading > 0 else None
