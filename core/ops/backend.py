"""Chooses the code that computes attention, once, by measurement, with the reason."""

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from core.config import ATTENTIONS, AttentionWish
from core.errors import NotPossibleHere
from core.ops.attention import attend
from core.ops.kernel import small_rows
from core.ops.kernel_build import NoKernel
from core.ops.native import SmallRows
from core.ops.threads import process_threads

log = logging.getLogger(__name__)

Attend = Callable[[Tensor, Tensor, Tensor, float], Tensor]  # q, k, v, scaling; see `attention.attend`
# A verification pass over a short book: 12 MB of keys and values, more than most second-level caches hold.
HEADS, KEYS, ROWS, DIM = 6, 4096, 9, 64
PROMPT_ROWS = 256  # of a piece of a prompt
REPEATS = 7
TORCH, COMPILED = ATTENTIONS[1:]


class Backend(NamedTuple):
    """How caches attend, and what computes the layers of models on a processor."""

    name: str
    attend: Attend
    because: str
    kernel: SmallRows | None = None  # also computes linear layers, norms and SiLU; None: torch does


STOCK = Backend(TORCH, attend, "torch's own operations")


def choose_backend(device: torch.device, dtype: torch.dtype, wish: AttentionWish = "auto") -> Backend:
    """The wanted backend, or by default the faster of stock operations and the optional kernel here.

    Cost: 0.3 s, and compiling the first time.

    Raises:
        InvalidSetting: the wanted backend is not available here.
    """
    if wish == TORCH:
        return STOCK._replace(because="asked for")
    try:
        compiled = backend_named(COMPILED, device, dtype)
    except NoKernel as reason:
        if wish == COMPILED:
            raise NotPossibleHere(
                f"--attention {wish} is not usable here: {reason}.",
                hint="Leave it out: then the fastest that works here is taken.",
            ) from reason
        log.info("attention by torch: %s", reason)
        return STOCK._replace(because=str(reason))
    stock, own = _seconds(ROWS, attend, compiled.attend)
    gain = f"{stock / own:.1f}x the speed of torch's for {ROWS} rows, measured"
    if wish == COMPILED:
        return compiled._replace(because=f"asked for: {gain}")
    return compiled._replace(because=gain) if own < stock else STOCK._replace(because=f"the compiled kernel has {gain}")


def backend_named(name: str, device: torch.device, dtype: torch.dtype) -> Backend:
    """The backend that another process of this machine has chosen, or that the user wants.

    Raises:
        NoKernel: it is not available here.
    """
    if name == TORCH:
        return STOCK
    if device.type != "cpu" or dtype != torch.float32:
        raise NoKernel("the compiled kernel computes in float32 on a processor only")
    kernel = small_rows()
    stock, other = _seconds(PROMPT_ROWS, attend, kernel)
    kernel.reads_prompts = other < stock
    return Backend(name, kernel, "chosen by the first process", kernel=kernel)


def _seconds(rows: int, *candidates: Attend) -> list[float]:
    """Least time of each candidate, measured in turns: other work only adds to it."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, HEADS, rows, DIM, generator=generator)
    k, v = torch.randn(2, 1, HEADS, KEYS, DIM, generator=generator)
    times: list[list[float]] = [[] for _ in candidates]
    for _ in range(REPEATS + 1):  # the first is warm-up
        for candidate, taken in zip(candidates, times, strict=True):
            process_threads().lend()  # both with as many
            started = time.perf_counter()
            with torch.inference_mode():
                candidate(q, k, v, DIM**-0.5)
            taken.append(time.perf_counter() - started)
    return [min(taken[1:]) for taken in times]
