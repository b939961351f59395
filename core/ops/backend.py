"""Chooses the code that computes attention, once, by measurement, with the reason."""

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from core.config import ATTENTIONS, AttentionWish
from core.errors import NotPossibleHere
from core.ops.attention import Partial, attend, attend_reference, partial
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
SIXTEEN_BITS = (torch.float16, torch.bfloat16)
MOST_DIM = 256  # head size; flash-attn's limit

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
    if wish == "auto":
        return fastest(FLASH if device.type == "cuda" else COMPILED, device, dtype)
    try:
        chosen = backend_named(wish, device, dtype)
    except NoKernel as reason:
        raise NotPossibleHere(
            f"--attention {wish} is not usable here: {reason}.",
            hint="Leave it out: then the fastest that works here is taken.",
        ) from reason
    gain = "" if wish == TORCH else f": {_gain(chosen, device, dtype)[1]}"
    return chosen._replace(because=f"asked for{gain}")


def fastest(name: str, device: torch.device, dtype: torch.dtype) -> Backend:
    """The faster of stock operations and a backend, if it is available here."""
    try:
        candidate = backend_named(name, device, dtype)
    except NoKernel as reason:
        log.info("attention by torch: %s", reason)
        return STOCK._replace(because=str(reason))
    is_faster, gain = _gain(candidate, device, dtype)
    return candidate._replace(because=gain) if is_faster else STOCK._replace(because=f"the {name} kernel has {gain}")


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
    if name == FLASH:
        flash = flash_attention(device, dtype)
        return Backend(name, flash, because, partial=flash.partial)
    if device.type != "cpu" or dtype != torch.float32:
        raise NoKernel("the compiled kernel computes in float32 on a processor only")
    kernel = small_rows()
    stock, other = _seconds(device, dtype, PROMPT_ROWS, attend, kernel)
    kernel.reads_prompts = other < stock
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


# -------------------- flash-attn, which is never required


class FlashAttention:
    """`attention.attend` and `attention.partial` in 16 bit by the package flash-attn; stock operations for other types.

    Its causal mask (arXiv 2307.08691) is aligned to the end of the keys: one call replaces two operations and a merge.
    """

    def __init__(self, package: Any) -> None:
        self._call = package.flash_attn_func

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
        """Causal attention; shapes as in `attention.attend`."""
        return self._run(q, k, v, scaling, causal=True).out if _fits(q) else attend(q, k, v, scaling)

    def partial(self, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Partial:
        """Attention to all keys given, with its log-sum-exp; shapes as in `attention.partial`."""
        return self._run(q, k, v, scaling, causal=False) if _fits(q) else partial(q, k, v, scaling)

    def _run(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, *, causal: bool) -> Partial:
        rows = (x.transpose(1, 2) for x in (q, k, v))  # [B, T or S, heads, D], the package's layout
        out, lse, _ = self._call(*rows, softmax_scale=scaling, causal=causal, return_attn_probs=True)
        return Partial(out.transpose(1, 2), lse)


def _fits(q: Tensor) -> bool:
    return q.dtype in SIXTEEN_BITS and q.shape[-1] <= MOST_DIM


def flash_attention(device: torch.device, dtype: torch.dtype) -> FlashAttention:
    """The package's attention, checked against the slow twin on this device.

    Raises:
        NoKernel: it is not available here; the message says why.
    """
    if dtype not in SIXTEEN_BITS:
        raise NoKernel("flash-attn computes in 16 bit only")
    try:
        import flash_attn
    except ImportError:
        raise NoKernel("flash-attn is not installed") from None
    kernel = FlashAttention(flash_attn)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 4, 3, 64, generator=generator).to(device, dtype)
    k, v = torch.randn(2, 1, 2, 700, 64, generator=generator).to(device, dtype)
    try:
        found = kernel(q, k, v, 0.125)
    except RuntimeError as error:  # built for other GPUs
        raise NoKernel(f"flash-attn does not run here: {str(error).splitlines()[0]}") from error
    if not torch.allclose(found.float(), attend_reference(q, k, v, 0.125).float(), atol=2e-2):
        raise NoKernel("flash-attn gives wrong results on this GPU")
    return kernel
