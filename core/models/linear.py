"""Linear layers whose passes of few rows run through a kernel of ours; the same weights, the same shapes.

Decoding multiplies every weight with one to some twenty rows. Stock matmuls take twice as long for four rows as for one
and sum in another order, so that verified logits differ in their last bits from plain ones. The kernel does neither.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

# 2 cores, all weights of the bundled target, stock / kernel ms: 1 row 2.1 / 0.9, 9 rows 4.8 / 2.0, 33 rows 7.9 / 7.2.
MOST_ROWS = 32
LEAST_OUT = 8


class FewRowsLinear(nn.Module):
    """`nn.Linear` with another way for up to MOST_ROWS rows; float32 on CPU."""

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
