"""How fast a planned machine should decode, from bytes, rates and rows. Predictions, never results.

A pass takes a fixed time a layer and the slowest of device, link and host, which run in parallel. Rounds follow arXiv
2211.17192 with the best shape. Of a plan it chooses the retrieval budget alone (`outline`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from core.caches.base import KVShape
from core.config import SpeculationConfig
from core.decoding.adaptive import PassCost, best_gamma, cost_per_token
from core.models.loader import ModelDims
from core.models.param_count import ModelSize
from core.planning.choices import Choice, choose_most_guesses
from core.planning.devices import Bandwidths
from core.planning.hardware import resolve_device
from core.planning.measured import PROCESSOR, measure_bandwidth, measure_link
from core.planning.plan import Plan
from core.planning.sizes import DRAFT_WEIGHTS, DRAFTING_WEIGHTS, STREAMING, TARGET_WEIGHTS, WIDENED

META = torch.device("meta")
# Fixed cost of a layer in a pass, in seconds: norms, rotations, small products, calls. CPU: what SmolLM2 and
# Qwen2.5-Coder-0.5B take beyond their bytes on two server cores; CUDA: eager launches.
LAYER_OVERHEAD = {"cpu": 2e-4, "cuda": 2.5e-4}
# Choosing chunks once a round where layers wait in host memory: scores and waits, and rows of the retrieval cache that
# are not there yet, which the host gathers. They give 0.087 and 0.144 s for budgets of 4,096 and 8,192 of Llama2-7B's
# shape, where a choice took 0.073 and 0.139 (NVIDIA H200, 2026-11-26).
CHOOSING_SECONDS, NEW_SHARE, GATHERED = 0.03, 0.2, 7.3e9
TOLD_LENGTHS = (2_000, 8_000, 32_000)  # tokens of text for which speeds are shown


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Accepted / tested guesses of both levels, and the source of these numbers."""

    level1: float
    level2: float
    because: str


# TriForce on PG-19 at 120K tokens, temperature 0: level 2 with a budget of 4,096 tokens; level 1 is its 68M draft's.
PUBLISHED_BUDGET = 4096
PUBLISHED = Acceptance(
    0.3, 0.923, f"published for Llama2-7B-128K with a budget of {PUBLISHED_BUDGET:,} tokens (arXiv 2404.11912)"
)

# Rejections of level 2 fall with this power of the budget: to 0.06 with the 12,288 tokens of published offloading on
# two RTX 4090, by its times (108 ms a token where plain decoding takes 840, 16 guesses a round).
BUDGET_POWER = 0.227


def published_at(budget: int) -> Acceptance:
    """The published acceptance with another budget."""
    if budget == PUBLISHED_BUDGET:
        return PUBLISHED
    level2 = 1 - (1 - PUBLISHED.level2) * (budget / PUBLISHED_BUDGET) ** -BUDGET_POWER
    because = f"{PUBLISHED.because}; this plan's budget is {budget:,}: inferred from the published times with 12,288"
    return Acceptance(PUBLISHED.level1, level2, because)


PUBLISHED_WITH = "llama2-7b-128k"
OF_ANOTHER = "measured with another model, not with this one"


def usual_acceptance(measured: tuple[float, float] | None) -> Acceptance:
    """The acceptance measured with this pair, else the published one of another pair."""
    return PUBLISHED if measured is None else Acceptance(*measured, "measured with this pair on generated books")


def of_another(acceptance: Acceptance, name: str) -> Acceptance:
    """An acceptance marked as another model's."""
    if not acceptance.because.startswith("published") or name == PUBLISHED_WITH:
        return acceptance
    return replace(acceptance, because=f"{acceptance.because}; {OF_ANOTHER}")


# -------------------- a pass


@dataclass(frozen=True, slots=True)
class PassReads:
    """Bytes that a pass through one model reads, by place."""

    layers: int
    weights: int
    kv: int  # keys and values in the computing device's memory
    link: int = 0  # keys and values that come from host memory
    host: int = 0  # keys and values that the host attends to in place
    experts: int = 0  # all experts of a mixture, not among `weights`
    used: float = 1.0  # share of them that one row needs
    number_bytes: int = 2  # of a number among keys and values
    group: int = 1  # query heads of a KV head: so many rows attend to its keys for one token

    @classmethod
    def of(
        cls,
        layers: int,
        weights: int,
        kv: int,
        resident: int | None = None,
        attended: float = 0.0,
        *,
        windowed: int = 0,
        windows: int = 0,
        experts: int = 0,
        used: float = 1.0,
        heads: tuple[int, int] = (2, 1),
    ) -> "PassReads":
        """The reads for a cache of `kv` bytes.

        Args:
            resident: number of its layers on the device; None: all.
            attended: share of the other layers' bytes that the host attends to.
            windowed: number of layers with a window, which are always on the device; `windows`: their bytes.
            experts: bytes among `weights` of which a row needs the share `used`.
            heads: `number_bytes` and `group`, see `heads_of`.
        """
        away = 0 if resident is None or layers == windowed else kv - kv * resident // (layers - windowed)
        host = round(attended * away)
        return cls(layers, weights - experts, windows + kv - away, away - host, host, experts, used, *heads)


