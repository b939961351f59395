"""Layers that compute passes of few rows with our kernel: linear, norm, SiLU; the same weights, the same shapes.

Decoding multiplies every weight with one to some twenty rows. Stock matmuls take twice as long for four rows as for one
and sum in another order, so that verified logits differ in their last bits from plain ones. The kernel avoids both.
A norm is five stock operations on a few hundred numbers, mostly call overhead (2 cores: 43 µs, 16 through the kernel).
torch's SiLU computes 32 numbers of a tensor at a time and the rest in another way. Where rows are not a multiple of 32
wide, a row's last bits therefore depend on the rows beside it.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from core.ops.native import LEAST_OUT, MOST_TOKENS

# 2 cores, all weights of the bundled target, stock / kernel ms: 1 row 2.1 / 0.9, 9 rows 4.8 / 2.0, 33 rows 7.9 / 7.2.
MOST_ROWS = MOST_TOKENS


class FewRowsLinear(nn.Module):
    """`nn.Linear` that uses the kernel for up to MOST_ROWS rows; float32 on CPU."""

    def __init__(self, linear: nn.Linear, few_rows: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self._few_rows = few_rows

    def forward(self, x: Tensor) -> Tensor:
        """x [..., I] to [..., O]."""
        if x.numel() > MOST_ROWS * self.in_features or x.dtype != torch.float32:
            return functional.linear(x, self.weight, self.bias)
        out = self._few_rows(x, self.weight)
        return out if self.bias is None else out + self.bias


def use_few_rows_linear(module: nn.Module, few_rows: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Replace the linear layers of a float32 model on CPU, in place."""
    for parent in list(module.modules()):
        for name, part in list(parent.named_children()):
            if type(part) is nn.Linear and part.out_features >= LEAST_OUT and part.weight.is_contiguous():
                setattr(parent, name, FewRowsLinear(part, few_rows))


class FewRowsNorm(nn.Module):
    """RMSNorm that uses the kernel for up to MOST_ROWS tokens; float32 on CPU."""

    def __init__(self, weight: nn.Parameter, eps: float, few_rows: Callable[[Tensor, Tensor, float], Tensor]) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = weight, eps
        self._few_rows = few_rows

    def forward(self, x: Tensor) -> Tensor:
        """x [..., D] to the same shape; hidden states [B, T, D] or queries or keys [B, T, H, D]."""
        if x.shape[: min(2, x.ndim - 1)].numel() <= MOST_ROWS and x.dtype == torch.float32:
            return self._few_rows(x, self.weight, self.variance_epsilon)
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def use_few_rows_norm(module: nn.Module, few_rows: Callable[[Tensor, Tensor, float], Tensor]) -> None:
    """Replace the norms of a float32 model on CPU, in place, if they compute what `FewRowsNorm` does.

    Families use similar names for different norms (Gemma multiplies by 1 + weight), so each one is tried.
    """
    generator = torch.Generator().manual_seed(0)
    for parent in list(module.modules()):
        for name, part in list(parent.named_children()):
            weight, eps = getattr(part, "weight", None), getattr(part, "variance_epsilon", None)
            if not type(part).__name__.endswith("RMSNorm") or not isinstance(weight, nn.Parameter) or eps is None:
                continue
            if weight.ndim != 1 or weight.dtype != torch.float32 or not weight.is_contiguous():
                continue
            ours = FewRowsNorm(weight, float(eps), few_rows)
            rows = torch.randn(2, weight.shape[0], generator=generator)
            with torch.inference_mode():
                if torch.allclose(part(rows), ours(rows), rtol=1e-5, atol=1e-6):
                    setattr(parent, name, ours)


class FewRowsSiLU(nn.Module):
    """SiLU that uses the kernel for up to MOST_ROWS rows; float32 on CPU."""

    def __init__(self, few_rows: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._few_rows = few_rows

    def forward(self, x: Tensor) -> Tensor:
        """x [..., I] to the same shape."""
        if x.numel() > MOST_ROWS * x.shape[-1] or x.dtype != torch.float32:
            return functional.silu(x)
        return self._few_rows(x)


def use_few_rows_silu(module: nn.Module, few_rows: Callable[[Tensor], Tensor]) -> None:
    """Replace the SiLU of torch and of transformers, in place."""
    for parent in list(module.modules()):
        for name, part in list(parent.named_children()):
            if type(part).__name__ in ("SiLU", "SiLUActivation"):
                setattr(parent, name, FewRowsSiLU(few_rows))
