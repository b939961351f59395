"""Linear layers whose weights are kept in 8 or 4 bits.

By bitsandbytes they are widened for each multiplication; on a GPU with torch's own kernel for 4 bits they are not
(`core.models.self_draft.SelfDraftLinear`, groups of 64 with a scale and an offset instead of NF4).

Only weights are quantised: a row's result does not depend on the rows beside it, so that verifying many tokens at
once and decoding one by one follow the same distribution, and texts are exact for the quantised model. (LLM.int8()
picks outlier columns from all rows of a pass together, arXiv 2208.07339, and so has no distribution of its own.) This
saves memory; time only where nothing is widened.
"""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from core.errors import UnsupportedModel

BLOCK = 64  # parameters that share a scale in 4 bits (arXiv 2305.14314)
FORMATS = {8: "int8", 4: "nf4"}


def bitsandbytes() -> ModuleType:
    """The package, imported only when it is needed.

    Raises:
        UnsupportedModel: it is not installed.
    """
    try:
        return importlib.import_module("bitsandbytes.functional")
    except ImportError as error:
        raise UnsupportedModel(
            "Weights of 8 or 4 bits need the package bitsandbytes, which is not installed.",
            hint="Install it (pip install bitsandbytes), or leave out --bits.",
        ) from error


class QuantisedLinear(nn.Module):
    """`nn.Linear` with weights of 8 bits, one scale a row, or of 4 (NF4), one scale for 64 parameters."""

    def __init__(self, linear: nn.Linear, bits: int, device: torch.device) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bits = linear.in_features, linear.out_features, bits
        self.bias = linear.bias
        self._functions = bitsandbytes()
        weight = linear.weight.data.to(device)
        if bits == 8:  # [O, I] int8, [O] float32; the kernel takes float16
            packed, scale, _ = self._functions.int8_vectorwise_quant(weight.half())
            self._state: Any = None
        else:  # [O * I / 2, 1] uint8
            packed, self._state = self._functions.quantize_4bit(weight, blocksize=BLOCK, quant_type="nf4")
            scale = self._state.absmax
        self.packed = nn.Parameter(packed, requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)

    def weight_as(self, dtype: torch.dtype) -> Tensor:
        """The weights used in the multiplication, [O, I]."""
        if self.bits == 8:
            return self.packed.to(dtype) * (self.scale / 127)[:, None].to(dtype)
        widened: Tensor = self._functions.dequantize_4bit(self.packed.data, self._state)
        return widened.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., I] to [..., O]."""
        return functional.linear(x, self.weight_as(x.dtype), self.bias)


def quantise(module: nn.Module, quantised: Callable[[nn.Linear], nn.Module]) -> None:
    """Replace the linear layers of a model in place, except the output layer, one by one."""
    output = module.get_output_embeddings()  # type: ignore[operator]
    for parent in list(module.modules()):
        for name, part in list(parent.named_children()):
            if type(part) is nn.Linear and part is not output:
                setattr(parent, name, quantised(part))
