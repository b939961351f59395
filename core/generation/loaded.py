"""Models in memory, ready to compute, for an engine."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from core.models.loader import LoadedModel
from core.ops.backend import STOCK, Backend

if TYPE_CHECKING:
    from core.parallel.rank_pool import RankPool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModels:
    """A target and the models that guess for it."""

    target: LoadedModel
    draft: LoadedModel | None = None
    backend: Backend = STOCK
    ranks: "RankPool | None" = None  # the other ranks, where several share the target
    self_draft: nn.Module | None = None  # the target with weights of 4 bits, for passes over the retrieval cache

    @property
    def looking(self) -> nn.Module:
        """The model for passes over the retrieval cache."""
        return self.target.module if self.self_draft is None else self.self_draft
