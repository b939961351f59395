"""How fast a planned machine should decode, from bytes, rates and rows. Predictions, never results.

A pass takes a fixed time a layer and the slowest of device, link and host, which run in parallel. Rounds follow arXiv
2211.17192 with the best shape. Of a plan it chooses the retrieval budget alone (`core.planning.composition`).
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from core.caches.base import KVShape
from core.config import MOST_GUESSES_BELOW
from core.decoding.adaptive import MeasuredCost, PassCost, best_gamma, cost_per_token
from core.models.loader import ModelDims
from core.models.param_count import UNQUANTISED_BITS
from core.models.self_draft import BITS as DRAFTING_BITS
from core.planning.choices import Choice
from core.planning.devices import Bandwidths
from core.planning.measured import PROCESSOR
from core.planning.plan import Plan
from core.planning.sizes import DRAFT_WEIGHTS, DRAFTING_WEIGHTS, META, STREAMING, TARGET_WEIGHTS, WIDENED

# Fixed cost of a layer in a pass, in seconds: norms, rotations, small products, calls. CPU: what SmolLM2 and
# Qwen2.5-Coder-0.5B take beyond their bytes on two server cores; CUDA: eager launches.
LAYER_OVERHEAD = {"cpu": 2e-4, "cuda": 2.5e-4}
# Choosing chunks once a round where layers wait in host memory: scores and waits, and rows of the retrieval cache that
# are not there yet, which the host gathers. They give 0.087 and 0.144 s for budgets of 4,096 and 8,192 of Llama2-7B's
# shape, where a choice took 0.073 and 0.139 (NVIDIA H200, 2026-11-26).
CHOOSING_SECONDS, NEW_SHARE, GATHERED = 0.03, 0.2, 7.3e9
# Weights of 4 bits and rows a second of torch's kernel on a GPU: a further row of 17,408 x 5,120 weights takes 5.8 us
# (NVIDIA H200, torch 2.11, 2026-11-27).
ROWS_IN_BITS = 1.5e13


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


def usual_acceptance(name: str, measured: tuple[float, float] | None, budget: int) -> Acceptance:
    """The acceptance measured with a pair, else the published one with this budget, marked where it is another's."""
    if measured is not None:
        return Acceptance(*measured, "measured with this pair on generated books")
    found = published_at(budget)
    if name == PUBLISHED_WITH:
        return found
    return replace(found, because=f"{found.because}; measured with another model, not with this one")


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
    heads: tuple[int, int] = (2, 1)  # see `heads_of`
    in_bits: int = 0  # weights of 4 bits that a GPU's kernel multiplies with each row


