"""How long a round should be: pure arithmetic on acceptance and cost.

With acceptance a, a round of g guesses commits E(a, g) = (1 - a^(g+1)) / (1 - a) tokens (arXiv 2211.17192, eq. 1) and
costs g proposals and one pass of the judge. Any rule that looks only at the past leaves the output law unchanged.
"""

from collections.abc import Callable
from dataclasses import dataclass

from core.stats import LevelStats

PRIOR_TESTS = 4.0  # weight of the prior acceptance, in tests


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


def smoothed_acceptance(stats: LevelStats, prior: float) -> float:
    """Acceptance so far, drawn towards `prior` while little has been tested."""
    return (stats.accepted + prior * PRIOR_TESTS) / (stats.tested + PRIOR_TESTS)


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
