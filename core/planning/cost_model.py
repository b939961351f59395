"""What a pass should cost, from bytes, rates and rows: `doctor` shows it, and benchmarks are compared with it.

A pass reads its weights and its keys and values once, computes for each row, and pays a fixed overhead per layer. These
are predictions, never results; the same function, with nominal rates, also shapes the rounds of sampled texts. What
products and attention reach on this processor, the speed of the link and of the host's attention beside it are
measured, and the host's share follows from both.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

from core.caches.base import KVShape
from core.config import MOST_CPU_SHARE, MOST_GUESSES
from core.decoding.adaptive import PassCost
from core.ops.attention import attend
from core.ops.host_attention import HostAttention
from core.ops.kernel import small_rows
from core.ops.kernel_build import NoKernel
from core.ops.kernel_structs import LinearSizes
from core.ops.link import LINK_BYTES, link_rate
from core.ops.native import KEPT_AS, SmallRows
from core.ops.transfer import HostRows
from core.planning.choices import Choice
from core.planning.machine_spec import Bandwidths, RowCosts

# Fixed cost of a layer in a pass, in seconds: norms, rotations, small products, calls. CPU: what SmolLM2 and
# Qwen2.5-Coder-0.5B take beyond their bytes on two server cores; CUDA: eager launches.
LAYER_OVERHEAD = {"cpu": 2e-4, "cuda": 2.5e-4}
# What is measured of a processor: products with weights of so many bytes, and attention to so many numbers, more than
# its caches hold; of one row and of several
PROBED_BYTES, PROBED_WIDTH, PROBED_NUMBERS, PROBED_KV_HEADS, PROBED_DIM = 128 << 20, 1024, 24 << 20, 2, 128
PROBED_ROWS, PROBED_GROUP, PROBES = 9, 4, 3
AGAIN_SECONDS = 60.0
SHARING_BYTES = 256 << 20  # of blocks, more than processor caches hold
SHARING_ROWS = MOST_GUESSES + 1  # of a round's verification: rounds are long where the link limits a pass
LEAST_GAIN = 0.1  # of the link's time: a smaller gain is not worth a thread
SHARE_STEP = 0.05  # shares are multiples of it, so that most starts on one machine choose the same share


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


def fixed_seconds(device: str, num_layers: int) -> float:
    """Seconds of a pass that depend neither on what it reads nor on its rows."""
    return LAYER_OVERHEAD[device] * num_layers


def pass_cost(device: str, reads: PassReads, rates: Bandwidths) -> PassCost:
    """Fixed cost, plus the slowest of three that run in parallel: device, link and host.

    Further rows make the device's part longer: products by a share of their weights, attention by the work of their
    query heads. The link carries the same bytes for one row and for many. Without a link (a processor has only one
    memory) everything is read here.
    """
    fixed, weights = fixed_seconds(device, reads.layers), reads.weights / rates.memory.value
    kv = reads.kv + (0 if rates.link else reads.link) + (0 if rates.host else reads.host)
    numbers = kv / reads.number_bytes
    attending = numbers * rates.rows.attended * reads.group
    base = fixed + weights + kv / rates.memory.value + numbers * rates.rows.number + attending
    further = rates.rows.product * weights + attending
    carried = reads.link / rates.link.value if rates.link else 0.0
    attended = reads.host / rates.host.value if rates.host else 0.0
    beside = fixed + max(carried, attended) if max(carried, attended) else 0.0
    return PassCost(base, further / base, beside, reads.experts / rates.memory.value, reads.used)


# -------------------- measuring the processor


class Processor:
    """What products and attention of passes reach on this processor, measured as passes compute them.

    Of each measurement the least time counts that was ever seen, because other work only makes it longer.
    """

    def __init__(self) -> None:
        self._least: dict[str, float] = {}
        self._measured, self._flops, self._lock = -math.inf, 0.0, threading.Lock()

    def rates(self) -> Bandwidths:
        """Its rates. Cost: a third of a second at first, then again at most once a minute."""
        with self._lock:
            self._look()
            return rates_from(self._least, self._number_bytes)

    def flops(self) -> float:
        """Operations per second of square products in float32. Cost: as `rates`, together with it."""
        with self._lock:
            self._look()
            return self._flops

    def _look(self) -> None:
        if time.monotonic() - self._measured > AGAIN_SECONDS:
            self._measure()
            self._flops = max(self._flops, measure_flops(torch.device("cpu")))
            self._measured = time.monotonic()

    def _measure(self) -> None:
        try:
            kernel: SmallRows | None = small_rows()
        except NoKernel:
            kernel = None
        heads, dim, kept = PROBED_KV_HEADS, PROBED_DIM, torch.float32 if kernel is None else torch.float16
        self._number_bytes = kept.itemsize
        k, v = torch.full((2, 1, heads, PROBED_NUMBERS // (2 * heads * dim), dim), 0.01, dtype=kept)
        if kernel is None:
            weights = torch.full((PROBED_BYTES // 4 // PROBED_WIDTH, PROBED_WIDTH), 0.01)
            product, attention = partial(functional.linear, weight=weights), cast(Any, attend)
        else:
            outs = PROBED_BYTES // 2 // PROBED_WIDTH
            panels = torch.full((outs // kernel.panel, PROBED_WIDTH, kernel.panel), 0.01, dtype=torch.bfloat16)
            layer = LinearSizes(panels.data_ptr(), None, PROBED_WIDTH, outs, KEPT_AS.index(torch.bfloat16))
            product, attention = partial(kernel.product, layer=layer), kernel
        for rows in (1, PROBED_ROWS):
            x, q = torch.full((rows, PROBED_WIDTH), 0.01), torch.full((1, heads * PROBED_GROUP, rows, dim), 0.01)
            with torch.inference_mode():
                self._probe(f"product {rows}", partial(product, x))
                self._probe(f"attention {rows}", partial(attention, q, k, v, dim**-0.5))

    def _probe(self, name: str, run: Callable[[], object]) -> None:
        for _ in range(PROBES):
            started = time.perf_counter()
            run()
            self._least[name] = min(self._least.get(name, math.inf), time.perf_counter() - started)


def rates_from(seconds: Mapping[str, float], number_bytes: int) -> Bandwidths:
    """The rates of a processor by what `Processor` measures."""
    product, products = seconds["product 1"], seconds[f"product {PROBED_ROWS}"]
    memory, further = PROBED_BYTES / product, PROBED_ROWS - 1
    one, several = (seconds[f"attention {rows}"] / PROBED_NUMBERS for rows in (1, PROBED_ROWS))
    attended = max(0.0, several - one) / (further * PROBED_GROUP)
    number = max(0.0, one - number_bytes / memory - attended * PROBED_GROUP)
    rows = RowCosts(max(0.0, products / product - 1) / further, number, attended)
    return Bandwidths(Choice(memory, "measured on this processor"), None, rows=rows)


PROCESSOR = Processor()


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


def measure_sharing(
    piece: Sequence[int],
    num_heads: int,
    chunk_size: int,
    dtype: torch.dtype,
    device: torch.device,
    size_bytes: int | None = None,
) -> Sharing:
    """Time a link that carries blocks while the host attends to others of the same shape with a round's queries.

    As in a pass: each gets as many blocks as let both end together, by the measurement before, so that host memory
    serves both all the time.

    Args:
        piece: shape of a block, [2, H_kv, R, D].
        chunk_size: keys of a chunk; what the rows attend to is counted by chunks, as in passes.
        size_bytes: of all blocks; None: SHARING_BYTES.
    Raises:
        torch.OutOfMemoryError: the device has no room for one block.
    Cost: that much host memory for a moment, and at most six readings of it; medians of the last three.
    """
    count = (size_bytes or SHARING_BYTES) // (dtype.itemsize * torch.Size(piece).numel())
    memory = HostRows((max(2, count), *piece), dtype, device)
    blocks, slot = memory.rows.fill_(0.01), torch.empty(tuple(piece), dtype=dtype, device=device)
    helper = HostAttention(num_heads, piece[-1], SHARING_ROWS, device)
    q = torch.full((1, num_heads, SHARING_ROWS, piece[-1]), 0.01, dtype=dtype, device=device)
    beside = _beside_on_cuda if device.type == "cuda" else _one_after_the_other
    taken = [Sharing(1.0, 1.0)]
    for _ in range(6):
        link, host = taken[-1]
        helped = min(max(1, round(len(blocks) * link / (link + host))), len(blocks) - 1)
        link, host = beside(blocks[helped:], blocks[:helped], slot, helper, q, chunk_size)
        taken.append(Sharing(link / (len(blocks) - helped), host / helped))
    link, host = (sorted(seconds)[1] for seconds in zip(*taken[-3:], strict=True))
    return Sharing(link, host)


def _beside_on_cuda(
    carried: Tensor, attended: Tensor, slot: Tensor, helper: HostAttention, q: Tensor, chunk_size: int
) -> Sharing:
    """Started together."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    stream = torch.cuda.Stream(slot.device)  # type: ignore[no-untyped-call]
    _wait(slot.device)
    started = time.perf_counter()
    helper.ask(q, attended, 1.0, chunk_size=chunk_size)
    with torch.cuda.stream(stream):
        start.record(stream)
        for block in carried:
            slot.copy_(block, non_blocking=True)
        stop.record(stream)
    helper.answer()
    host = time.perf_counter() - started
    _wait(slot.device)
    return Sharing(start.elapsed_time(stop) / 1e3, host)


def _one_after_the_other(
    carried: Tensor, attended: Tensor, slot: Tensor, helper: HostAttention, q: Tensor, chunk_size: int
) -> Sharing:
    started = time.perf_counter()
    for block in carried:
        slot.copy_(block)
    copied = time.perf_counter()
    helper.ask(q, attended, 1.0, chunk_size=chunk_size)
    helper.answer()
    return Sharing(copied - started, time.perf_counter() - copied)
