"""How long the rest of a reading takes. Attention makes late tokens slower than early ones; chunks show by how much."""

import time
from typing import NamedTuple

from core.generation.events import PrefillProgress

# A token at this position costs twice as much as the first one, on the bundled model. On others it is a quarter of this
# up to many times as much, which the first chunks show.
USUAL_DOUBLING = 8192.0
LEAST_DOUBLING, MOST_DOUBLING = USUAL_DOUBLING / 8, USUAL_DOUBLING * 64
LEAST_READ = 1024  # tokens of a reading that predicts others: the time of a question is mostly its passes' fixed cost
PRIOR_CHUNKS = 0.1  # weight of the usual value, in chunks: it may be wrong by a factor, a chunk by a third


class Work(NamedTuple):
    """What was read: tokens, and pairs of a token with one before it."""

    tokens: float
    pairs: float


def work_of(tokens: float) -> Work:
    """The work of reading so many tokens into an empty cache."""
    return Work(tokens, tokens * tokens / 2)


class Step(NamedTuple):
    """A chunk went through all layers, or through one."""

    kept: int  # tokens that the cache has seen
    done: int  # `kept` plus the work on a block that does not count yet, in tokens through all layers
    work: Work  # of `done`


class ReadingPace:
    """What the chunks of one engine have cost: a least-squares fit of seconds to tokens and pairs.

    The usual relation of the two weighs PRIOR_CHUNKS chunks, so that one slow chunk changes little.
    """

    def __init__(self) -> None:
        self._tt = self._tp = self._pp = self._ts = self._ps = 0.0  # sums over chunks of tokens, pairs and seconds
        self._largest = 0.0  # tokens of a chunk
        self._unit: float | None = None  # seconds a token at an empty cache, in the newest reading
        self._unit_of_texts: float | None = None  # the same, in the newest reading of a text

    def learn(self, before: Work, after: Work, seconds: float) -> None:
        """Add a chunk that took this long."""
        tokens, pairs = after.tokens - before.tokens, after.pairs - before.pairs
        self._tt += tokens * tokens
        self._tp += tokens * pairs
        self._pp += pairs * pairs
        self._ts += tokens * seconds
        self._ps += pairs * seconds
        self._largest = max(self._largest, tokens)

    @property
    def doubling(self) -> float:
        """The position at which a token costs twice what the first one costs."""
        prior = PRIOR_CHUNKS * self._largest**2
        a, b, d = self._tt + prior, self._tp - prior * USUAL_DOUBLING, self._pp + prior * USUAL_DOUBLING**2
        per_token, per_pair = d * self._ts - b * self._ps, a * self._ps - b * self._ts  # each times the determinant
        if per_token <= 0 or per_pair <= 0:
            return USUAL_DOUBLING
        return min(max(per_token / per_pair, LEAST_DOUBLING), MOST_DOUBLING)

    def remaining(self, reused: Work, done: Work, total: Work, seconds: float) -> float | None:
        """Seconds for the rest, after `seconds` for what is done; None: nothing was ever read."""
        doubling = self.doubling

        def cost(start: Work, end: Work) -> float:
            return end.tokens - start.tokens + (end.pairs - start.pairs) / doubling

        read = cost(reused, done)
        if read > 0 and seconds > 0:
            self._unit = seconds / read
            if done.tokens - reused.tokens >= LEAST_READ:
                self._unit_of_texts = self._unit
        return None if self._unit is None else max(0.0, cost(done, total)) * self._unit

    def whole(self, num_tokens: int) -> float | None:
        """Seconds to read a text of so many tokens into an empty cache; None: no text was read yet."""
        work = work_of(num_tokens)
        return None if self._unit_of_texts is None else (work.tokens + work.pairs / self.doubling) * self._unit_of_texts


class ReadingClock:
    """Turns the steps of one reading into events; `reused` of `total` tokens were cached before, at no cost."""

    def __init__(self, pace: ReadingPace, reused: int, total: int) -> None:
        self._pace, self._reused, self._total = pace, reused, total
        self._started, self._elapsed, self._before = time.perf_counter(), 0.0, work_of(reused)

    def tick(self, step: Step) -> PrefillProgress:
        """The event of a step that has just ended."""
        elapsed = time.perf_counter() - self._started if step.work != work_of(self._reused) else 0.0
        if elapsed:
            self._pace.learn(self._before, step.work, elapsed - self._elapsed)
        self._before, self._elapsed = step.work, elapsed
        return PrefillProgress(
            done_tokens=step.done,
            ahead_tokens=step.done - step.kept,
            total_tokens=self._total,
            reused_tokens=self._reused,
            elapsed_seconds=elapsed,
            remaining_seconds=self._pace.remaining(work_of(self._reused), step.work, work_of(self._total), elapsed),
        )
