"""Whether guessing pays, measured against plain rounds.

An answer may lose MOST_LOSS of plain decoding's time, plus what guessing has gained. Times are the clock's or, where a
seed must give the same text again, a table's.
"""

from collections import deque
from statistics import median_low

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
