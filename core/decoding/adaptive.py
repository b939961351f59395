"""How long a round should be: pure arithmetic on acceptance and cost.

With acceptance a, a round of g guesses commits E(a, g) = (1 - a^(g+1)) / (1 - a) tokens (arXiv 2211.17192, eq. 1) and
costs g proposals and one pass of the judge. Any rule that looks only at the past leaves the output law unchanged.
"""

from collections.abc import Callable
from dataclasses import dataclass

from core.stats import LevelStats

PRIOR_TESTS = 4.0  # weight of the prior acceptance, in tests
FADE = 0.95  # weight that a round keeps when another one follows: a memory of about 20 rounds


@dataclass(frozen=True, slots=True)
class PassCost:
    """Seconds (or any one unit) of a pass over 1 + g rows: base * (1 + slope * g)."""

    base: float
    slope: float

    def of(self, num_guesses: int) -> float:
        """Cost of judging this many guesses."""
        return self.base * (1 + self.slope * num_guesses)


def expected_tokens(acceptance: float, num_guesses: int) -> float:
    """E(a, g): mean tokens a round commits."""
    if acceptance >= 1:
        return num_guesses + 1
    return (1 - acceptance ** (num_guesses + 1)) / (1 - acceptance)


class RecentAcceptance:
    """Acceptance of the last rounds of one level: older ones fade, and `prior` stands in while little was tested."""

    def __init__(self, prior: float) -> None:
        self._prior = prior
        self._seen = LevelStats()
        self._tested = self._accepted = 0.0

    def update(self, stats: LevelStats) -> float:
        """Take in what the level did since the last update; returns the acceptance to plan with."""
        tested, accepted = stats.tested - self._seen.tested, stats.accepted - self._seen.accepted
        fade = FADE ** max(0, stats.rounds - self._seen.rounds) if tested else 1.0
        self._tested = fade * self._tested + tested
        self._accepted = fade * self._accepted + accepted
        self._seen = stats
        return (self._accepted + self._prior * PRIOR_TESTS) / (self._tested + PRIOR_TESTS)


def best_gamma(acceptance: float, guess_cost: float, judge: PassCost, max_gamma: int) -> int:
    """The number of guesses with most tokens per unit of cost; 0 where judging alone is best."""

    def rate(num_guesses: int) -> float:
        return expected_tokens(acceptance, num_guesses) / (num_guesses * guess_cost + judge.of(num_guesses))

    return _argmax(rate, max_gamma)


def _argmax(rate: Callable[[int], float], most: int) -> int:
    return max(range(most + 1), key=rate)


def cost_per_token(acceptance: float, guess_cost: float, judge: PassCost, num_guesses: int) -> float:
    """Mean cost of one token of a level that guesses num_guesses a round."""
    return (num_guesses * guess_cost + judge.of(num_guesses)) / expected_tokens(acceptance, num_guesses)
