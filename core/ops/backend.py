"""Which code computes attention, chosen once by measurement, with the reason."""

import logging
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from core.ops.attention import attend
from core.ops.native import NoKernel, small_rows

log = logging.getLogger(__name__)

Attend = Callable[[Tensor, Tensor, Tensor, float], Tensor]  # q, k, v, scaling; see `attention.attend`
# A verification pass over a short book: keys and values of 12 MB, which stay out of most second-level caches.
HEADS, KEYS, ROWS, DIM = 6, 4096, 9, 64
REPEATS = 7


class Backend(NamedTuple):
    """How caches attend, and how models multiply by weights in passes of few rows."""

    name: str
    attend: Attend
    because: str
    linear: Callable[[Tensor, Tensor], Tensor] | None = None  # x [..., I], weight [O, I]; None: torch's


STOCK = Backend("torch", attend, "torch's own operations")


def choose_backend(device: torch.device, dtype: torch.dtype) -> Backend:
    """The faster of stock operations and the optional kernel here. Cost: 0.1 s, and compiling the first time."""
    if device.type != "cpu":
        return STOCK
    if dtype != torch.float32:
        return STOCK._replace(because="the compiled kernel computes in float32 only")
    try:
        kernel = small_rows()
    except NoKernel as reason:
        log.info("attention by torch: %s", reason)
        return STOCK._replace(because=str(reason))
    stock, compiled = _seconds(attend, kernel)
    gain = f"{stock / compiled:.1f}x the speed of torch's for {ROWS} rows, measured"
    return (
        Backend("compiled", kernel, gain, kernel.linear)
        if compiled < stock
        else STOCK._replace(because=f"the kernel has {gain}")
    )


def backend_named(name: str) -> Backend:
    """What another process of this machine has chosen.

    Raises:
        NoKernel: it cannot be had here.
    """
    if name == STOCK.name:
        return STOCK
    kernel = small_rows()
    return Backend(name, kernel, "chosen by the first process", kernel.linear)


def _seconds(*candidates: Attend) -> list[float]:
    """Median time of each, taken in turns so that a busy moment hits all alike."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, HEADS, ROWS, DIM, generator=generator)
    k, v = torch.randn(2, 1, HEADS, KEYS, DIM, generator=generator)
    times: list[list[float]] = [[] for _ in candidates]
    for _ in range(REPEATS + 1):  # the first is warm-up
        for candidate, taken in zip(candidates, times, strict=True):
            started = time.perf_counter()
            candidate(q, k, v, DIM**-0.5)
            taken.append(time.perf_counter() - started)
    return [statistics.median(taken[1:]) for taken in times]
