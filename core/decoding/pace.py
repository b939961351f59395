"""How many guesses each level makes: by what passes take, by how guesses fare, and within what may be lost.

Passes whose cost is not known are timed before an answer (`begin`); each round is chosen (`choose`) and entered into
the ledger (`account`).
"""

import contextlib
import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from core.caches.retrieval import RetrievalCache
from core.caches.tokens import Context
from core.config import MOST_GUESSES_BELOW, SamplingParams, SpeculationConfig
from core.decoding.adaptive import (
    LEAST_GAIN,
    Ledger,
    MeasuredCost,
    RoundCost,
    TableCost,
    Trial,
    best_gamma,
    cost_per_token,
)
from core.decoding.sampling import Filters
from core.decoding.speculative import SampledModel, Speculative
from core.decoding.verify import Verdict
from core.files import replace_file
from core.models.cached_model import CachedModel
from core.ops.kernel_build import cache_folder
from core.ops.threads import process_threads

if TYPE_CHECKING:
    from core.decoding.methods import Parts

Seconds = dict[int, float]  # by rows of a pass
STEPS_AN_OCTAVE = 4  # lengths of context with measurements of their own: a pass costs up to a fifth more at the next
LOOKUP_AT_MOST = 12  # tokens proposed at once
# Passes that are timed before an answer, where their costs are not known; how often, and seconds after which that ends
MEASURED_ROWS, TRIES, MOST_MEASURING = (1, 3, 9), 3, 0.5
SLOW_PASS = 0.3  # seconds: of passes as slow as that, only the shortest and the longest are timed
MOST_SELECTING = 0.1  # seconds after which choosing chunks is not timed again
MOST_LAG = 2  # tokens that a smaller cache reads by itself; further behind, it copies from the full cache

_known: dict[Path, dict[str, Seconds]] = {}  # of this process, also where nothing can be written


class _Cancelled(Exception):
    """An answer was cancelled before its first round."""


