"""Attention through the flash-attn package, where it is installed (arXiv 2307.08691). Never required.

Its causal mask is aligned to the end of the keys, so one call replaces two stock operations and a merge.
"""

from typing import Any

import torch
from torch import Tensor

from core.ops.attention import Partial, attend, attend_reference, partial
from core.ops.kernel_build import NoKernel

MOST_DIM = 256  # head size; flash-attn's limit


class FlashAttention:
    """`attention.attend` and `attention.partial` in 16 bit; stock operations for other types."""

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
    return q.dtype in (torch.float16, torch.bfloat16) and q.shape[-1] <= MOST_DIM


def flash_attention(device: torch.device, dtype: torch.dtype) -> FlashAttention:
    """The package's attention, checked against the slow twin on this device.

    Raises:
        NoKernel: it is not available here; the message says why.
    """
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
