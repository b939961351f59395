"""One pass of a model over the newest tokens of several conversations, each of which keeps its own cache.

Tokens lie beside each other, with the positions of their conversations; caches are called for their own rows alone. So
conversations never see each other, and where the kernel computes, each gets the numbers that it would get alone, to the
last bit. The weights are read once for all.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from core.caches.base import KVCache
from core.caches.branch import BranchCache
from core.caches.tokens import Context
from core.models.cached_model import CachedModel
from core.models.families import FIXED_ROPE
from core.models.hf_attention import forward
from core.models.linear import FewRowsNorm, PackedLinear, RowsInBits
from core.ops.native import MOST_TOKENS
from core.ops.reach import Asked
from core.ops.threads import process_threads

MOST_JOINED = 256  # tokens of a joined pass: beyond it, computing takes as long as reading the weights again
ALONE = (FewRowsNorm, PackedLinear, RowsInBits, nn.Embedding)  # whose rows do not depend on each other

_of_modules: "WeakKeyDictionary[nn.Module, bool]" = WeakKeyDictionary()  # whether all of their parts are `_is_alone`


class Wanted(NamedTuple):
    """Logits after each of the last `keep` tokens of a conversation."""

    model: CachedModel
    context: Context
    keep: int


class RaggedCache:
    """The caches of several conversations as a model sees them in one pass: every row goes to its own."""

    def __init__(self, caches: Sequence[tuple[KVCache, int]]) -> None:
        """`caches`: with the number of their new tokens, in the order of the tokens."""
        self._caches: list[tuple[KVCache, slice]] = []
        at = 0
        for cache, count in caches:
            self._caches.append((cache, slice(at, at + count)))
            at += count
        first = self._caches[0][0]
        self._branches = [(cache, rows) for cache, rows in self._caches if isinstance(cache, BranchCache)]
        if len(self._branches) < len(self._caches) or not all(cache.same_trunk(first) for cache, _ in self._branches):
            self._branches = []

    @property
    def length(self) -> int:
        """Of the longest; positions are given, and masks ask their own cache."""
        return max(cache.length for cache, _ in self._caches)

    def stage(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Keep each conversation's rows of k, v [1, H_kv, T, D] in its cache."""
        for cache, rows in self._caches:
            cache.stage(layer, k[:, :, rows], v[:, :, rows])

    def attend(self, layer: int, q: Tensor, scaling: float, asked: Asked | None = None) -> Tensor:
        """Each conversation's rows of q [1, H, T, D] attend in its cache alone; returns [1, H, T, D]."""
        if self._branches and asked is None:
            found = BranchCache.attend_together(self._branches, layer, q, scaling)
            if found is not None:
                return found
        return torch.cat([cache.attend(layer, q[:, :, rows], scaling, asked) for cache, rows in self._caches], 2)


def most_joined(model: CachedModel) -> int:
    """Tokens that a pass of a model may have so that each comes out as if alone; 0: conversations cannot share one."""
    if model.device.type != "cpu":
        return 0
    if model.short is not None:
        return MOST_JOINED
    if model.module not in _of_modules:
        _of_modules[model.module] = all(_is_alone(part) for part in model.module.modules())
    return MOST_TOKENS if _of_modules[model.module] else 0


def _is_alone(part: nn.Module) -> bool:
    """Whether a module computes a token of few as if it were alone: the kernel's layers, and fixed rotations."""
    kinds = getattr(part, "rope_type", "default")
    if not set(kinds.values() if isinstance(kinds, dict) else [kinds]) <= set(FIXED_ROPE):
        return False
    return isinstance(part, ALONE) or next(part.parameters(recurse=False), None) is None


def logits_together(wanted: Sequence[Wanted]) -> list[Tensor]:
    """What `CachedModel.logits` gives for each, [keep, V] each, in as few passes as possible.

    All models have the same module, and each its own cache.

    Raises:
        ContextTooSmall: a cache is full.
    """
    most, found = most_joined(wanted[0].model), dict[int, Tensor]()
    spans = [one.model.newest(one.context, one.keep) for one in wanted]
    groups: list[list[int]] = [[]]
    for number, span in enumerate(spans):
        if len(span) > min(most, MOST_TOKENS):  # alone it would not be a short pass either
            groups.insert(0, [number])
            continue
        if sum(len(spans[other]) for other in groups[-1]) + len(span) > most:
            groups.append([])
        groups[-1].append(number)
    for group in groups:
        parts = [(wanted[number], spans[number]) for number in group]
        found |= zip(group, _joined(parts), strict=True)
    return [found[number] for number in range(len(wanted))]


def _joined(parts: Sequence[tuple[Wanted, range]]) -> list[Tensor]:
    """One pass for the newest tokens of some of them: its time is shared equally."""
    if len(parts) < 2:
        return [one.model.feed(one.context, span, one.keep) for one, span in parts]
    process_threads().lend()
    started, threads = time.perf_counter(), process_threads().changes
    first = parts[0][0].model
    tokens = torch.cat([one.model.known(one.context.span(span.start, span.stop)) for one, span in parts])
    positions = torch.cat([one.model.cache.begin(span.start, len(span)) for one, span in parts])
    cache = RaggedCache([(one.model.cache, len(span)) for one, span in parts])
    ends = torch.tensor([len(span) for _, span in parts]).cumsum(0).tolist()
    kept = torch.cat([torch.arange(end - one.keep, end) for (one, _), end in zip(parts, ends, strict=True)])
    if first.short is not None:
        logits = first.short(tokens, positions, cache, kept)
    else:
        logits = forward(first.module, tokens, positions, cache, kept)
    seconds, found = (time.perf_counter() - started) / len(parts), []
    for (one, span), own in zip(parts, torch.split(logits, [one.keep for one, _ in parts]), strict=True):
        one.model.meter.took(len(span), one.model.cache.nbytes, seconds, threads)
        one.model.cache.commit(len(span))
        found.append(one.model.widened(own))
    return found
