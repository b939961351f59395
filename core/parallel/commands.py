"""Rank 0's orders to the others: every change of the target's caches, in rank 0's order.

An order is a plain value that can be sent; `carry_out` does on a rank's share what rank 0 did on its share.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from core.caches.base import KVShape
from core.caches.full import FullCache
from core.caches.full_parts import Offload, Suffix
from core.caches.policies import LOSSY_POLICIES, chosen_weights, needs_landmarks, selection_policy
from core.caches.retrieval import HeldPart, RetrievalCache
from core.config import RetrievalConfig
from core.models.cached_model import CachedModel
from core.models.loader import LoadedModel
from core.ops.backend import Backend
from core.ops.link import link_rate
from core.planning.measured import Sharing, measure_sharing


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSizes:
    """The sizes of a target's caches; rank 0 makes its own caches from the same values."""

    context: int  # tokens
    possible: int
    retrieval: RetrievalConfig
    offload: Offload | None = None


class Share:
    """One rank's model and caches, which carry out rank 0's orders."""

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
            landmarks=needs_landmarks(sizes.retrieval),
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
        """The model and cache that rank 0 calls by this name; lossy ones are made at their first use."""
        if name not in self._models:
            method = name.partition("-")[0]  # a second lane's name has a number
            policy = LOSSY_POLICIES[method](self.full, self._sizes.retrieval)
            self._models[name] = self._make_model(name, RetrievalCache(self.full, policy))
        return self._models[name]

    def retrieval_cache(self, name: str) -> RetrievalCache:
        """The retrieval cache of a model."""
        cache = self.model(name).cache
        assert isinstance(cache, RetrievalCache), f"{name} selects nothing"
        return cache


class Order(Protocol):
    """Work for every rank. The result is sent to rank 0, unless it is None."""

    def carry_out(self, share: Share) -> Tensor | None:
        """Carry the order out on a rank's share."""


@dataclass(frozen=True, slots=True)
class Feed:
    """One pass; the ranks sum their results on the way."""

    model: str
    start: int
    tokens: Sequence[int]

    def carry_out(self, share: Share) -> None:
        """Run the same pass. Only rank 0 uses the logits."""
        share.model(self.model).feed_tokens(self.tokens, self.start, 1)


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate a cache."""

    model: str
    length: int

    def carry_out(self, share: Share) -> None:
        share.model(self.model).cache.truncate(self.length)


@dataclass(frozen=True, slots=True)
class Select:
    """A retrieval cache chooses its chunks again: each rank for its heads, by its queries."""

    model: str

    def carry_out(self, share: Share) -> None:
        share.retrieval_cache(self.model).select()


@dataclass(frozen=True, slots=True)
class SetAside:
    """Set the contents of a retrieval cache aside under a number."""

    model: str
    number: int

    def carry_out(self, share: Share) -> None:
        share.parts[self.model, self.number] = share.retrieval_cache(self.model).set_aside()


@dataclass(frozen=True, slots=True)
class PutBack:
    """Put contents back that were set aside under a number."""

    model: str
    number: int
    shared: int

    def carry_out(self, share: Share) -> None:
        share.retrieval_cache(self.model).put_back(share.parts.pop((self.model, self.number)), self.shared)


@dataclass(frozen=True, slots=True)
class ForgetPart:
    """Free contents that were set aside under a number."""

    model: str
    number: int

    def carry_out(self, share: Share) -> None:
        del share.parts[self.model, self.number]


@dataclass(frozen=True, slots=True)
class CountVotes:
    """The full cache counts the votes of every row, or of the last ones."""

    wanted: bool

    def carry_out(self, share: Share) -> None:
        share.full.count_votes(self.wanted)


@dataclass(frozen=True, slots=True)
class Remember:
    """The full cache keeps its newest queries."""

    num_queries: int

    def carry_out(self, share: Share) -> None:
        share.full.remember_queries(self.num_queries)


@dataclass(frozen=True, slots=True)
class Detach:
    """Set the suffix of a conversation aside under a number."""

    number: int
    start: int

    def carry_out(self, share: Share) -> None:
        share.suffixes[self.number] = share.full.detach(self.start)


@dataclass(frozen=True, slots=True)
class Attach:
    """Put a suffix back that was set aside."""

    number: int

    def carry_out(self, share: Share) -> None:
        share.full.attach(share.suffixes.pop(self.number))


@dataclass(frozen=True, slots=True)
class Forget:
    """Free a suffix that was set aside."""

    number: int

    def carry_out(self, share: Share) -> None:
        del share.suffixes[self.number]


@dataclass(frozen=True, slots=True)
class HeldChunks:
    """Report the chunks in the retrieval cache."""

    def carry_out(self, share: Share) -> Tensor:
        """[L, H_kv, n] int64, of this rank's heads."""
        return share.retrieval.held_chunks()


@dataclass(frozen=True, slots=True)
class ChunkWeights:
    """Report how much each chunk counted in the choice."""

    def carry_out(self, share: Share) -> Tensor:
        """[C] float32, averaged over this rank's heads."""
        held = share.retrieval.held_chunks()
        if held.shape[2] == 0:
            return torch.empty(0)
        return chosen_weights(held, share.chooser.scores)


@dataclass(frozen=True, slots=True)
class LetHostAttend:
    """In later short passes this rank's part of the host attends to a share of the rank's blocks."""

    share: float

    def carry_out(self, share: Share) -> None:
        share.full.let_host_attend(self.share)


@dataclass(frozen=True, slots=True)
class MeasureSharing:
    """Measure this rank's link with its part of the host beside it, while the others measure theirs."""

    size_bytes: int  # of the blocks

    def carry_out(self, share: Share) -> Tensor:
        """[2] float64: the numbers of `Sharing`; the host's is infinite where the device has no room to measure."""
        shape, piece = share.full.shape, share.full.host_memory[0].rows.shape[1:]
        try:
            sharing = measure_sharing(
                piece, shape.num_heads, share.full.chunk_size, shape.dtype, shape.device, self.size_bytes
            )
        except torch.OutOfMemoryError:
            sharing = Sharing(0.0, math.inf)
        return torch.tensor(sharing, dtype=torch.float64)


@dataclass(frozen=True, slots=True)
class MeasureLink:
    """Measure this rank's link from host memory while the others measure theirs: links may be uneven, or shared."""

    size_bytes: int  # of the timed copy

    def carry_out(self, share: Share) -> Tensor:
        """[1] float64: bytes per second; 0 where the device has no room to measure."""
        try:
            rate, _ = link_rate(share.full.shape.device, self.size_bytes)
        except torch.OutOfMemoryError:
            rate = 0.0
        return torch.tensor([rate], dtype=torch.float64)
