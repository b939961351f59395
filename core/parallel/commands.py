"""What rank 0 tells the others: whatever changes the target's caches, in the order in which rank 0 does it itself.

Every order is a plain value that can be sent; `carry_out` does on a rank's share what rank 0 did on its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from core.caches.base import KVShape
from core.caches.full import FullCache, Offload, Suffix
from core.caches.policies import LOSSY_POLICIES, chosen_weights, selection_policy
from core.caches.retrieval import HeldPart, RetrievalCache
from core.config import RetrievalConfig
from core.models.cached_model import CachedModel
from core.models.loader import LoadedModel
from core.ops.backend import Backend
from core.ops.link import link_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSizes:
    """How the caches of a target are made; rank 0 makes its own from the same values."""

    context: int  # tokens
    possible: int
    retrieval: RetrievalConfig
    offload: Offload | None = None


class Share:
    """One rank's model and caches, led from elsewhere."""

    def __init__(self, model: LoadedModel, sizes: CacheSizes, backend: Backend) -> None:
        self._model, self._sizes = model, sizes
        shape: KVShape = model.shape
        self.full = FullCache(
            shape,
            sizes.context,
            sizes.retrieval.chunk_size,
            possible=sizes.possible,
            backend=backend,
            offload=sizes.offload,
        )
        self.chooser = selection_policy(self.full, sizes.retrieval)
        self.retrieval = RetrievalCache(self.full, self.chooser)
        self.suffixes: dict[int, Suffix] = {}
        self.parts: dict[tuple[str, int], HeldPart] = {}  # by model and number
        self._models = {
            "full": self._make_model("full", self.full),
            "retrieval": self._make_model("retrieval", self.retrieval),
        }

    def _make_model(self, name: str, cache: FullCache | RetrievalCache) -> CachedModel:
        return CachedModel(name, self._model.module, cache, self._model.shape.device)

    def model(self, name: str) -> CachedModel:
        """The model and cache that rank 0 calls by this name; lossy ones are made when first asked for."""
        if name not in self._models:
            method = name.partition("-")[0]  # of a second lane: the name has a number
            policy = LOSSY_POLICIES[method](self.full, self._sizes.retrieval)
            self._models[name] = self._make_model(name, RetrievalCache(self.full, policy))
        return self._models[name]

    def retrieval_cache(self, name: str) -> RetrievalCache:
        """The cache of a model that looks through a part of the full one."""
        cache = self.model(name).cache
        assert isinstance(cache, RetrievalCache), f"{name} selects nothing"
        return cache


class Order(Protocol):
    """Something to be done on every rank. What it returns goes back to rank 0, unless it is None."""

    def carry_out(self, share: Share) -> Tensor | None:
        """Do it."""


@dataclass(frozen=True, slots=True)
class Feed:
    """One pass; the ranks add up their results on the way."""

    model: str
    start: int
    tokens: Sequence[int]

    def carry_out(self, share: Share) -> None:
        """The same pass. Its logits are rank 0's business."""
        share.model(self.model).feed_tokens(self.tokens, self.start, 1)


@dataclass(frozen=True, slots=True)
class Truncate:
    """A cache forgets."""

    model: str
    length: int

    def carry_out(self, share: Share) -> None:
        """The same."""
        share.model(self.model).cache.truncate(self.length)


@dataclass(frozen=True, slots=True)
class Select:
    """A retrieval cache chooses its chunks anew: each rank for its own heads, by its own queries."""

    model: str

    def carry_out(self, share: Share) -> None:
        """The same, for other heads."""
        share.retrieval_cache(self.model).select()


@dataclass(frozen=True, slots=True)
class SetAside:
    """What a retrieval cache holds is noted under a number."""

    model: str
    number: int

    def carry_out(self, share: Share) -> None:
        """The same, for other heads."""
        share.parts[self.model, self.number] = share.retrieval_cache(self.model).set_aside()


@dataclass(frozen=True, slots=True)
class PutBack:
    """What was noted is held again."""

    model: str
    number: int
    shared: int

    def carry_out(self, share: Share) -> None:
        """The same, for other heads."""
        share.retrieval_cache(self.model).put_back(share.parts.pop((self.model, self.number)), self.shared)


@dataclass(frozen=True, slots=True)
class ForgetPart:
    """What was noted is not wanted any more."""

    model: str
    number: int

    def carry_out(self, share: Share) -> None:
        """Free it."""
        del share.parts[self.model, self.number]


@dataclass(frozen=True, slots=True)
class Remember:
    """The full cache keeps its newest queries."""

    num_queries: int

    def carry_out(self, share: Share) -> None:
        """The same, of other heads."""
        share.full.remember_queries(self.num_queries)


@dataclass(frozen=True, slots=True)
class Detach:
    """The end of a conversation is put aside under a number."""

    number: int
    start: int

    def carry_out(self, share: Share) -> None:
        """The same rows, of other heads."""
        share.suffixes[self.number] = share.full.detach(self.start)


@dataclass(frozen=True, slots=True)
class Attach:
    """What was put aside comes back, and is aside no more."""

    number: int

    def carry_out(self, share: Share) -> None:
        """The same."""
        share.full.attach(share.suffixes.pop(self.number))


@dataclass(frozen=True, slots=True)
class Forget:
    """What was put aside is not wanted any more."""

    number: int

    def carry_out(self, share: Share) -> None:
        """Free it."""
        del share.suffixes[self.number]


@dataclass(frozen=True, slots=True)
class HeldChunks:
    """Which chunks lie in the retrieval cache."""

    def carry_out(self, share: Share) -> Tensor:
        """[L, H_kv, n] int64, of this rank's heads."""
        return share.retrieval.held_chunks()


@dataclass(frozen=True, slots=True)
class ChunkWeights:
    """How much each chunk counted in the choice."""

    def carry_out(self, share: Share) -> Tensor:
        """[C] float32, averaged over this rank's heads."""
        held = share.retrieval.held_chunks()
        if held.shape[2] == 0:
            return torch.empty(0)
        return chosen_weights(held, share.chooser.scores)


@dataclass(frozen=True, slots=True)
class MeasureLink:
    """What comes to this rank from host memory, while the others measure theirs: links may be uneven, or shared."""

    size_bytes: int  # of the copy

    def carry_out(self, share: Share) -> Tensor:
        """[1] float64: bytes per second; 0 where the device has no room to measure."""
        try:
            rate, _ = link_rate(share.full.shape.device, self.size_bytes)
        except torch.OutOfMemoryError:
            rate = 0.0
        return torch.tensor([rate], dtype=torch.float64)
