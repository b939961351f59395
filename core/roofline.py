"""What a pass should cost, from bytes and bandwidth: the yardstick that `doctor` shows and benchmarks meet.

A pass reads its weights and its keys and values once and pays a fixed overhead per layer. Predictions, never results.
"""

import time

import torch

from core.ops.transfer import HostRows
from core.planner import Choice

# Fixed cost of a layer in a pass, in seconds: module calls and small kernels. CPU: 2.4 ms for 6 layers, measured on
# two server cores; CUDA: eager launches.
LAYER_OVERHEAD = {"cpu": 4e-4, "cuda": 2.5e-4}
# Relative cost of each further row in a pass over the cache. CPU: 12 rows cost 1.6 times one; CUDA: the paper's A100.
ROW_SLOPE = {"cpu": 0.05, "cuda": 0.003}
LINK_BYTES = 64 << 20  # beyond the caches of processors; 2.6 ms at 25 GB/s
# Nominal bandwidth where none was measured, bytes per second: two server cores; an RTX 4090.
NOMINAL_BANDWIDTH = {"cpu": 12e9, "cuda": 900e9}


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


def measure_link(device: torch.device, size_bytes: int | None = None) -> Choice[float]:
    """Bytes per second that a plain copy from host memory to a device carries; the median of five.

    From pinned memory to a GPU, or from pageable memory where pinning is refused. On a processor: of a copy within RAM.
    """
    size_bytes = size_bytes or LINK_BYTES
    memory = HostRows((size_bytes,), torch.uint8, device)
    there, here = memory.rows.fill_(1), torch.empty(size_bytes, dtype=torch.uint8, device=device)
    because = "a copy from pinned memory" if not memory.refused else f"a copy from pageable memory: {memory.refused}"
    if device.type == "cpu":
        because = "a copy within memory: there is no GPU"
    seconds = []
    for _ in range(6):
        _wait(device)
        started = time.perf_counter()
        here.copy_(there, non_blocking=True)
        _wait(device)
        seconds.append(time.perf_counter() - started)
    return Choice(size_bytes / sorted(seconds[1:])[2], f"measured here, {because}")
