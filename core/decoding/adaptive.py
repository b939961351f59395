"""How long a round should be, and whether guessing pays: pure arithmetic on acceptance and cost.

With acceptance a, a round of g guesses commits E(a, g) = (1 - a^(g+1)) / (1 - a) tokens (arXiv 2211.17192, eq. 1).
A rule that depends only on the past leaves the output distribution unchanged.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median_low
from typing import Protocol

# A pass of many rows that was so much slower than the least one says, beyond their earlier ratio, was disturbed: 9 rows
# took 90 ms once where they take 47, and no later round of that answer was worth guesses
DISTURBED = 1.5
PRIOR_TESTS = 4.0  # weight of the prior acceptance, in tests
FADE = 0.95  # weight of a round relative to the next one: a memory of about 20 rounds


class RoundCost(Protocol):
    """What verifying costs, in seconds or any one unit."""

    def of(self, num_guesses: int) -> float:
        """Cost of verifying this many guesses in one pass."""


@dataclass(frozen=True, slots=True)
class PassCost:
    """Modelled cost of a pass over 1 + g rows: base * (1 + slope * g) and its experts; `beside` if that is more.

    Rows that choose their experts independently need 1 - (1 - used)^(1 + g) of them together, so a pass of a mixture
    reads much more for many guesses than for one token.
    """

    base: float
    slope: float
    beside: float = 0.0  # cost of work that runs at the same time and does not depend on the rows
    experts: float = 0.0  # cost of reading all experts of a mixture
    used: float = 1.0  # share of them that one row needs

    def of(self, num_guesses: int) -> float:
        """Cost of verifying this many guesses."""
        experts = self.experts * (1 - (1 - self.used) ** (1 + num_guesses))
        return max(self.base * (1 + self.slope * num_guesses) + experts, self.beside)


@dataclass(frozen=True, slots=True)
class TableCost:
    """Measured cost of passes by their rows: interpolated, and extrapolated beyond the last."""

    by_rows: Mapping[int, float]  # in rising order

    def of(self, num_guesses: int) -> float:
        """Cost of verifying this many guesses."""
        rows, known = num_guesses + 1, list(self.by_rows)
        if len(known) == 1:
            return self.by_rows[known[0]]
        above = next((at for at in range(1, len(known)) if known[at] >= rows), len(known) - 1)
        low, high = known[above - 1], known[above]
        part = (rows - low) / (high - low)
        return max(0.0, (1 - part) * self.by_rows[low] + part * self.by_rows[high])


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """Recent cost of passes by their rows; an earlier measurement, scaled, fills the gaps.

    `overhead` is what a round costs beside its passes.
    """

    by_rows: Mapping[int, float]
    earlier: RoundCost
    overhead: float = 0.0

    def of(self, num_guesses: int) -> float:
        """The earlier measurement, scaled by what neighbouring numbers of rows cost now."""
        rows, earlier = num_guesses + 1, self.earlier.of(num_guesses)
        below = max((known for known in self.by_rows if known <= rows), default=None)
        above = min((known for known in self.by_rows if known >= rows), default=None)
        usual = self._scale(min(self.by_rows)) if self.by_rows else 1.0
        scales = [min(self._scale(known), DISTURBED * usual) for known in (below, above) if known is not None]
        if below and above and above > below:
            part = (rows - below) / (above - below)
            return earlier * ((1 - part) * scales[0] + part * scales[1]) + self.overhead
        return earlier * (scales[0] if scales else 1.0) + self.overhead

    def _scale(self, rows: int) -> float:
        return self.by_rows[rows] / self.earlier.of(rows - 1)


def expected_tokens(acceptance: float, num_guesses: int) -> float:
    """E(a, g): mean tokens a round commits."""
    if acceptance >= 1:
        return num_guesses + 1
    return (1 - acceptance ** (num_guesses + 1)) / (1 - acceptance)


class RecentAcceptance:
    """Acceptance of the last rounds: older ones fade, and `prior` counts while few guesses were tested."""

    def __init__(self, prior: float) -> None:
        self._prior = prior
        self._tested = self._accepted = 0.0

    def add(self, tested: int, accepted: int) -> None:
        """Add a round; one without tested guesses changes nothing."""
        if tested:
            self._tested = FADE * self._tested + tested
            self._accepted = FADE * self._accepted + accepted

    def doubt(self) -> None:
        """Give the prior more weight, because another passage begins."""
        self._tested, self._accepted = self._tested / 2, self._accepted / 2

    @property
    def value(self) -> float:
        """The acceptance to plan with."""
        return (self._accepted + self._prior * PRIOR_TESTS) / (self._tested + PRIOR_TESTS)


def best_gamma(acceptance: float, guess_cost: float, verifying: RoundCost, max_gamma: int) -> int:
    """The number of guesses with the least cost of a token; 0 where a verifier alone is best."""
    return min(range(max_gamma + 1), key=partial(cost_per_token, acceptance, guess_cost, verifying))


def cost_per_token(acceptance: float, guess_cost: float, verifying: RoundCost, num_guesses: int) -> float:
    """Mean cost of one token of a level that guesses num_guesses a round."""
    return (num_guesses * guess_cost + verifying.of(num_guesses)) / expected_tokens(acceptance, num_guesses)


MOST_LOSS = 0.03  # of the time that plain decoding takes for an answer of at least SHORTEST tokens
SHORTEST = 128
LEAST_TIMED, PLAIN_EVERY = 2, 64  # plain rounds before any guess; tokens between two later ones
LEAST_GAIN = 0.05  # guessing that is not faster by as much is not worth a trial
TRIED = 16  # tokens that a trial takes, unless it loses STOP_LOSS tokens' time before
STOP_LOSS = 2.0
WAITS = (32, 64, 128)  # tokens without guesses after one lost trial, two, three and more in a row


class Ledger:
    """The account of one answer, in seconds.

    Args:
        plain: what a plain round takes, by an earlier measurement.
        timed: whether plain rounds are timed during the answer; else `plain` does not change.
    """

    def __init__(self, plain: float, *, timed: bool) -> None:
        self._earlier, self._timed = plain, timed
        self._plain: deque[float] = deque(maxlen=5)
        self._tokens = 0
        self._lost = 0.0  # seconds beyond plain decoding's for the same tokens; below 0: gained
        self._next_plain = 0

    @property
    def plain(self) -> float:
        """Seconds of a token without guesses."""
        return median_low(self._plain) if self._plain else self._earlier

    @property
    def room(self) -> float:
        """Seconds that the next round may take beyond a plain one."""
        return MOST_LOSS * max(SHORTEST, self._tokens) * self.plain - self._lost

    @property
    def plain_is_due(self) -> bool:
        """Whether the next round should be a plain one, to be timed."""
        return self._timed and (len(self._plain) < LEAST_TIMED or self._tokens >= self._next_plain)

    def forget_times(self) -> None:
        """Time plain rounds anew, because their cost has changed."""
        self._plain.clear()

    def add(self, tokens: int, seconds: float, *, guessed: bool) -> None:
        """Add a round."""
        self._tokens += tokens
        if guessed:
            self._lost += seconds - tokens * self.plain
        elif self._timed:
            self._plain.append(seconds)
            self._next_plain = self._tokens + PLAIN_EVERY


class Trial:
    """Whether a proposer is used: in trials of TRIED tokens, with a rest after a trial that lost."""

    def __init__(self) -> None:
        self._rest = self._lost_trials = 0  # tokens to wait; lost trials in a row
        self._tokens, self._seconds = 0, 0.0

    @property
    def resting(self) -> bool:
        """Whether the proposer rests."""
        return self._rest > 0

    def rested(self, tokens: int) -> bool:
        """Count tokens that were written without it; True if that ends a rest."""
        was, self._rest = self._rest, max(0, self._rest - tokens)
        return was > 0 and self._rest == 0

    def add(self, tokens: int, seconds: float, plain: float) -> None:
        """Add a round of its guesses, where a plain token takes `plain` seconds."""
        self._tokens += tokens
        self._seconds += seconds
        lost = self._seconds / plain - self._tokens
        if lost < STOP_LOSS and self._tokens < TRIED:
            return
        if lost > -LEAST_GAIN * self._tokens:
            self.rest(lost=True)
        else:
            self._tokens, self._seconds, self._lost_trials = 0, 0.0, 0

    def rest(self, *, lost: bool = False) -> None:
        """Begin a rest. `lost`: because a trial has lost."""
        self._rest = WAITS[min(self._lost_trials, len(WAITS) - 1)]
        self._tokens, self._seconds, self._lost_trials = 0, 0.0, self._lost_trials + lost
