"""Chooses the code that computes attention, once, by measurement, with the reason."""

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from core.config import ATTENTIONS, AttentionWish
from core.errors import NotPossibleHere
from core.ops.attention import Partial, attend, partial
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
TORCH, COMPILED, FLASH = ATTENTIONS[1:]


PartialAttend = Callable[[Tensor, Tensor, Tensor, float], Partial]  # see `attention.partial`


class Backend(NamedTuple):
    """How caches attend, and what computes the layers of models on a processor."""

    name: str
    attend: Attend
    because: str
    partial: PartialAttend = partial  # attention to a part of the keys, with its log-sum-exp
    kernel: SmallRows | None = None  # also computes linear layers, norms and SiLU; None: torch does


STOCK = Backend(TORCH, attend, "torch's own operations")


def choose_backend(device: torch.device, dtype: torch.dtype, wish: AttentionWish = "auto") -> Backend:
    """The wanted backend, or by default the faster of stock operations and the optional kernel here.

    Cost: 0.3 s, and compiling the first time.

    Raises:
        InvalidSetting: the wanted backend is not available here.
    """
    if wish != "auto":
        return _asked_for(wish, device, dtype)
    if device.type == "cuda":
        return choose_flash(device, dtype)
    if dtype != torch.float32:
        return STOCK._replace(because="the compiled kernel computes in float32 only")
    try:
        kernel = small_rows()
    except NoKernel as reason:
        log.info("attention by torch: %s", reason)
        return STOCK._replace(because=str(reason))
    kernel.reads_prompts = _reads_prompts_faster(kernel)
    return _faster(Backend(COMPILED, kernel, "", kernel=kernel), device, dtype)


def _reads_prompts_faster(kernel: SmallRows) -> bool:
    stock, other = _seconds(torch.device("cpu"), torch.float32, PROMPT_ROWS, attend, kernel)
    return other < stock


def choose_flash(device: torch.device, dtype: torch.dtype) -> Backend:
    """The faster of stock operations and flash-attn."""
    if dtype not in (torch.float16, torch.bfloat16):
        return STOCK._replace(because="flash-attn computes in 16 bit only")
    from core.ops.flash import flash_attention

    try:
        kernel = flash_attention(device, dtype)
    except NoKernel as reason:
        log.info("attention by torch: %s", reason)
        return STOCK._replace(because=str(reason))
    return _faster(Backend(FLASH, kernel, "", partial=kernel.partial), device, dtype)


def _asked_for(wish: AttentionWish, device: torch.device, dtype: torch.dtype) -> Backend:
    try:
        chosen = backend_named(wish, device, dtype)
    except NoKernel as reason:
        raise NotPossibleHere(
            f"--attention {wish} is not usable here: {reason}.",
            hint="Leave it out: then the fastest that works here is taken.",
        ) from reason
    gain = "" if wish == TORCH else f": {_gain(chosen, device, dtype)[1]}"
    return chosen._replace(because=f"asked for{gain}")


def _faster(candidate: Backend, device: torch.device, dtype: torch.dtype) -> Backend:
    is_faster, gain = _gain(candidate, device, dtype)
    return (
        candidate._replace(because=gain)
        if is_faster
        else STOCK._replace(because=f"the {candidate.name} kernel has {gain}")
    )


def _gain(candidate: Backend, device: torch.device, dtype: torch.dtype) -> tuple[bool, str]:
    stock, other = _seconds(device, dtype, ROWS, attend, candidate.attend)
    return other < stock, f"{stock / other:.1f}x the speed of torch's for {ROWS} rows, measured"


def backend_named(name: str, device: torch.device, dtype: torch.dtype) -> Backend:
    """The backend that another process of this machine has chosen, or that the user wants.

    Raises:
        NoKernel: it is not available here.
    """
    because = "chosen by the first process"
    if name == TORCH:
        return STOCK
    if name == FLASH and dtype not in (torch.float16, torch.bfloat16):
        raise NoKernel("flash-attn computes in 16 bit only")
    if name == FLASH:
        from core.ops.flash import flash_attention

        parts = flash_attention(device, dtype)
        return Backend(name, parts, because, partial=parts.partial)
    if device.type != "cpu" or dtype != torch.float32:
        raise NoKernel("the compiled kernel computes in float32 on a processor only")
    kernel = small_rows()
    kernel.reads_prompts = _reads_prompts_faster(kernel)
    return Backend(name, kernel, because, kernel=kernel)


def _seconds(device: torch.device, dtype: torch.dtype, rows: int, *candidates: Attend) -> list[float]:
    """Least time of each candidate, measured in turns: other work only adds to it."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, HEADS, rows, DIM, generator=generator).to(device, dtype)
    k, v = torch.randn(2, 1, HEADS, KEYS, DIM, generator=generator).to(device, dtype)
    times: list[list[float]] = [[] for _ in candidates]
    for _ in range(REPEATS + 1):  # the first is warm-up
        for candidate, taken in zip(candidates, times, strict=True):
            if device.type == "cpu":
                process_threads().lend()  # both with as many
            started = time.perf_counter()
            with torch.inference_mode():
                candidate(q, k, v, DIM**-0.5)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            taken.append(time.perf_counter() - started)
    return [min(taken[1:]) for taken in times]
