"""The experts of a mixture: each layer has many, and a token passes through few of them."""

from dataclasses import dataclass
from typing import Any, cast

from torch import nn
from transformers import PreTrainedConfig

PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk")


@dataclass(frozen=True, slots=True)
class Experts:
    """What a model keeps in experts; those that every token passes through are not counted."""

    parameters: int  # of all experts in all layers
    used: float  # share of a layer's experts that one token passes through

    @property
    def active(self) -> int:
        """Parameters that one token passes through."""
        return round(self.parameters * self.used)


def experts_of(module: nn.Module, config: PreTrainedConfig) -> Experts | None:
    """The experts of a model, with memory or without; None: it has none, or does not say how many a token uses."""
    tensors = [(name, part) for name, part in module.named_parameters() if "experts" in name.split(".")]
    stacked = [len(part) for _, part in tensors if part.dim() == 3]
    per_token: Any = next((found for name in PER_TOKEN if (found := getattr(config, name, None))), None)
    if not stacked or per_token is None:
        return None
    used = max(cast("list[int]", per_token)) if isinstance(per_token, list) else int(per_token)
    return Experts(sum(part.numel() for _, part in tensors), min(1.0, used / max(stacked)))