def heads_of(shape: KVShape) -> tuple[int, int]:
    """Bytes of a number among keys and values, and query heads of a KV head."""
    return shape.kv_dtype.itemsize, max(1, shape.num_heads // max(1, shape.num_kv_heads))


def pass_cost(device: str, reads: PassReads, rates: Bandwidths) -> PassCost:
    """Fixed cost, plus the slowest of three that run in parallel: device, link and host.

    Further rows make the device's part longer: products by a share of their weights, attention by their query heads.
    The link carries the same bytes whatever the rows. A processor has no link and reads everything itself.
    """
    fixed, weights = LAYER_OVERHEAD[device] * reads.layers, reads.weights / rates.memory.value
    kv = reads.kv + (0 if rates.link else reads.link) + (0 if rates.host else reads.host)
    numbers = kv / reads.number_bytes
    attending = numbers * rates.rows.attended * reads.group
    base = fixed + weights + kv / rates.memory.value + numbers * rates.rows.number + attending
    further = rates.rows.product * weights + attending
    carried = reads.link / rates.link.value if rates.link else 0.0
    attended = reads.host / rates.host.value if rates.host else 0.0
    beside = fixed + max(carried, attended) if max(carried, attended) else 0.0
    return PassCost(base, further / base, beside, reads.experts / rates.memory.value, reads.used)


# -------------------- what a plan's passes read


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """What passes over each cache read."""

    full: PassReads
    retrieval: PassReads
    draft: PassReads | None = None  # None: there is no draft


def planned_reads(plan: Plan, draft: ModelSize | None, context: int) -> Reads:
    """What passes behind `context` tokens read by a plan.

    A mixture's experts are never quantised, and a self-draft shares them.

    Args:
        draft: counted; it counts where the plan has it.
    """
    plan, dtype, target = plan.at(context), plan.dtype.value, plan.size
    assert target is not None, "forecasts are made from counted parameters"
    dims, experts = replace(plan.model, kv_dtype=plan.kv.value), target.experts
    shape, kv = dims.shape(dtype, META), dims.shape(dtype, META).full_reads * plan.cache_sizes.row_bytes
    windows = shape.window_bytes(context) + dims.state.nbytes(dtype)
    weights, copied = int(plan.bytes_of(TARGET_WEIGHTS) * target.pass_share), plan.bytes_of(DRAFTING_WEIGHTS)
    if plan.bytes_of(WIDENED):  # in each pass every matrix is written in the type of computation, and read
        weights += 2 * dtype.itemsize * target.layer_parameters
    guessing = copied + target.self_draft_pass_bytes - target.self_draft_bytes if copied else weights
    expert_bytes = min(experts.parameters * dtype.itemsize if experts else 0, weights, guessing)
    used, heads = experts.used if experts else 1.0, heads_of(shape)
    of = partial(PassReads.of, dims.num_layers, windows=windows, experts=expert_bytes, used=used, heads=heads)
    away = (plan.resident_layers, plan.cpu_attention.value or 0.0)
    full = of(weights, kv * context, *away, windowed=dims.num_layers - plan.num_layers)
    reads = Reads(full=full, retrieval=of(guessing, kv * min(context, plan.config.retrieval.budget)))
    if draft is None or plan.draft is None:
        return reads
    small, window = int(plan.bytes_of(DRAFT_WEIGHTS) * draft.pass_share), plan.bytes_of(STREAMING)
    drafting = PassReads.of(draft.dims.num_layers, small, window, heads=heads_of(draft.dims.shape(dtype, META)))
    return replace(reads, draft=drafting)


# -------------------- decoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Modelled decoding behind a text."""

    context: int
    bandwidth_bytes_per_second: float
    bandwidth_because: str
    link_bytes_per_second: float | None
    link_because: str | None
    link_bytes_per_full_pass: int  # over each link
    host_bytes_per_full_pass: int = 0  # that the host attends to in place
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


def bandwidths(plan: Plan) -> Bandwidths:
    """Measured rates if the plan's machine is this one, nominal ones if it is described."""
    if not plan.on_gpu:
        rates = PROCESSOR.rates()
        other = "; the machine that is described may differ" if plan.rig.assumed else ""
        return replace(rates, memory=Choice(rates.memory.value, rates.memory.because + other))
    host = plan.nominal.host if plan.cpu_attention.value else None
    if host and not plan.rig.assumed:
        host = Choice(measure_bandwidth(torch.device("cpu")), "measured on this processor, in 32 bit")
    if host and plan.ranks > 1:
        host = Choice(host.value / plan.ranks, f"{host.because}; {plan.ranks} GPUs share it")
    if plan.rig.kind is None:
        device = resolve_device("cuda")
        return Bandwidths(Choice(measure_bandwidth(device), "measured here"), measure_link(device), host)
    return replace(plan.nominal, host=host)


def predict(
    plan: Plan, draft: ModelSize | None, rates: Bandwidths, acceptance: Acceptance, context: int | None = None
) -> Prediction:
    """Model plain decoding and TriForce behind a text.

    Args:
        draft: as in `planned_reads`.
        context: tokens of the text; None: as many as the planned context has.
    """
    context = plan.context.value if context is None else context
    return predict_reads(plan.device.value, context, planned_reads(plan, draft, context), rates, acceptance)


def outline(plan: Plan, budget: int) -> float:
    """Milliseconds of a token behind the full context, from the plan alone: to compare plans of one model."""
    sizes, weights, context = plan.cache_sizes, plan.bytes_of(TARGET_WEIGHTS), plan.context.value
    row, share = sizes.layers * sizes.row_bytes, plan.cpu_attention.value or 0.0
    full = PassReads.of(sizes.layers, weights, row * context, plan.resident_layers, share)
    reads = Reads(full=full, retrieval=PassReads.of(sizes.layers, weights, row * min(context, budget)))
    prediction = predict_reads(plan.device.value, context, reads, plan.nominal, published_at(budget))
    return prediction.triforce_ms_per_token


def lengths_below(context: int) -> Sequence[int]:
    """Lengths of text for which speeds are shown beside the planned context."""
    return [length for length in TOLD_LENGTHS if length < context]


def products(plan: Plan) -> Choice[float | None]:
    """Operations per second of large products: measured of a processor, of GPUs by their data sheet."""
    if not plan.on_gpu and plan.rig.assumed:
        return Choice(None, "not known of a processor that is described")
    if not plan.on_gpu:
        return Choice(PROCESSOR.flops(), "by products that were measured here")
    found, several = plan.nominal.products, f" x {plan.ranks}" if plan.ranks > 1 else ""
    if found is None:
        return Choice(None, "not known: describe the GPU with its TFLOPS as the fifth figure")
    return Choice(plan.ranks * found.value, found.because + several)


def reading_seconds(num_tokens: int, target: ModelDims, num_parameters: int, flops: float) -> float:
    """Modelled time to read a text: two operations a parameter and token, and attention to everything in reach.

    Args:
        num_parameters: that a token passes through.
        flops: operations per second of large products on the device.
    """
    pairs = sum(
        num_tokens * min(num_tokens / 2, num_tokens if reach is None else reach.size)
        for reach in target.reaches or (None,) * target.num_kv_layers
    )
    return (2 * num_parameters * num_tokens + 4 * target.num_heads * target.head_dim * pairs) / flops


def choosing_seconds(reads: Reads) -> float:
    """Modelled time of choosing chunks in a round."""
    away = reads.full.link + reads.full.host
    if not away:
        return 0.0
    return CHOOSING_SECONDS + NEW_SHARE * reads.retrieval.kv * away / (away + reads.full.kv) / GATHERED


def predict_reads(device: str, context: int, reads: Reads, rates: Bandwidths, acceptance: Acceptance) -> Prediction:
    """Model plain decoding and TriForce from the reads of their passes."""
    full, retrieval = (pass_cost(device, part, rates) for part in (reads.full, reads.retrieval))
    gamma1, guess = 0, retrieval.of(0)
    if reads.draft is not None:
        guess = pass_cost(device, reads.draft, rates).of(0)
        gamma1 = best_gamma(acceptance.level1, guess, retrieval, SpeculationConfig().max_gamma1)
        guess = cost_per_token(acceptance.level1, guess, retrieval, gamma1)
    most = choose_most_guesses(device, away=bool(reads.full.link or reads.full.host)).value
    gamma2 = best_gamma(acceptance.level2, guess, full, most)
    plain, choosing = full.of(0), choosing_seconds(reads)
    verified = replace(full, base=full.base + choosing, beside=full.beside + choosing)
    fast = cost_per_token(acceptance.level2, guess, verified, gamma2) if gamma2 else plain
    return Prediction(
        context=context,
        bandwidth_bytes_per_second=rates.memory.value,
        bandwidth_because=rates.memory.because,
        link_bytes_per_second=rates.link.value if rates.link else None,
        link_because=rates.link.because if rates.link else None,
        link_bytes_per_full_pass=reads.full.link,
        host_bytes_per_full_pass=reads.full.host,
        host_bytes_per_second=rates.host.value if rates.host else None,
        host_because=rates.host.because if rates.host else None,
        plain_ms_per_token=1e3 * plain,
        triforce_ms_per_token=1e3 * fast,
        plain_tokens_per_second=1 / plain,
        triforce_tokens_per_second=1 / fast,
        acceptance1=acceptance.level1 if reads.draft else None,
        acceptance2=acceptance.level2,
        acceptance_because=acceptance.because,
        gamma1=gamma1,
        gamma2=gamma2,
    )