def heads_of(shape: KVShape) -> tuple[int, int]:
    """Bytes of a number among keys and values; query heads of a KV head, so many rows attend to a key for one token."""
    return shape.kv_dtype.itemsize, max(1, shape.num_heads // max(1, shape.num_kv_heads))


def pass_cost(device: str, reads: PassReads, rates: Bandwidths) -> PassCost:
    """Fixed cost, plus the slowest of three that run in parallel: device, link and host.

    Further rows make the device's part longer: products by a share of their weights, attention by their query heads.
    The link carries the same bytes whatever the rows. A processor has no link and reads everything itself.
    """
    fixed, weights = LAYER_OVERHEAD[device] * reads.layers, reads.weights / rates.memory.value
    kv = reads.kv + (0 if rates.link else reads.link) + (0 if rates.host else reads.host)
    number_bytes, group = reads.heads
    numbers = kv / number_bytes
    attending = numbers * rates.rows.attended * group
    base = fixed + weights + kv / rates.memory.value + numbers * rates.rows.number + attending
    further = rates.rows.product * weights + attending + reads.in_bits / ROWS_IN_BITS
    carried = reads.link / rates.link.value if rates.link else 0.0
    attended = reads.host / rates.host.value if rates.host else 0.0
    beside = fixed + max(carried, attended) if max(carried, attended) else 0.0
    return PassCost(base, further / base, beside, reads.experts / rates.memory.value, reads.used)


# -------------------- what a plan's passes read


class Reads(NamedTuple):
    """What passes over each cache read."""

    full: PassReads
    retrieval: PassReads
    draft: PassReads | None = None  # None: there is no draft


def planned_reads(plan: Plan, context: int) -> Reads:
    """What passes behind `context` tokens read by a plan.

    A mixture's experts are never quantised, and a self-draft shares them.
    """
    plan, dtype, target = plan.at(context), plan.dtype.value, plan.size
    dims, experts, small = replace(plan.model, kv_dtype=plan.kv.value), target.experts, plan.draft
    read = 1.0 if plan.embeds_from_host else dims.pass_share(target.num_parameters)
    weights = int(plan.bytes_of(TARGET_WEIGHTS) * read)
    in_bits = target.layer_parameters if plan.on_gpu and plan.bits.value == DRAFTING_BITS else 0
    if plan.bytes_of(WIDENED) and not in_bits:  # each pass writes every matrix in the type of computation and reads it
        weights += 2 * dtype.itemsize * target.layer_parameters
    copied = plan.bytes_of(DRAFTING_WEIGHTS)
    rest = max(0, target.other_parameters - target.output_parameters * (1 if dims.tied else 2))  # norms and biases
    guessing = copied + plan.sizes.shared + rest * UNQUANTISED_BITS // 8 if copied else weights
    expert_bytes = min(experts.parameters * dtype.itemsize if experts else 0, weights, guessing)
    shape = dims.shape(dtype, META)
    row, windows = shape.full_reads * plan.sizes.row_bytes, shape.window_bytes(context) + dims.state.nbytes(dtype)
    away = row * context - row * context * plan.resident_layers // plan.num_layers if plan.num_layers else 0
    host = round((plan.cpu_attention.value or 0.0) * away)
    full = PassReads(
        layers=dims.num_layers,
        weights=weights - expert_bytes,
        kv=windows + row * context - away,
        link=away - host,
        host=host,
        experts=expert_bytes,
        used=experts.used if experts else 1.0,
        heads=heads_of(shape),
        in_bits=in_bits,
    )
    near = windows + row * min(context, plan.config.retrieval.budget)
    multiplied = target.layer_parameters + target.output_parameters if copied and plan.on_gpu else in_bits
    retrieval = replace(full, weights=guessing - expert_bytes, kv=near, link=0, host=0, in_bits=multiplied)
    if small is None:
        return Reads(full, retrieval)
    share = small.pass_share(small.weight_bytes // small.disk_dtype.itemsize)
    drafting, window = int(plan.bytes_of(DRAFT_WEIGHTS) * share), plan.bytes_of(STREAMING)
    heads = heads_of(small.shape(dtype, META))
    return Reads(full, retrieval, PassReads(small.num_layers, drafting, window, heads=heads))


# -------------------- decoding


class Prediction(NamedTuple):
    """Modelled decoding behind a text of `context` tokens."""

    context: int
    rates: Bandwidths
    acceptance: Acceptance
    reads: Reads
    plain_ms_per_token: float
    triforce_ms_per_token: float
    gamma1: int  # 0: there is no draft, the retrieval cache guesses
    gamma2: int  # 0: no guess pays


def bandwidths(plan: Plan) -> Bandwidths:
    """Rates of the processor that computes, measured here; nominal ones of GPUs."""
    if plan.on_gpu:
        return plan.nominal if plan.cpu_attention.value else replace(plan.nominal, host=None)
    rates = PROCESSOR.rates()
    if not plan.rig.assumed:
        return rates
    memory = Choice(rates.memory.value, f"{rates.memory.because}; the machine that is described may differ")
    return replace(rates, memory=memory, products=plan.nominal.products)


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


def predict(plan: Plan, rates: Bandwidths, acceptance: Acceptance, context: int | None = None) -> Prediction:
    """Model plain decoding and TriForce behind a text.

    Args:
        context: tokens of the text; None: as many as the planned context has.
    """
    context = plan.context.value if context is None else context
    device, reads = plan.device.value, planned_reads(plan, context)
    full, retrieval = (pass_cost(device, part, rates) for part in (reads.full, reads.retrieval))
    gamma1, guess = 0, retrieval.of(0)
    if reads.draft is not None:
        guess = pass_cost(device, reads.draft, rates).of(0)
        gamma1 = best_gamma(acceptance.level1, guess, retrieval, MOST_GUESSES_BELOW)
        guess = cost_per_token(acceptance.level1, guess, retrieval, gamma1)
    plain, verifying = full.of(0), MeasuredCost({}, full, overhead=choosing_seconds(reads))
    gamma2 = best_gamma(acceptance.level2, guess, verifying, plan.at(context).most_guesses)
    fast = cost_per_token(acceptance.level2, guess, verifying, gamma2)
    if not gamma2 or fast >= plain:
        gamma2, fast = 0, plain
    return Prediction(context, rates, acceptance, reads, 1e3 * plain, 1e3 * fast, gamma1, gamma2)
