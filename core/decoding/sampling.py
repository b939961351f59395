"""The only way from logits to probabilities. Every level uses it, so all levels apply the same sampling options."""

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from core.config import SamplingParams


def to_probs(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """The distribution of the next token under `sampling`, whose temperature is above 0.

    Args:
        logits: [.., V], any float dtype.
    Returns:
        [.., V] float32, summing to 1.
        Order: temperature, then top-k, then top-p (nucleus, arXiv 1904.09751); the most likely token always stays.
    """
    scaled = logits.float() / sampling.temperature
    if 0 < sampling.top_k < scaled.shape[-1]:
        kth = scaled.topk(sampling.top_k, -1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < kth, float("-inf"))
    probs = torch.softmax(scaled, -1)
    if sampling.top_p == 1:
        return probs
    if probs.device.type != "cpu":
        return _nucleus(probs, sampling.top_p)
    rows = [_nucleus_of_likely(row, sampling.top_p) for row in probs.reshape(-1, probs.shape[-1])]
    return torch.stack(rows).view_as(probs)


def _nucleus(probs: Tensor, top_p: float | Tensor) -> Tensor:
    """The distributions [.., V] without what lies outside the nucleus, the mass of its first tokens being `top_p`.

    Of equally likely tokens those with the least ids stay.
    """
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    outside = ordered.cumsum(-1) - ordered >= top_p
    outside[..., 0] = False  # whatever is left of a tiny top-p in float32
    inside = probs.masked_fill(torch.zeros_like(outside).scatter_(-1, index, outside), 0.0)
    return inside / inside.sum(-1, keepdim=True)


def _nucleus_of_likely(probs: Tensor, top_p: float) -> Tensor:
    """`_nucleus` of one distribution [V], sorting only tokens that may be inside; on a GPU it would wait.

    Tokens less likely than `least` have half of the mass outside at most, so none of them is inside.
    """
    least = (1 - top_p) / (2 * len(probs))
    likely = (probs >= least).nonzero()[:, 0]
    return torch.zeros_like(probs).scatter_(0, likely, _nucleus(probs[likely], top_p))


class Filters(NamedTuple):
    """Which filters exclude any token."""

    top_k: bool
    top_p: bool

    @classmethod
    def of(cls, sampling: SamplingParams, vocab: int) -> "Filters":
        """The filters that `to_probs` applies to distributions over a vocabulary."""
        return cls(0 < sampling.top_k < vocab, sampling.top_p < 1)


def as_tensor(sampling: SamplingParams, device: torch.device) -> Tensor:
    """Temperature, top-p and top-k, [3] float32, for `to_probs_by_tensor`."""
    return torch.tensor((sampling.temperature, sampling.top_p, sampling.top_k), dtype=torch.float32, device=device)


def to_probs_by_tensor(logits: Tensor, params: Tensor, filters: Filters) -> Tensor:
    """`to_probs` with its parameters as a tensor, so that one recording serves all values; temperature above 0.

    Args:
        logits: [.., V]; params: from `as_tensor`.
        filters: which filters are on; the parameters of the others are ignored.
    """
    temperature, top_p, top_k = params.unbind()
    scaled = logits.float() / temperature
    if filters.top_k:
        kth = scaled.sort(-1, descending=True).values.index_select(-1, top_k.long()[None] - 1)
        scaled = scaled.masked_fill(scaled < kth, float("-inf"))
    probs = torch.softmax(scaled, -1)
    return _nucleus(probs, top_p) if filters.top_p else probs


class TokenSampler:
    """Every random decision of an answer, of two kinds, which a test can enumerate."""

    def __init__(self, rng: Generator) -> None:
        self._rng = rng

    def draw(self, weights: Tensor) -> int:
        """One token from weights [V] >= 0, which need not sum to 1. Waits for the device.

        By the inverse of their cumulative sums, in 64 bits: in 32 bits unlikely tokens would be lost.
        """
        sums = weights.cumsum(-1, dtype=torch.float64)
        least = torch.rand(1, generator=self._rng, dtype=torch.float64, device=sums.device) * sums[-1]
        return int(torch.searchsorted(sums, least, right=True))  # less than the last sum: products round down to it

    def accept(self, p: Tensor, q: Tensor) -> int:
        """Length of the accepted prefix of g guesses, each accepted with probability min(1, p / q); p, q: [g]."""
        if not len(p):
            return 0  # nothing to wait for
        rejected = torch.rand(p.shape, generator=self._rng, device=p.device) * q >= p
        return int(torch.cat((rejected, rejected.new_ones(1))).int().argmax())  # waits for the device

    def skip(self, num_tokens: int) -> None:
        """Skip the draws that plain decoding takes for this many tokens."""
        certain = torch.ones(1, device=self._rng.device)
        for _ in range(num_tokens):
            self.draw(certain)