class Pace:
    """The number of guesses of each round of one answer.

    Args:
        sampled: the models, cheapest first.
        levels: level 1 first, the top last; may be filled later. Their `gamma` is what is chosen.
        looks_up: whether lookups propose below the top.
    """

    def __init__(
        self,
        parts: "Parts",
        sampled: Sequence[SampledModel],
        levels: Sequence[Speculative],
        speculation: SpeculationConfig,
        sampling: SamplingParams,
        *,
        looks_up: bool,
    ) -> None:
        self._parts, self._sampled, self._levels = parts, sampled, levels
        self._speculation, self._sampling, self._looks_up = speculation, sampling, looks_up
        self._models = [own.model for own in sampled]
        self._verifier = self._models[-1]
        self.retrieves = any(isinstance(model.cache, RetrievalCache) for model in self._models[:-1])
        self._costs: dict[str, TableCost] = {}  # of passes by model, as measured before
        self.ledger, self._trial = Ledger(math.inf, timed=False), Trial()
        self._best = math.inf  # seconds of a token by the best way without lookups
        self.overhead = 0.0  # recent mean, seconds of a guessing round outside passes
        self._modelled_before = 0.0  # seconds of passes before the round, by the costs measured before the answer
        self._threads = process_threads().changes  # when the costs of passes began to be measured

    def begin(self, length: int, cancel: threading.Event | None) -> bool:
        """Look up or measure what passes behind so many tokens cost, and choose the first round.

        Caches keep their contents. `cancel` ends the timing between two passes; then no round may follow.

        Returns:
            Whether the cheapest model is going to guess.
        """
        for level in self._levels:
            level.recent.doubt()  # greedy answers begin with the acceptance of the last one
        try:
            self._look_up_costs(length, cancel)
        except _Cancelled:
            return False
        self.ledger = Ledger(self._costs[self._verifier.name].of(0), timed=self._sampling.greedy)
        self._shape(lag=0.0)
        return self._best < math.inf and self._levels[0].gamma > 0

    def _look_up_costs(self, length: int, cancel: threading.Event | None) -> None:
        filters = Filters.of(self._sampling, self._parts.vocab)
        kind = "greedy" if self._sampling.greedy else f"sampled, {filters}"
        folder, about = self._parts.costs_folder, f"{self._parts.costs_about()}, {kind}"
        if self.retrieves:  # first: it needs the newest votes
            measure: Callable[[], Seconds] = partial(least_seconds, {1: self._time_selection}, MOST_SELECTING, cancel)
            self.overhead = kept_costs(folder, about, "selection", length, measure)[1]
        for sampled in self._sampled:
            measure = partial(self._measure, sampled, cancel)
            name = f"{sampled.name}, counting" if self.retrieves else sampled.name
            self._costs[sampled.name] = TableCost(kept_costs(folder, about, name, length, measure))

    def _measure(self, sampled: SampledModel, cancel: threading.Event | None) -> Seconds:
        rows: tuple[int, ...] = MEASURED_ROWS
        if sampled.model.graphs is not None:  # recorded passes
            rows = (1, 1 + self._levels[-1].gamma) if sampled.model is self._verifier else (1,)

        def timed(count: int) -> float:
            self._parts.count_votes(self.retrieves and count > 1)  # as a round's verification does
            return sampled.time(count)

        try:
            return least_seconds({count: partial(timed, count) for count in rows}, MOST_MEASURING, cancel)
        finally:
            self._parts.count_votes(False)

    def _time_selection(self) -> float:
        started = time.perf_counter()
        for model in self._models:
            if isinstance(model.cache, RetrievalCache):
                model.cache.select()
        return time.perf_counter() - started

    def _modelled(self) -> float:
        """Seconds of all passes so far, by the costs measured before the answer."""
        counts = ((self._costs.get(model.name), model.meter.by_rows) for model in self._models)
        return sum(n * cost.of(rows - 1) for cost, by_rows in counts if cost for rows, n in by_rows.items())

    def choose(self, context: Context) -> None:
        """Set gammas by the cost of passes and recent acceptance; 0, a plain draw, where guessing would lose.

        Greedy text does not depend on round shapes, so its costs are the present ones. Which sample a seed gives does,
        so costs of sampled text are those measured once and kept.
        """
        top, ledger, self._modelled_before = self._levels[-1], self.ledger, self._modelled()
        if ledger.plain_is_due:
            top.gamma, self._best = 0, 0.0
        elif self._trial.resting:
            top.gamma, self._best = 0, ledger.plain
        else:
            self._shape(self._lag(context))
            if self._best >= ledger.plain:
                top.gamma, self._best = 0, ledger.plain
                self._trial.rest()

    def _lag(self, context: Context) -> float:
        """Seconds that the draft needs to read the tokens it has not seen."""
        if self._models[0] is not self._parts.draft:
            return 0.0
        unseen = sum(map(len, self._models[0].cache.unseen_spans(len(context))))
        return self._pass_cost(self._models[0]).of(unseen - 1) if unseen > MOST_LAG else 0.0

    def _shape(self, lag: float) -> None:
        """Set the gammas with the most tokens a second, within what may be lost.

        Args:
            lag: seconds that the draft needs to catch up.
        """
        models = self._models[-len(self._levels) :]
        guess = None if len(models) == len(self._models) else self._pass_cost(self._models[0]).of(0)
        for level, model in zip(self._levels, models, strict=True):
            top = level is self._levels[-1]
            cost = self._pass_cost(model, overhead=self.overhead if top else 0.0)
            if guess is None:  # only lookups, which are free: there is no proposer
                guess = cost.of(0)
                continue
            most = MOST_GUESSES_BELOW
            if top:
                if self._looks_up and self._sampling.greedy:  # lookups below make guesses cheaper
                    guess = level.seconds_per_guess or guess
                lag = lag if level is self._levels[0] or self._levels[0].gamma else 0.0  # else the draft is not used
                most = self._affordable(guess, self._speculation.max_gamma2 or self._parts.most_guesses(), lag)
            level.gamma = best_gamma(level.recent.value, guess, cost, most)
            guess = cost_per_token(level.recent.value, guess, cost, level.gamma)
            if top:
                self._best = guess if level.gamma and guess < self._bar else math.inf

    @property
    def _bar(self) -> float:
        """Seconds of a token below which guessing is worth it; kept times are less certain and need a larger gain."""
        return (1 - LEAST_GAIN * (1 if self._sampling.greedy else 2)) * self.ledger.plain

    def _affordable(self, guess: float, most: int, lag: float = 0.0) -> int:
        """The longest round that loses no more than it may, if all of its guesses are rejected."""
        cost, room = self._pass_cost(self._verifier), self.ledger.room + self.ledger.plain - lag
        return next((gamma for gamma in range(most, 0, -1) if gamma * guess + cost.of(gamma) <= room), 0)

    def worth(self, acceptance: float) -> int:
        """How many tokens of a lookup to propose to the last verifier."""
        cost = self._pass_cost(self._verifier)
        gamma = best_gamma(acceptance, 0.0, cost, self._affordable(0.0, LOOKUP_AT_MOST))
        seconds = cost_per_token(acceptance, 0.0, cost, gamma)
        return gamma if seconds < min(self._bar, self._best) else 0

    def worth_below(self, model: CachedModel, acceptance: float) -> int:
        """How many tokens of a lookup to propose to a verifier below the last."""
        return best_gamma(acceptance, 0.0, self._pass_cost(model), LOOKUP_AT_MOST)

    def _pass_cost(self, model: CachedModel, overhead: float = 0.0) -> RoundCost:
        now = model.meter.seconds_by_rows if self._sampling.greedy else {}
        return MeasuredCost(now, self._costs[model.name], overhead)

    def account(self, verdict: Verdict, wall: float, overhead: float) -> None:
        """Enter the round that was chosen last into the ledger and, if the proposer was used, into its trial.

        Args:
            wall, overhead: seconds that the round took, and those of them outside passes.
        """
        tokens, proposed = len(verdict.tokens), self._levels[-1].proposed
        guessed, seconds = len(verdict.q_of_guesses) > 0, wall
        if not self._sampling.greedy:
            seconds = self._modelled() - self._modelled_before + (self.overhead if proposed else 0.0)
        elif proposed:
            self.overhead = 0.8 * (self.overhead or overhead) + 0.2 * overhead
        if proposed:
            self._trial.add(tokens, seconds, self.ledger.plain)
        elif self._trial.rested(tokens):
            self._levels[-1].recent.doubt()
            self._verifier.meter.forget_costs()  # a single pass that was disturbed would be believed to the end
        self.ledger.add(tokens, seconds, guessed=guessed)

    def look_again(self) -> None:
        """Measure rounds anew when their number of threads has changed; passes do so themselves (`PassMeter`)."""
        if self._threads == process_threads().changes or not self._sampling.greedy:
            return
        self._threads, self.overhead = process_threads().changes, 0.0
        self.ledger.forget_times()
        for level in self._levels:
            level.seconds_per_guess = 0.0


