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

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

ORDERS = ("token id", "p", "q / p")
BINS, ROWS = 20, 5
FEWEST = 10  # expected in every cell; with fewer a statistic is not chi-square far out in its tail
MOST_SCORE = 2.0
LEAST_VARIANCE = 25.0  # of a sum of scores: then it is normal as far out as is looked at
FALSE_ALARM = 1e-6  # of all tests of a run together, by Bonferroni


def transformed(p: Tensor, tokens: Tensor, keys: Tensor, uniform: Tensor) -> Tensor:
    """u of each token.

    Args:
        p: [n, V] float64; tokens: [n]; keys: [n, V], tokens with larger keys come first; uniform: [n] in [0, 1).
    Returns:
        [n] float64 in [0, 1].
    """
    order = keys.argsort(dim=-1, descending=True, stable=True)
    ordered = p.gather(-1, order)
    at = (order == tokens[:, None]).int().argmax(-1, keepdim=True)
    own = ordered.gather(-1, at)[:, 0]
    before = ordered.cumsum(-1).gather(-1, at)[:, 0] - own
    return (before + uniform * own).clamp(0, 1)


def leaning(p: Tensor, p_level: Tensor, q: Tensor, tokens: Tensor) -> tuple[int, float, float]:
    """How far tokens lean to where a level without a residual would push them: a sum of terms with mean 0.

    A level that replaces a rejected guess from its own p instead of the residual gives a token r p - max(p - q, 0) too
    much, r being the chance of a rejection. Of that a level above accepts a share, and spreads over its own residual
    what it rejects more. A token scores what its probability would change by, relative to p.

    Args:
        p: [n, V] float64, of the last verifier; p_level: of the level itself; q: of its guess; tokens: [n].
    Returns:
        Tokens, the sum of scores, its variance under p.
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
    return len(tokens), float((own - mean).sum()), float(variance.clamp_min(0).sum())


def following(u: Tensor, written: Tensor) -> tuple[int, float, float]:
    """How far u of tokens goes with u of those that were written as far from the answer's beginning: as `leaning`.

    Equal random numbers give neighbouring u, even from different distributions; the first ones most, as rejected
    guesses take some. NaN: nothing is known of a token.
    """
    count = min(len(u), len(written))
    weight = 0.6 ** torch.arange(count) * (written[:count] - 0.5)
    score, variance = 12 * weight * (u[:count] - 0.5), 12 * weight.square()
    known = ~score.isnan()
    return int(known.sum()), float(score[known].sum()), float(variance[known].sum())


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Sampled tokens that were written in one go."""

    method: str
    u: dict[str, list[float]]  # by order
    lean: dict[str, tuple[int, float, float]]  # by what: see `leaning` and `following`
    last_written: float | None = None  # u of the token before, where these continue an answer with its seed


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """One chi-square test."""

    name: str
    samples: int
    statistic: float
    freedom: int

    @property
    def p_value(self) -> float:
        """Chance of a statistic as large, if all is exact."""
        half = torch.tensor((self.freedom / 2, self.statistic / 2), dtype=torch.float64)
        return float(torch.special.gammaincc(half[0], half[1]))


@dataclass(slots=True)
class Pool:
    """Counts of all stretches."""

    singles: dict[tuple[str, str], list[int]] = field(default_factory=dict)  # method or "all", order -> by bin
    leans: dict[tuple[str, str], tuple[int, float, float]] = field(default_factory=dict)  # tokens, sum, variance
    pairs: dict[str, list[list[int]]] = field(default_factory=dict)  # what -> [earlier's bin][own bin]

    def add(self, stretch: Stretch) -> None:
        """Count a stretch."""
        for order, values in stretch.u.items():
            for method in ("all", stretch.method):
                counts = self.singles.setdefault((method, order), [0] * BINS)
                for value in values:
                    counts[_bin(value, BINS)] += 1
            self._count(f"after the token before, by {order}", values, values[1:])
        own = stretch.u["token id"]
        for what, score in stretch.lean.items():
            for method in ("all", stretch.method):
                self._lean((method, what), *score)
        if stretch.last_written is not None:
            self._count("the first continued token after the last written one", [stretch.last_written], own)

    def _lean(self, key: tuple[str, str], count: int, total: float, variance: float) -> None:
        tokens, sums, variances = self.leans.get(key, (0, 0.0, 0.0))
        self.leans[key] = tokens + count, sums + total, variances + variance

    def _count(self, what: str, earlier: Sequence[float], own: Sequence[float]) -> None:
        table = self.pairs.setdefault(what, [[0] * ROWS for _ in range(ROWS)])
        for a, b in zip(earlier, own, strict=False):
            table[_bin(a, ROWS)][_bin(b, ROWS)] += 1

    def merge(self, other: "Pool") -> None:
        """Take in another pool's counts."""
        for key, counts in other.singles.items():
            mine = self.singles.setdefault(key, [0] * BINS)
            self.singles[key] = [a + b for a, b in zip(mine, counts, strict=True)]
        for key, (count, total, variance) in other.leans.items():
            self._lean(key, count, total, variance)
        for what, table in other.pairs.items():
            own = self.pairs.setdefault(what, [[0] * ROWS for _ in range(ROWS)])
            self.pairs[what] = [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(own, table, strict=True)]

    def tests(self) -> list[ChiSquare]:
        """Every test for which there are enough samples."""
        found = [
            ChiSquare(f"{method}, by {order}", *_even([counts])) for (method, order), counts in self.singles.items()
        ]
        found += [
            ChiSquare(f"{method}, {what}", count, total**2 / variance, 1)
            for (method, what), (count, total, variance) in self.leans.items()
            if variance >= LEAST_VARIANCE
        ]
        found += [ChiSquare(what, *_even(table)) for what, table in self.pairs.items()]
        return [test for test in found if test.samples]

    def alarms(self) -> list[ChiSquare]:
        """Tests that an exact engine fails with a chance of FALSE_ALARM at most, all together."""
        tests = self.tests()
        return [test for test in tests if test.p_value < FALSE_ALARM / len(tests)]


def _bin(value: float, count: int) -> int:
    return min(count - 1, math.floor(value * count))


def _even(rows: Iterable[Sequence[int]]) -> tuple[int, float, int]:
    """Samples, chi-square and degrees of freedom of counts that are even within each row; zeros where one is too few.

    Rows are given, as what comes earlier is: only what follows is random.
    """
    samples, statistic, freedom = 0, 0.0, 0
    for row in rows:
        expected = sum(row) / len(row)
        if expected < FEWEST:
            return 0, 0.0, 0
        samples += sum(row)
        statistic += sum((count - expected) ** 2 / expected for count in row)
        freedom += len(row) - 1
    return samples, statistic, freedom
