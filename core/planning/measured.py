"""Measured rates of this machine: its processor, and its link beside the host's attention.

Forecasts for this machine, and the host's share of the attention, rest on them.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

from core.config import MOST_CPU_SHARE, MOST_GUESSES
from core.ops.attention import attend, scaled_reference
from core.ops.host_attention import HostAttention
from core.ops.kernel import kernel_here
from core.ops.kernel_structs import LinearSizes
from core.ops.link import LINK_BYTES, link_rate
from core.ops.native import KEPT_AS
from core.ops.transfer import HostRows
from core.planning.choices import Choice
from core.planning.devices import Bandwidths, RowCosts

# What is measured of a processor: products with weights of so many bytes, and attention to so many numbers, more than
# its caches hold; of one row and of several
PROBED_BYTES, PROBED_WIDTH, PROBED_NUMBERS, PROBED_KV_HEADS, PROBED_DIM = 128 << 20, 1024, 24 << 20, 2, 128
PROBED_ROWS, PROBED_GROUP, PROBES = 9, 4, 3
AGAIN_SECONDS = 60.0
SHARING_BYTES = 256 << 20  # of blocks, more than processor caches hold
SHARING_ROWS = MOST_GUESSES + 1  # of a round's verification: rounds are long where the link limits a pass
LEAST_GAIN = 0.1  # of the link's time: a smaller gain is not worth a thread
SHARE_STEP = 0.05  # shares are multiples of it, so that most starts on one machine choose the same share


class Processor:
    """Rates of products and attention on this processor, measured with the code that passes use.

    The least time ever seen counts, because other work only makes it longer.
    """

    def __init__(self) -> None:
        self._least: dict[str, float] = {}
        self._measured, self._lock = -math.inf, threading.Lock()

    def rates(self) -> Bandwidths:
        """Its rates. Cost: a third of a second at first, then again at most once a minute."""
        with self._lock:
            if time.monotonic() - self._measured > AGAIN_SECONDS:
                self._measure()
                self._measured = time.monotonic()
            return rates_from(self._least, self._number_bytes)

    def _measure(self) -> None:
        kernel = kernel_here()
        heads, dim = PROBED_KV_HEADS, PROBED_DIM
        numbers = torch.full((2, 1, heads, PROBED_NUMBERS // (2 * heads * dim), dim), 0.01)
        if kernel is not None:
            numbers = scaled_reference(numbers) if kernel.scales(dim) else numbers.half()
        self._number_bytes, (k, v) = numbers.itemsize, numbers
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
        square = torch.ones(PROBED_WIDTH, PROBED_WIDTH)
        self._probe("square", lambda: square @ square)

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
    flops: Choice[float | None] = Choice(2 * PROBED_WIDTH**3 / seconds["square"], "by products that were measured here")
    return Bandwidths(Choice(memory, "measured on this processor"), None, rows=rows, products=flops)


PROCESSOR = Processor()


def measure_link(device: torch.device) -> Choice[float]:
    """Bytes per second of a plain copy from host memory to a device; the median of five.

    From pinned memory to a GPU, or from pageable memory if pinning is refused. On a processor: of a copy within RAM.
    """
    rate, refused = link_rate(device, LINK_BYTES)
    because = "a copy from pinned memory" if not refused else f"a copy from pageable memory: {refused}"
    if device.type == "cpu":
        because = "a copy within memory: there is no GPU"
    return Choice(rate, f"measured here, {because}")


class Sharing(NamedTuple):
    """Seconds for one block of keys and values, with link and host working at the same time."""

    link: float  # to carry it to the device
    host: float  # to attend to it in host memory
    alone: float  # to carry it while the host does nothing


def share_of(seconds: Sharing) -> Choice[float | None]:
    """The host's share of the blocks with which link and host end together; 0 if that saves less than a tenth.

    With a share s the link needs (1 - s) of its time and the host s of its own, in parallel; both read host memory, so
    what is saved is told by the link's time alone.
    """
    best = seconds.link / (seconds.link + seconds.host)
    share = min(MOST_CPU_SHARE, round(int(best / SHARE_STEP + 1e-9) * SHARE_STEP, 2))
    times = f"the link carries a block in {1e3 * seconds.alone:.3g} ms, in {1e3 * seconds.link:.3g} beside the host, "
    times += f"which attends to it in {1e3 * seconds.host:.3g} ms"
    if (1 - share) * seconds.link > (1 - LEAST_GAIN) * seconds.alone:
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

    As in a pass, each gets as many blocks as let both end together by the last measurement, so host memory serves both.

    Args:
        piece: shape of a block, [2, H_kv, R, D].
        chunk_size: keys of a chunk; what the rows attend to is counted by chunks, as in passes.
        size_bytes: of all blocks; None: SHARING_BYTES.
    Raises:
        torch.OutOfMemoryError: the device has no room for one block.
    Cost: that much host memory for a moment, and at most eight readings of it; medians of the last three.
    """
    count = (size_bytes or SHARING_BYTES) // (dtype.itemsize * torch.Size(piece).numel())
    memory = HostRows((max(2, count), *piece), dtype, device)
    blocks, slot = memory.rows.fill_(0.01), torch.empty(tuple(piece), dtype=dtype, device=device)
    helper = HostAttention(num_heads, piece[-1], SHARING_ROWS, device)
    q = torch.full((1, num_heads, SHARING_ROWS, piece[-1]), 0.01, dtype=dtype, device=device)

    def attend(some: Tensor) -> float:
        helper.ask(q, some, 1.0, chunk_size=chunk_size)
        helper.answer()
        return helper.seconds

    carry = _carry_on_cuda if device.type == "cuda" else _carry
    attend(blocks)  # the thread starts, and its memory grows
    alone, _ = carry(blocks, slot, lambda: 0.0)
    taken = [(alone / len(blocks), 1.0)]
    for _ in range(6):
        link, host = taken[-1]
        helped = min(max(1, round(len(blocks) * link / (link + host))), len(blocks) - 1)
        link, host = carry(blocks[helped:], slot, partial(attend, blocks[:helped]))
        taken.append((link / (len(blocks) - helped), host / helped))
    link, host = (sorted(seconds)[1] for seconds in zip(*taken[-3:], strict=True))
    return Sharing(link, host, alone / len(blocks))


def _carry_on_cuda(blocks: Tensor, slot: Tensor, beside: Callable[[], float]) -> tuple[float, float]:
    """Seconds of carrying blocks while something else runs, and what that returns."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    stream = torch.cuda.Stream(slot.device)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(slot.device)
    with torch.cuda.stream(stream):
        start.record(stream)
        for block in blocks:
            slot.copy_(block, non_blocking=True)
        stop.record(stream)
    found = beside()
    torch.cuda.synchronize(slot.device)
    return start.elapsed_time(stop) / 1e3, found


def _carry(blocks: Tensor, slot: Tensor, beside: Callable[[], float]) -> tuple[float, float]:
    """One after the other."""
    started = time.perf_counter()
    for block in blocks:
        slot.copy_(block)
    return time.perf_counter() - started, beside()