def least_seconds(timed: Mapping[int, Callable[[], float]], most: float, cancel: threading.Event | None) -> Seconds:
    """The least time of each function, by its number, the quickest first.

    They are timed in turns, because other work disturbs all alike, for `most` seconds in all.

    Raises:
        _Cancelled: `cancel` was set.
    """
    least: Seconds = {}
    total = 0.0
    for _ in range(TRIES):
        for number, took in timed.items():
            if cancel and cancel.is_set():
                raise _Cancelled
            if number not in (min(timed), max(timed)) and least[min(timed)] > SLOW_PASS:
                continue
            seconds = took()
            total += seconds
            least[number] = min(seconds, least.get(number, seconds))
        if total >= most:
            break
    return least


def costs_folder() -> Path:
    """Where they are kept; without a home, a place where nothing can be written."""
    try:
        return cache_folder("pass-costs")
    except RuntimeError:
        return Path(os.devnull) / "pass-costs"


def kept_costs(
    folder: Path, about: str, model: str, length: int, measure: Callable[[], Seconds]
) -> Mapping[int, float]:
    """Seconds of a model's passes by their rows, behind so many tokens; measured if they are not known.

    Args:
        about: everything else that they depend on.
    """
    file = folder / f"{hashlib.sha256(about.encode()).hexdigest()[:16]}.json"
    if file not in _known:
        _known[file] = _read(file)
    key = f"{model} {round(STEPS_AN_OCTAVE * math.log2(max(length, 1)))}"
    if key not in _known[file]:
        found = _read(file)  # another process may have measured it meanwhile
        if key not in found:
            found = {key: _rising(measure()), **_read(file)}
            _write(file, {**found, **_known[file]})
        _known[file] = {**found, **_known[file]}
    return _known[file][key]


def _rising(seconds: Seconds) -> Seconds:
    """More rows never cost less: what says so was disturbed."""
    least, rising = 0.0, {}
    for rows, took in sorted(seconds.items()):
        least = rising[rows] = max(least, took)
    return rising


def _read(file: Path) -> dict[str, Seconds]:
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        return {str(key): {int(rows): float(took) for rows, took in by_rows.items()} for key, by_rows in held.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _write(file: Path, held: Mapping[str, Seconds]) -> None:
    with contextlib.suppress(OSError):  # then only this process knows them
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(file, json.dumps(held).encode())
