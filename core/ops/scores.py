"""Scores of a few queries, and how much of their attention each chunk of keys gets.

Verification computes the attention of the freshest queries to every key. While the keys of a layer in host memory pass
by, the same queries score them once more, so that chunks can be chosen by exact attention. Knows shapes, not caches.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from core.ops.attention import Masses, causal_bias, widened
from core.ops.native import VOTERS

WIDENED_BYTES = 16 << 20  # 16-bit keys widened to float32 at a time; at least one head
MOST_GROUPS = 8  # of tokens whose votes are added: in a longer pass groups are larger


def products(queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """Scaled scores of queries [N, R, D] and keys [N, C, D], [N, R, C] float32.

    Products of 16-bit tensors are never rounded to 16 bits: the bundled target's reach 15,000, where float16 has
    steps of 8 and bfloat16 of 64, and more than 65,504 would be infinite.
    """
    if queries.dtype == keys.dtype and queries.dtype.itemsize > 2:
        return (queries @ keys.transpose(-1, -2)).float() * scaling
    if queries.dtype == keys.dtype and queries.device.type == "cuda":
        return torch.bmm(queries, keys.transpose(-1, -2), out_dtype=torch.float32).mul_(scaling)
    wide = queries.float() * scaling
    found = torch.empty(*queries.shape[:2], keys.shape[1], device=queries.device)
    together = max(1, WIDENED_BYTES // (keys[0].numel() * found.itemsize or 1))
    for first in range(0, len(keys), together):
        heads = slice(first, first + together)
        torch.matmul(wide[heads], widened(keys[heads], torch.float32).transpose(-1, -2), out=found[heads])
    return found


def kept_as(q: Tensor) -> torch.dtype:
    """The type of masses of these queries."""
    return torch.bfloat16 if q.dtype.itemsize == 2 else torch.float32


def masses_of(q: Tensor, k: Tensor, lse: Tensor, scaling: float, chunk_size: int, softcap: float | None) -> Masses:
    """What every query attends to in P parts, in float32 summed by chunk.

    Args:
        q: [P * H_kv, G * R, D], the same for every part.
        k: [P, H_kv, S, D], whole chunks, and lse: [P, H, R], each part's own log-sum-exp.
    """
    parts, heads, size, _ = k.shape
    scores = _capped(products(q, k.flatten(0, 1), scaling), softcap)
    shares = torch.softmax(scores, -1).view(parts, heads, -1, size // chunk_size, chunk_size)
    return Masses(shares.sum(-1, dtype=kept_as(q)), lse.reshape(parts, heads, -1))


def _capped(scores: Tensor, softcap: float | None) -> Tensor:
    return scores if softcap is None else scores.div_(softcap).tanh_().mul_(softcap)


class Tally:
    """Counts the attention that the last tokens of a pass give to the keys of one layer, as these pass by.

    `add` the keys that all of them see, in order; `finish` with the other keys. Then `votes` [H_kv, groups, C] has the
    attention to each begun chunk, summed over the heads and `group` tokens at a time.

    Args:
        q: [1, H, R, D] of the tokens that vote.
        chunk_size: keys of a chunk; a soft cap bounds scores as in the layer's attention.
    """

    votes: Tensor

    def __init__(self, q: Tensor, num_kv_heads: int, scaling: float, chunk_size: int, softcap: float | None) -> None:
        self.tokens, self.group = q.shape[2], max(VOTERS, -(-q.shape[2] // MOST_GROUPS))
        self._scaling, self.chunk_size, self._softcap = scaling, chunk_size, softcap
        self._q = q.reshape(num_kv_heads, -1, q.shape[3])  # [H_kv, G * R, D]
        self._repeated = self._q  # for P parts at a time, [P * H_kv, G * R, D]
        self._masses: list[Masses] = []

    def add(self, k: Tensor, lse: Tensor) -> None:
        """Keys k [P, H_kv, S, D] of P parts, whole chunks, and each part's log-sum-exp [P, H, R]."""
        queries = len(k) * len(self._q)
        if len(self._repeated) < queries:
            self._repeated = self._q.repeat(len(k), 1, 1)
        q = self._repeated[:queries]
        self._masses.append(masses_of(q, k, lse, self._scaling, self.chunk_size, self._softcap))

    def add_oldest(self, masses: Masses) -> None:
        """What somebody else has counted of the parts before all others, for these tokens and others before them."""
        shares, lse = masses
        by_head = (*lse.shape[:2], self._q.shape[1] // self.tokens, -1)
        newest = shares.view(*by_head, shares.shape[3])[:, :, :, -self.tokens :].flatten(2, 3)
        self._masses.insert(0, Masses(newest, lse.view(by_head)[..., -self.tokens :].flatten(2)))

    def finish(self, last: Sequence[Tensor], lse: Tensor | None = None) -> "Tally":
        """The last keys, each [H_kv, n, D], of which the last R are the tokens' own.

        Args:
            lse: [1, H, R] float32, over all keys; None: there are no others than these.
        """
        products_of_all = torch.cat([products(self._q, k, self._scaling) for k in last], 2)
        scores = _capped(products_of_all, self._softcap)  # [H_kv, G * R, n]
        kv_heads, _, size = scores.shape
        newest = scores.view(kv_heads, -1, self.tokens, size)[..., size - self.tokens :]
        newest += causal_bias(self.tokens, scores.device)
        total = scores.logsumexp(-1) if lse is None else lse.reshape(kv_heads, -1)
        shares = functional.pad(scores.sub_(total[..., None]).exp_(), (0, -size % self.chunk_size))
        group = torch.arange(self.tokens, device=scores.device) // self.group
        summed = (group == torch.arange(-(-self.tokens // self.group), device=scores.device)[:, None]).float()
        summed = summed.repeat(1, self._q.shape[1] // self.tokens)  # [groups, G * R]
        found = [(summed @ shares.view(*shares.shape[:2], -1, self.chunk_size).sum(-1)).to(kept_as(self._q))]
        if self._masses:
            masses, lses = (torch.cat(each) for each in zip(*self._masses, strict=True))
            weights = (summed * (lses - total).exp()[:, :, None]).to(masses.dtype)  # [P, H_kv, groups, G * R]
            parts = weights.flatten(0, 1) @ masses.flatten(0, 1)
            found.insert(0, parts.view(*weights.shape[:3], -1).permute(1, 2, 0, 3).flatten(2))
        self.votes = torch.cat(found, 2)
        return self
