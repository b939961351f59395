"""Attention through torch's FlexAttention (arXiv 2412.05496), compiled for a GPU. Only used if the user asks for it.

Compiling takes from seconds to a minute at every start, so it is never the default. The kernel attends to all cached
keys without a mask and splits them where there are few queries; stock operations attend to the newest tokens.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from core.ops.attention import Partial, attend, attend_reference, merged_attend, partial
from core.ops.kernel_build import NoKernel

MOST_VARIANTS = 64  # that torch may compile
MOST_ROWS = 128  # per KV head: longer passes are prompts, for which stock kernels are better
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 2e-2}


class FlexAttention:
    """`attention.attend` and `attention.partial` in passes of few rows; prompts through stock operations."""

    def __init__(self, call: Callable[..., Any]) -> None:
        """`call`: `torch.nn.attention.flex_attention.flex_attention`, compiled."""
        from torch.nn.attention.flex_attention import AuxRequest

        self._call, self._wanted = call, AuxRequest(lse=True)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
        """Causal attention; shapes as in `attention.attend`."""
        if _fits(q, k):
            return merged_attend(q, k, v, scaling, self.partial)
        return attend(q, k, v, scaling)

    def partial(self, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Partial:
        """Attention to all keys given, with its log-sum-exp; shapes as in `attention.partial`."""
        if not _fits(q, k):
            return partial(q, k, v, scaling)
        batch, heads, num_new, dim = q.shape
        folded = q.reshape(batch, k.shape[1], -1, dim)  # the group's queries become rows: K and V are read once
        out, aux = self._call(folded, k, v, scale=scaling, return_aux=self._wanted)
        return Partial(out.reshape(batch, heads, num_new, dim), aux.lse.reshape(batch, heads, num_new).float())


def _fits(q: Tensor, k: Tensor) -> bool:
    dim = q.shape[-1]
    few = q.shape[2] * (q.shape[1] // k.shape[1]) <= MOST_ROWS
    return few and k.shape[2] > 1 and dim >= 16 and dim & (dim - 1) == 0


def flex_attention(device: torch.device, dtype: torch.dtype) -> FlexAttention:
    """FlexAttention, compiled (seconds to a minute) and checked against the slow twin on this device.

    Raises:
        NoKernel: it is not available here; the message says why.
    """
    if device.type != "cuda":  # torch 2.13: "return_lse is not supported yet"
        raise NoKernel("torch compiles FlexAttention with its log-sum-exp for GPUs only")
    try:
        from torch.nn.attention.flex_attention import flex_attention as interpreted
    except ImportError:
        raise NoKernel("this torch has no FlexAttention") from None
    # One variant for each kind of shape. Beyond the limit torch would silently interpret the unfused operation
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_VARIANTS)
    kernel = FlexAttention(torch.compile(interpreted, dynamic=True, fullgraph=True))
    check(kernel, device, dtype)
    return kernel


def check(kernel: FlexAttention, device: torch.device, dtype: torch.dtype) -> None:
    """Compare with the slow twin.

    Raises:
        NoKernel: it does not run or gives wrong results.
    """
    generator = torch.Generator().manual_seed(0)
    for num_new in (1, 9):
        q = torch.randn(1, 4, num_new, 64, generator=generator).to(device, dtype)
        k, v = torch.randn(2, 1, 2, 700 + num_new, 64, generator=generator).to(device, dtype)
        try:
            with torch.inference_mode():
                found = kernel(q, k, v, 0.125)
        except Exception as error:  # a compiler and its tool chain may raise anything
            first = (str(error).splitlines() or [""])[0]
            raise NoKernel(f"FlexAttention does not compile here ({type(error).__name__}: {first})") from error
        if not torch.allclose(found.float(), attend_reference(q, k, v, 0.125).float(), atol=TOLERANCE[dtype]):
            raise NoKernel("FlexAttention gives wrong results on this device")
