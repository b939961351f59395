"""What a pass should cost, from bytes and bandwidth: `doctor` shows it, and benchmarks are compared with it.

A pass reads its weights and its keys and values once and pays a fixed overhead per layer. These are predictions, never
results; the same function also shapes the rounds of sampled texts. The speed of the link and of the host's attention
beside it are measured, and the host's share follows from both.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from core.config import MOST_CPU_SHARE, MOST_GUESSES
from core.decoding.adaptive import PassCost
from core.ops.host_attention import HostAttention
from core.ops.link import LINK_BYTES, link_rate
from core.ops.transfer import HostRows
from core.planning.choices import Choice
from core.planning.machine_spec import Bandwidths

# Fixed cost of a layer in a pass, in seconds: module calls and small kernels. CPU: 2.4 ms for 6 layers, measured on
# two server cores; CUDA: eager launches.
LAYER_OVERHEAD = {"cpu": 4e-4, "cuda": 2.5e-4}
# Relative cost of each further row in a pass over the cache. CPU: 12 rows cost 1.6 times one; CUDA: the paper's A100.
ROW_SLOPE = {"cpu": 0.05, "cuda": 0.003}
SHARING_BYTES = 128 << 20  # of blocks, more than processor caches hold
SHARING_ROWS = MOST_GUESSES + 1  # of a round's verification: rounds are long where the link limits a pass
LEAST_GAIN = 0.1  # of the link's time: a smaller gain is not worth a thread
SHARE_STEP = 0.05  # shares are multiples of it, so that most starts on one machine choose the same share


@dataclass(frozen=True, slots=True)
class PassReads:
    """Bytes that a pass through one model reads, by place."""

    layers: int
    here: int  # weights, keys and values in the computing device's memory
    link: int = 0  # keys and values that come from host memory
    host: int = 0  # keys and values that the host attends to in place
    experts: int = 0  # all experts of a mixture, not among `here`
    used: float = 1.0  # share of them that one row needs

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
    ) -> "PassReads":
        """The reads for a cache of `kv` bytes.

        Args:
            resident: number of its layers on the device; None: all.
            attended: share of the other layers' bytes that the host attends to.
            windowed: number of layers with a window, which are always on the device; `windows`: their bytes.
            experts: bytes among `weights` of which a row needs the share `used`.
        """
        away = 0 if resident is None or layers == windowed else kv - kv * resident // (layers - windowed)
        host = round(attended * away)
        return cls(layers, weights - experts + windows + kv - away, away - host, host, experts, used)


def fixed_seconds(device: str, num_layers: int) -> float:
    """Seconds of a pass that do not depend on what it reads."""
    return LAYER_OVERHEAD[device] * num_layers


def pass_cost(device: str, reads: PassReads, rates: Bandwidths) -> PassCost:
    """Fixed cost, plus the slowest of three that run in parallel: device, link and host.

    Further rows make the device's part longer; the link carries the same bytes for one row and for many. Without a link
    (a processor has only one memory) everything is read here.
    """
    fixed, here = fixed_seconds(device, reads.layers), reads.here
    here += 0 if rates.link else reads.link
    here += 0 if rates.host else reads.host
    carried = reads.link / rates.link.value if rates.link else 0.0
    attended = reads.host / rates.host.value if rates.host else 0.0
    beside = fixed + max(carried, attended) if max(carried, attended) else 0.0
    experts = reads.experts / rates.memory.value
    return PassCost(fixed + here / rates.memory.value, ROW_SLOPE[device], beside, experts, reads.used)


def measure_bandwidth(device: torch.device, size_bytes: int = 256 << 20) -> float:
    """Bytes per second at which matmuls of one row read a matrix larger than any cache; the median of five."""
    matrix = torch.ones(size_bytes // 4 // 1024, 1024, device=device)
    return matrix.numel() * 4 / _product_seconds(matrix, torch.ones(1024, 1, device=device))


def measure_flops(device: torch.device, size: int = 1024) -> float:
    """Operations per second of square products in float32; the median of five."""
    matrix = torch.ones(size, size, device=device)
    return 2 * float(size) ** 3 / _product_seconds(matrix, matrix)


def _product_seconds(left: Tensor, right: Tensor) -> float:
    """The median of five; the first product warms up."""
    seconds = []
    for _ in range(6):
        _wait(left.device)
        started = time.perf_counter()
        left @ right
        _wait(left.device)
        seconds.append(time.perf_counter() - started)
    return sorted(seconds[1:])[2]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_link(device: torch.device, size_bytes: int | None = None) -> Choice[float]:
    """Bytes per second of a plain copy from host memory to a device; the median of five.

    From pinned memory to a GPU, or from pageable memory if pinning is refused. On a processor: of a copy within RAM.
    """
    rate, refused = link_rate(device, size_bytes or LINK_BYTES)
    because = "a copy from pinned memory" if not refused else f"a copy from pageable memory: {refused}"
    if device.type == "cpu":
        because = "a copy within memory: there is no GPU"
    return Choice(rate, f"measured here, {because}")


class Sharing(NamedTuple):
    """Seconds for one block of keys and values, with link and host working at the same time."""

    link: float  # to carry it to the device
    host: float  # to attend to it in host memory


def share_of(seconds: Sharing) -> Choice[float | None]:
    """The host's share of the blocks with which link and host end together; 0 if that saves less than a tenth.

    With a share s the link needs (1 - s) of its time and the host s of its own, in parallel.
    """
    best = seconds.link / (seconds.link + seconds.host)
    share = min(MOST_CPU_SHARE, round(int(best / SHARE_STEP + 1e-9) * SHARE_STEP, 2))
    times = f"the link carries a block in {1e3 * seconds.link:.3g} ms, the host attends to it in "
    times += f"{1e3 * seconds.host:.3g} ms"
    if share < LEAST_GAIN:
        return Choice(0.0, f"measured: {times}, so sharing would save less than {LEAST_GAIN:.0%}")
    return Choice(share, f"measured: {times}, so both end together")


def measure_sharing(piece: Sequence[int], num_heads: int, dtype: torch.dtype, device: torch.device) -> Sharing:
    """Time a link that carries blocks while the host attends to others of the same shape with a round's queries.

    Args:
        piece: shape of a block, [2, H_kv, R, D].
    Raises:
        torch.OutOfMemoryError: the device has no room for one block.
    Cost: SHARING_BYTES of host memory for a moment, and four readings of it; medians of three.
    """
    size_bytes = dtype.itemsize * torch.Size(piece).numel()
    memory = HostRows((max(1, SHARING_BYTES // size_bytes), *piece), dtype, device)
    blocks, slot = memory.rows.fill_(0.01), torch.empty(tuple(piece), dtype=dtype, device=device)
    helper = HostAttention(num_heads, piece[-1], SHARING_ROWS, dtype, device)
    q = torch.full((1, num_heads, SHARING_ROWS, piece[-1]), 0.01, dtype=dtype, device=device)
    beside = _beside_on_cuda if device.type == "cuda" else _one_after_the_other
    taken = [beside(blocks, slot, helper, q) for _ in range(4)]
    link, host = (sorted(seconds)[1] for seconds in zip(*taken[1:], strict=True))
    return Sharing(link / len(blocks), host / len(blocks))


def _beside_on_cuda(blocks: Tensor, slot: Tensor, helper: HostAttention, q: Tensor) -> Sharing:
    """All blocks by each of both, started together."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    stream = torch.cuda.Stream(slot.device)  # type: ignore[no-untyped-call]
    _wait(slot.device)
    started = time.perf_counter()
    helper.ask(q, blocks, 1.0)
    with torch.cuda.stream(stream):
        start.record(stream)
        for block in blocks:
            slot.copy_(block, non_blocking=True)
        stop.record(stream)
    helper.answer()
    host = time.perf_counter() - started
    _wait(slot.device)
    return Sharing(start.elapsed_time(stop) / 1e3, host)


def _one_after_the_other(blocks: Tensor, slot: Tensor, helper: HostAttention, q: Tensor) -> Sharing:
    started = time.perf_counter()
    for block in blocks:
        slot.copy_(block)
    copied = time.perf_counter()
    helper.ask(q, blocks, 1.0)
    helper.answer()
    return Sharing(copied - started, time.perf_counter() - copied)
