"""A rank's share of a loaded model: linear layers cut in place, and sums over the ranks where shares must meet.

Megatron-LM's division (arXiv 1909.08053): projections to heads and MLP units give each rank its own outputs; the next
layers take these as inputs, and the ranks' results are summed. Two sums a layer are the only communication.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from core.errors import UnsupportedModel
from core.models.param_count import division_of, generic_name

Add = Callable[[Tensor], None]  # sums over all ranks in place; the same bits on each


class SharedInputs(nn.Module):
    """A linear layer of which each rank has some inputs: the ranks' results are summed, the bias is added once."""

    def __init__(self, linear: nn.Linear, add: Add) -> None:
        super().__init__()
        self.linear, self.bias = linear, linear.bias
        linear.register_parameter("bias", None)
        self._add = add

    def forward(self, x: Tensor) -> Tensor:
        """x [..., I / ranks] to [..., O], equal on every rank."""
        out: Tensor = self.linear(x)
        self._add(out)
        return out if self.bias is None else out + self.bias


def cut(module: nn.Module, rank: int, num_ranks: int, add: Add) -> None:
    """Keep one rank's share of the linear layers of a transformers model, in place.

    Heads must divide evenly (`core.planning.plan.make_plan`); MLP units need not.

    Raises:
        UnsupportedModel: a family that is not divided by heads, or an unknown linear layer.
    """
    model = cast(Any, module)
    base, division = cast(nn.Module, model.base_model), division_of(model.config)
    for name, part in list(base.named_modules()):
        if not isinstance(part, nn.Linear):
            continue
        how = division.get(generic_name(name))
        if how is None:
            raise UnsupportedModel(f"The layer {name} cannot be shared between GPUs.", hint="Leave out --gpus.")
        if how == "outputs":
            part.weight.data = _share(part.weight, rank, num_ranks, 0)
            if part.bias is not None:
                part.bias.data = _share(part.bias, rank, num_ranks, 0)
            part.out_features = part.weight.shape[0]
        else:
            part.weight.data = _share(part.weight, rank, num_ranks, 1)
            part.in_features = part.weight.shape[1]
            parent, _, child = name.rpartition(".")
            setattr(base.get_submodule(parent), child, SharedInputs(part, add))


def _share(weight: Tensor, rank: int, num_ranks: int, dim: int) -> Tensor:
    """A copy, so that the rest can be freed."""
    return torch.tensor_split(weight.data, num_ranks, dim)[rank].clone(memory_format=torch.contiguous_format)
