"""What decoding should cost, from bytes and measured bandwidth: the yardstick that `doctor` shows and benchmarks meet.

A pass reads its weights and its keys and values once and pays a fixed overhead per layer; TriForce's round is
modelled as in arXiv 2211.17192 with the best round shape. Predictions, never results.
"""

import time
from dataclasses import dataclass

import torch

from core.config import EngineConfig, SpeculationConfig
from core.decoding.adaptive import PassCost, best_gamma, cost_per_token
from core.models.loader import ModelDims
from core.planner import Plan, kv_bytes_per_token

# Fixed cost of a layer in a pass, in seconds: module calls and small kernels. CPU: 2.4 ms for 6 layers, measured on
# two server cores; CUDA: eager launches.
LAYER_OVERHEAD = {"cpu": 4e-4, "cuda": 2.5e-4}
# Relative cost of each further row in a pass over the cache. CPU: 12 rows cost 1.6 times one; CUDA: the paper's A100.
ROW_SLOPE = {"cpu": 0.05, "cuda": 0.003}
# Nominal bandwidth where none was measured, bytes per second: two server cores; an RTX 4090.
NOMINAL_BANDWIDTH = {"cpu": 12e9, "cuda": 900e9}
EXPECTED_ACCEPTANCE = (0.6, 0.93)  # levels 1 and 2, where nothing has been measured yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Modelled decoding at the planned context."""

    context: int
    bandwidth_bytes_per_second: float
    plain_ms_per_token: float
    triforce_ms_per_token: float
    acceptance1: float
    acceptance2: float
    gamma1: int
    gamma2: int


def pass_seconds(device: str, num_layers: int, bytes_read: int, bandwidth: float | None = None) -> float:
    """One row through one model: overhead and bytes."""
    return LAYER_OVERHEAD[device] * num_layers + bytes_read / (bandwidth or NOMINAL_BANDWIDTH[device])


def measure_bandwidth(device: torch.device, size_bytes: int = 256 << 20) -> float:
    """Bytes per second at which matmuls of one row read a matrix larger than any cache; the median of five."""
    matrix = torch.ones(size_bytes // 4 // 1024, 1024, device=device)
    vector = torch.ones(1024, 1, device=device)
    seconds = []
    for _ in range(6):
        _wait(device)
        started = time.perf_counter()
        matrix @ vector
        _wait(device)
        seconds.append(time.perf_counter() - started)
    return matrix.numel() * 4 / sorted(seconds[1:])[2]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def predict(
    target: ModelDims, draft: ModelDims | None, config: EngineConfig, plan: Plan, bandwidth: float
) -> Prediction:
    """Model plain decoding and TriForce with a full context."""
    device, dtype, context = plan.device.value, plan.dtype.value, plan.context.value
    per_token, scale = kv_bytes_per_token(target, dtype), dtype.itemsize / target.disk_dtype.itemsize
    weights = int(target.weight_bytes * scale)

    def cost(dims: ModelDims, bytes_read: int) -> PassCost:
        return PassCost(pass_seconds(device, dims.num_layers, bytes_read, bandwidth), ROW_SLOPE[device])

    full = cost(target, weights + per_token * context)
    retrieval = cost(target, weights + per_token * min(context, config.retrieval.budget))
    limits = SpeculationConfig()
    (acceptance1, acceptance2), gamma1 = EXPECTED_ACCEPTANCE, 0
    guess = retrieval.base
    if draft is not None:
        guess = cost(
            draft, int(draft.weight_bytes * scale) + kv_bytes_per_token(draft, dtype) * config.draft.window
        ).base
        gamma1 = best_gamma(acceptance1, guess, retrieval, limits.max_gamma1)
        guess = cost_per_token(acceptance1, guess, retrieval, gamma1)
    gamma2 = best_gamma(acceptance2, guess, full, limits.max_gamma2)
    return Prediction(
        context=context,
        bandwidth_bytes_per_second=bandwidth,
        plain_ms_per_token=1e3 * full.base,
        triforce_ms_per_token=1e3 * cost_per_token(acceptance2, guess, full, gamma2),
        acceptance1=acceptance1,
        acceptance2=acceptance2,
        gamma1=gamma1,
        gamma2=gamma2,
    )
