"""Whether sampled tokens follow the target, judged over all of them together.

For a token x drawn from probabilities p, taken in any order that the tokens before it determine,
u = p(all before x) + U p(x) with an independent uniform U is uniform on [0, 1) and independent of every earlier u, if
and only if x really follows p (the randomised probability integral transform). So tokens from thousands of different
distributions can be counted in the same bins. No stopping rule that looks only at the past changes that.

The order decides which errors show. Three are used: token ids, descending p, and descending q / p, where q is what the
guess at that place was drawn from: a verifier that accepts too much gives too many small u there.

A small error in a known direction shows better in one number: the sum of f(x) - E f over all tokens, where f is what
the rule without a residual gets wrong, over the square root of its variance, which is known exactly.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

ORDERS = ("token id", "p", "q / p")
BINS, ROWS = 20, 5
FEWEST = 10  # expected in every cell; with fewer a statistic is not chi-square far out in its tail
MOST_SCORE = 2.0
LEAST_VARIANCE = 25.0  # of a sum of scores: then it is normal as far out as is looked at
FALSE_ALARM = 1e-6  # of all tests of a run together, by Bonferroni


def transformed(p: Tensor, tokens: Tensor, keys: Tensor, uniform: Tensor) -> Tensor:
    """u of each token, [n] float64 in [0, 1].

    Args:
        p: [n, V] float64; tokens: [n]; keys: [n, V], tokens with larger keys come first; uniform: [n] in [0, 1).
    """
    order = keys.argsort(dim=-1, descending=True, stable=True)
    ordered = p.gather(-1, order)
    at = (order == tokens[:, None]).int().argmax(-1, keepdim=True)
    own = ordered.gather(-1, at)[:, 0]
    before = ordered.cumsum(-1).gather(-1, at)[:, 0] - own
    return (before + uniform * own).clamp(0, 1)


def leaning(p: Tensor, p_level: Tensor, q: Tensor, tokens: Tensor) -> Tensor:
    """How far tokens lean to where a level without a residual would push them: a sum of terms with mean 0.

    A level that replaces a rejected guess from its own p instead of the residual gives a token r p - max(p - q, 0) too
    much, r being the chance of a rejection. Of that a level above accepts a share, and spreads over its own residual
    what it rejects more. A token scores what its probability would change by, relative to p.

    Args:
        p: [n, V] float64, of the last verifier; p_level: of the level itself; q: of its guess; tokens: [n].
    Returns:
        Number of tokens, the sum of scores, its variance under p.
    """
    least = 1e-30
    over = (p_level - q).clamp_min(0)
    accepted = (over.sum(-1, keepdim=True) * p_level - over) * (p / p_level.clamp_min(least)).clamp(max=1)
    residual = (p - p_level).clamp_min(0)
    residual = residual / residual.sum(-1, keepdim=True).clamp_min(least)
    change = accepted - accepted.sum(-1, keepdim=True) * residual
    score = (change / p.clamp_min(least)).clamp(-MOST_SCORE, MOST_SCORE)
    mean = (p * score).sum(-1)
    variance = (p * score**2).sum(-1) - mean**2
    own = score.gather(-1, tokens[:, None])[:, 0]
    return torch.stack((p.new_tensor(len(tokens)), (own - mean).sum(), variance.clamp_min(0).sum()))


def following(u: Tensor, written: Tensor) -> Tensor:
    """How far u of tokens goes with u of those that were written as far from the answer's beginning: as `leaning`.

    Equal random numbers give neighbouring u, even from different distributions; the first ones most, as rejected
    guesses take some. NaN: nothing is known of a token.
    """
    count = min(len(u), len(written))
    weight = 0.6 ** torch.arange(count) * (written[:count] - 0.5)
    terms = torch.stack((torch.ones(count, dtype=torch.float64), 12 * weight * (u[:count] - 0.5), 12 * weight.square()))
    return terms[:, ~terms[1].isnan()].sum(1)


@dataclass(frozen=True, slots=True)
class ChiSquare:
    name: str
    samples: int
    statistic: float
    freedom: int

    @property
    def p_value(self) -> float:
        """Chance of a statistic as large, if all is exact."""
        half = torch.tensor((self.freedom / 2, self.statistic / 2), dtype=torch.float64)
        return float(torch.special.gammaincc(half[0], half[1]))


class Pool:
    """Sums over stretches of sampled tokens that were written in one go, by name.

    Either counts [rows, bins], which are even within a row if all is exact (rows are given, as what comes earlier is:
    only what follows is random), or number, score and variance as `leaning` returns them.
    """

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    def put(self, name: str, more: Tensor) -> None:
        self.sums[name] = self.sums.get(name, torch.zeros_like(more)) + more

    def add(
        self, method: str, u: Mapping[str, Tensor], lean: Mapping[str, Tensor], last_written: float | None = None
    ) -> None:
        """Count a stretch.

        Args:
            u: of its tokens, by order; lean: by what, see `leaning` and `following`.
            last_written: u by token id of the token before, where these continue an answer with its seed.
        """
        for order, values in u.items():
            counts = torch.bincount(_bins(values, BINS), minlength=BINS)[None]
            for whose in ("all", method):
                self.put(f"{whose}, by {order}", counts)
            self._follow(f"after the token before, by {order}", values[:-1], values[1:])
        for what, score in lean.items():
            for whose in ("all", method):
                self.put(f"{whose}, {what}", score)
        if last_written is not None:
            before, first = torch.tensor([last_written], dtype=torch.float64), u["token id"][:1]
            self._follow("the first continued token after the last written one", before[: len(first)], first)

    def _follow(self, what: str, earlier: Tensor, own: Tensor) -> None:
        cells = ROWS * _bins(earlier, ROWS) + _bins(own, ROWS)
        self.put(what, torch.bincount(cells, minlength=ROWS * ROWS).view(ROWS, ROWS))

    def merge(self, other: "Pool") -> None:
        for name, more in other.sums.items():
            self.put(name, more)

    def tests(self) -> list[ChiSquare]:
        """Every test for which there are enough samples."""
        found = []
        for name, sums in self.sums.items():
            if sums.dim() == 1:
                count, total, variance = sums.tolist()
                if variance >= LEAST_VARIANCE:
                    found.append(ChiSquare(name, int(count), total**2 / variance, 1))
                continue
            expected = sums.sum(1, keepdim=True) / sums.shape[1]
            if expected.min() >= FEWEST:
                statistic = float(((sums - expected) ** 2 / expected).sum())
                found.append(ChiSquare(name, int(sums.sum()), statistic, sums.numel() - len(sums)))
        return found

    def alarms(self) -> list[ChiSquare]:
        """Tests that an exact engine fails with a chance of FALSE_ALARM at most, all together."""
        tests = self.tests()
        return [test for test in tests if test.p_value < FALSE_ALARM / len(tests)]


def _bins(values: Tensor, count: int) -> Tensor:
    return (values * count).long().clamp(max=count - 1)
