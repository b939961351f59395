"""How the methods of the registry are composed: each model proposes to the next, cheapest first.

TriForce (arXiv 2404.11912) is Speculative(Speculative(draft, target + retrieval), target + full).
"""

import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from core.caches.retrieval import HeldPart, RetrievalCache
from core.caches.streaming import HeldWindow, StreamingCache
from core.caches.tokens import Context
from core.config import RetrievalConfig, SamplingParams, SpeculationConfig
from core.decoding.adaptive import MeasuredCost, RecentAcceptance, RoundCost, TableCost, best_gamma, cost_per_token
from core.decoding.grammar import Grammar
from core.decoding.ledger import LEAST_GAIN, Ledger, Trial
from core.decoding.ngram_lookup import Lookup, TokenIndex
from core.decoding.pass_costs import Seconds, kept_costs
from core.decoding.registry import Method, check_method, default_method
from core.decoding.sampling import Filters, TokenSampler
from core.decoding.speculative import (
    AutoregressiveProposer,
    NoProposer,
    Passes,
    SampledModel,
    Speculative,
    alone,
)
from core.decoding.stats import LevelStats
from core.decoding.verify import Verdict
from core.errors import UnsupportedModel
from core.models.cached_model import CachedModel
from core.ops.threads import process_threads

PRIOR_LEVEL1, PRIOR_LEVEL2 = 0.7, 0.9  # initial acceptance for adaptation; a few rounds override it
LOOKUP_AT_MOST = 12  # tokens proposed at once
# Passes that are timed before an answer, where their costs are not known; how often, and seconds after which that ends
MEASURED_ROWS, TRIES, MOST_MEASURING = (1, 3, 9), 3, 0.5
SLOW_PASS = 0.3  # seconds: of passes as slow as that, only the shortest and the longest are timed
MOST_SELECTING = 0.1  # seconds after which choosing chunks is not timed again
MOST_LAG = 2  # tokens that a smaller cache reads by itself; further behind, it copies from the full cache
LOW_ACCEPTANCE = 0.5  # of a level-2 guess: below it chunks are chosen again at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What methods are composed of. Caches are shared between methods; one method runs at a time."""

    full: CachedModel
    retrieval: CachedModel
    draft: CachedModel | None
    index: TokenIndex  # of the conversation, for n-gram lookups
    vocab: int
    evicting: Callable[[str], CachedModel]  # the target with a lossy cache, by method name; made at its first use
    config: RetrievalConfig
    costs_about: Callable[[], str]  # what the costs of passes depend on, besides their rows and the context's length
    costs_folder: Path  # where they are kept
    most_guesses: Callable[[], int]  # of a round that the full cache verifies, if the settings do not say
    acceptance: dict[tuple[str, int], RecentAcceptance] = field(default_factory=dict)  # greedy, by method and level
    # Whether passes over the full cache count votes; False also forgets those that were counted
    count_votes: Callable[[bool], None] = lambda wanted: None


class _Cancelled(Exception):
    """An answer was cancelled before its first round."""


class Aside(NamedTuple):
    """The contents of an answer's smaller caches, by model."""

    parts: dict[str, HeldPart]
    windows: dict[str, HeldWindow]


class Decoder:
    """One method decoding one answer. `grammar`: what its text follows, at every level."""

    def __init__(
        self,
        name: str,
        parts: Parts,
        sampling: SamplingParams,
        speculation: SpeculationConfig,
        grammar: Grammar | None = None,
    ) -> None:
        method = check_method(name)
        self.name, self.exact = name, method.exact
        self.models = models_of(name, parts)  # cheapest first, the final verifier last
        self._parts, self._speculation, self._sampling = parts, speculation, sampling
        self._sampled = [SampledModel(model, sampling, grammar) for model in self.models]
        self.levels: list[Speculative] = []  # level 1 first, the top last
        stands_in = method.lookup_at_least > 0 and not method.needs_draft  # lookups, for the draft
        self._top: AutoregressiveProposer | Speculative = AutoregressiveProposer(self._sampled[0])
        verifiers = self._sampled if stands_in else self._sampled[1:]
        gammas, priors = (speculation.gamma1, speculation.gamma2), (PRIOR_LEVEL1, PRIOR_LEVEL2)
        for number, sampled in enumerate(verifiers, 2 - len(verifiers)):
            lowest = stands_in and not self.levels
            lookup = self._make_lookup(method, sampled) if method.lookup_at_least else None
            self._top = Speculative(
                NoProposer() if lowest else self._top,
                sampled,
                0 if lowest else gammas[number],
                lookup=lookup,
                prior=priors[number],
            )
            if sampling.greedy:  # sampled text depends on round shapes, which must not depend on other answers
                self._top.recent = parts.acceptance.setdefault((name, number), self._top.recent)
            self.levels.append(self._top)
        self._index = parts.index if method.lookup_at_least else None
        self._synced = False  # whether the n-gram index holds the conversation
        self._costs: dict[str, TableCost] = {}  # of passes by model, and of choosing chunks, as measured before
        self._ledger, self._trial = Ledger(math.inf, timed=False), Trial()
        self._best = math.inf  # seconds of a token by the best way without lookups
        self._overhead = 0.0  # recent mean, seconds of a guessing round outside passes
        self._threads = process_threads().changes  # when the costs of passes began to be measured
        self.reselections = 0
        self.waited_seconds = 0.0  # in rounds, while passes were computed for other conversations
        for level in self.levels:
            level.clock = self._clock

    def _make_lookup(self, method: Method, sampled: SampledModel) -> Lookup | None:
        """The lookups of a level. Rounds of a fixed shape have them at level 1 alone."""
        worth: Callable[[float], int] | None = None
        if self._speculation.adaptive:
            worth = self._worth if sampled is self._sampled[-1] else partial(self._worth_below, sampled.model)
        elif self.levels:
            return None
        return Lookup(
            self._parts.index,
            self._parts.vocab,
            self.verifier.device,
            at_least=method.lookup_at_least,
            at_most=LOOKUP_AT_MOST,
            worth=worth,
            certain=self._sampling.greedy,
        )

    @property
    def verifier(self) -> CachedModel:
        """The model that verifies last."""
        return self.models[-1]

    @property
    def vocab(self) -> int:
        """Number of tokens in the models' vocabulary."""
        return self._parts.vocab

    def note_logits(self) -> None:
        """Keep the logits of each step for `logits`."""
        self._sampled[-1].noting = True

    @property
    def logits(self) -> Tensor:
        """The verifier's logits at the places of the newest step's tokens, [>= a + 1, V]; valid until the next step."""
        return self._sampled[-1].noted

    def reset_meters(self) -> None:
        """Count passes from here on: those before were prefill."""
        for model in self.models:
            model.meter.reset()

    def start(self, context: Context, cancel: threading.Event | None = None) -> None:
        """Choose the contents of the smaller caches after the prompt was read into the full cache.

        Their old contents are dropped, so that a seed's draws do not depend on earlier answers. The draft reads its
        window if it will be used, and passes of unknown cost are timed. None of this counts as decoding. `cancel` ends
        the timing between two passes; then no round may follow.
        """
        self._parts.count_votes(False)
        self.verifier.meter.forget_costs()  # costs depend on how much it has read
        for model in self.models:
            if isinstance(model.cache, RetrievalCache):
                model.cache.select()
            elif model is self._parts.draft:
                model.cache.truncate(0)
        self._record()
        if not self._adapts:
            return
        for level in self.levels:
            level.recent.doubt()  # greedy answers begin with the acceptance of the last one
        with suppress(_Cancelled):
            self._begin_costs(context, cancel)
        self.reset_meters()

    def _begin_costs(self, context: Context, cancel: threading.Event | None) -> None:
        self._look_up_costs(len(context), cancel)
        self._ledger = Ledger(self._costs[self.verifier.name].of(0), timed=self._sampling.greedy)
        self._shape(lag=0.0)
        if self._best < math.inf and self.levels[0].gamma and self.models[0] is self._parts.draft:
            self._feed_unseen(self.models[0], context)

    @property
    def _retrieves(self) -> bool:
        return any(isinstance(model.cache, RetrievalCache) for model in self.models[:-1])

    @property
    def _adapts(self) -> bool:
        return self._speculation.adaptive and bool(self.levels)

    def _look_up_costs(self, length: int, cancel: threading.Event | None) -> None:
        """Look up or measure what passes behind so many tokens cost. Caches keep their contents. Raises _Cancelled."""
        kind = "greedy" if self._sampling.greedy else f"sampled, {Filters.of(self._sampling, self.vocab)}"
        folder, about = self._parts.costs_folder, f"{self._parts.costs_about()}, {kind}"
        if self._retrieves:  # first: it needs the newest votes
            measure: Callable[[], Seconds] = partial(least_seconds, {1: self._time_selection}, MOST_SELECTING, cancel)
            self._overhead = kept_costs(folder, about, "selection", length, measure)[1]
        for sampled in self._sampled:
            measure = partial(self._measure, sampled, cancel)
            name = f"{sampled.name}, counting" if self._retrieves else sampled.name
            self._costs[sampled.name] = TableCost(kept_costs(folder, about, name, length, measure))

    def _measure(self, sampled: SampledModel, cancel: threading.Event | None) -> Seconds:
        rows: tuple[int, ...] = MEASURED_ROWS
        if sampled.model.graphs is not None:  # recorded passes
            rows = (1, 1 + self.levels[-1].gamma) if sampled.model is self.verifier else (1,)

        def timed(count: int) -> float:
            self._parts.count_votes(self._retrieves and count > 1)  # as a round's verification does
            return sampled.time(count)

        try:
            return least_seconds({count: partial(timed, count) for count in rows}, MOST_MEASURING, cancel)
        finally:
            self._parts.count_votes(False)

    def _time_selection(self) -> float:
        started = time.perf_counter()
        for model in self.models:
            if isinstance(model.cache, RetrievalCache):
                model.cache.select()
        return time.perf_counter() - started

    def _record(self) -> None:
        """Record what the first rounds replay, before the answer's clock runs. Caches keep their contents."""
        gammas = [0] * (len(self.models) - len(self.levels)) + [level.gamma for level in self.levels]
        for sampled, gamma in zip(self._sampled, gammas, strict=True):
            # When a whole guess was accepted, its proposer has two tokens to read: the guess's last and the bonus
            most_unseen = 1 if sampled.model is self.verifier else 2
            sampled.record(gamma, most_unseen, self.vocab, self.verifier.cache.length)

    @property
    def recording_seconds(self) -> float:
        """Seconds spent so far on recording passes and distributions, for all answers: not decoding time."""
        shared = {model.graphs for model in self.models if model.graphs is not None}
        return sum(graphs.recording_seconds for graphs in shared)

    def set_aside(self) -> "Aside":
        """Set aside what the smaller caches hold of this answer, because another answer is about to use them."""
        held = Aside({}, {})
        for model in self.models[:-1]:
            if isinstance(model.cache, RetrievalCache):
                held.parts[model.name] = model.cache.set_aside()
            elif isinstance(model.cache, StreamingCache):
                held.windows[model.name] = model.cache.set_aside()
        return held

    def put_back(self, held: "Aside", shared: int) -> None:
        """Continue as if no other answer had used the caches meanwhile.

        Args:
            shared: leading tokens that the answers have in common.
        """
        self._synced = False
        for model in self.models[:-1]:
            if isinstance(model.cache, RetrievalCache):
                model.cache.put_back(held.parts[model.name], shared)
            elif isinstance(model.cache, StreamingCache):
                model.cache.put_back(held.windows[model.name])

    def drop(self, held: "Aside") -> None:
        """Free what was set aside and will not be put back."""
        for model in self.models[:-1]:
            if isinstance(model.cache, RetrievalCache):
                model.cache.forget(held.parts[model.name])

    def resume(self, context: Context) -> None:
        """Continue from the full cache alone: choose chunks again, let the draft catch up."""
        self._parts.count_votes(False)
        self._synced = False
        for model in self.models[:-1]:
            model.cache.truncate(0)
            if isinstance(model.cache, RetrievalCache):
                model.cache.select()
            self._feed_unseen(model, context)

    def _feed_unseen(self, model: CachedModel, context: Context) -> None:
        for span in model.cache.unseen_spans(len(context) - 1):
            if span:
                model.feed(context, span, 1)

    def forget(self) -> None:
        """After `start` failed: drop what it chose so far."""
        for model in self.models:
            if model is not self._parts.full:
                model.cache.truncate(0)

    def recover(self, context: Context) -> None:
        """After `step` failed: set every cache to the committed tokens, ready for the next step. Exact methods only."""
        self.verifier.cache.truncate(len(context) - 1)
        self.resume(context)

    def step(self, context: Context, sampler: TokenSampler) -> Verdict:
        """One pass of the final verifier: one or more tokens that follow its distribution."""
        return alone(self.passes(context, sampler))

    def passes(self, context: Context, sampler: TokenSampler) -> Passes[Verdict]:
        """As `step`; the caller computes the passes."""
        if not self.levels:
            self._parts.count_votes(False)
            return (yield from self._top.round(context, sampler))
        if self._index is not None:
            self._follow(self._index, context)
        self._look_again()
        top, began, passing, modelled = self.levels[-1], self._own_clock(), self._pass_seconds(), self._modelled()
        if self._adapts:
            self._choose_shape(context)
        retrieves = top.gamma > 0 and self._retrieves
        self._parts.count_votes(retrieves)
        if retrieves and self._adapts:
            self._catch_up(len(context) - 1)
        verdict = yield from self._top.round(context, sampler)
        if retrieves and (top.proposed or not self._adapts):
            self._reselect(verdict)
        if self._adapts:
            seconds = self._own_clock() - began
            self._account(verdict, seconds, seconds - (self._pass_seconds() - passing), self._modelled() - modelled)
        return verdict

    def _follow(self, index: TokenIndex, context: Context) -> None:
        """Bring the n-gram index to the conversation."""
        if self._synced:
            index.extend(context.span(len(index.tokens), len(context)))
        else:
            index.sync(context.span(0, len(context)))
            self._synced = True

    def _clock(self) -> float:
        """Seconds since any fixed moment, without those that this conversation waited for others."""
        return time.perf_counter() - self.waited_seconds

    def _own_clock(self) -> float:
        return self._clock() - self.recording_seconds

    def _pass_seconds(self) -> float:
        return sum(model.meter.seconds for model in self.models)

    def _modelled(self) -> float:
        """Seconds of all passes so far, by the costs measured before the answer."""
        counts = ((self._costs.get(model.name), model.meter.by_rows) for model in self.models)
        return sum(n * cost.of(rows - 1) for cost, by_rows in counts if cost for rows, n in by_rows.items())

    def _catch_up(self, length: int) -> None:
        """Choose chunks anew where the retrieval cache lags behind rounds that did not use it."""
        for model in self.models[:-1]:
            if isinstance(model.cache, RetrievalCache) and length - model.cache.length > MOST_LAG:
                model.cache.select()

    def _reselect(self, verdict: Verdict) -> None:
        """Choose chunks again when the text has moved on, or when acceptance is low."""
        for model in self.models[:-1]:
            cache = model.cache
            if not isinstance(cache, RetrievalCache):
                continue
            poor = verdict.num_accepted < LOW_ACCEPTANCE * self.levels[-1].gamma
            if cache.tokens_since_selection >= self._parts.config.reselect_interval or poor:
                cache.select()
                self.reselections += 1

    # -------------------- the shape of rounds

    def _choose_shape(self, context: Context) -> None:
        """Set gammas by the cost of passes and recent acceptance; 0, a plain draw, where guessing would lose.

        Greedy text does not depend on round shapes, so its costs are the present ones. Which sample a seed gives does,
        so costs of sampled text are those measured once and kept.
        """
        top, ledger = self.levels[-1], self._ledger
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
        if self.models[0] is not self._parts.draft:
            return 0.0
        unseen = sum(map(len, self.models[0].cache.unseen_spans(len(context))))
        return self._pass_cost(self.models[0]).of(unseen - 1) if unseen > MOST_LAG else 0.0

    def _shape(self, lag: float) -> None:
        """Set the gammas with the most tokens a second, within what may be lost.

        Args:
            lag: seconds that the draft needs to catch up.
        """
        models = self.models[-len(self.levels) :]
        guess = None if len(models) == len(self.models) else self._pass_cost(self.models[0]).of(0)
        for level, model in zip(self.levels, models, strict=True):
            top = level is self.levels[-1]
            cost = self._pass_cost(model, overhead=self._overhead if top else 0.0)
            if guess is None:  # only lookups, which are free: there is no proposer
                guess = cost.of(0)
                continue
            most = self._speculation.max_gamma1
            if top:
                if self._index is not None and self._sampling.greedy:  # lookups below make guesses cheaper
                    guess = level.seconds_per_guess or guess
                lag = lag if level is self.levels[0] or self.levels[0].gamma else 0.0  # else the draft is not used
                most = self._affordable(guess, self._speculation.max_gamma2 or self._parts.most_guesses(), lag)
            level.gamma = best_gamma(level.recent.value, guess, cost, most)
            guess = cost_per_token(level.recent.value, guess, cost, level.gamma)
            if top:
                self._best = guess if level.gamma and guess < self._bar else math.inf

    @property
    def _bar(self) -> float:
        """Seconds of a token below which guessing is worth it; kept times are less certain and need a larger gain."""
        return (1 - LEAST_GAIN * (1 if self._sampling.greedy else 2)) * self._ledger.plain

    def _affordable(self, guess: float, most: int, lag: float = 0.0) -> int:
        """The longest round that loses no more than it may, if all of its guesses are rejected."""
        cost, room = self._pass_cost(self.verifier), self._ledger.room + self._ledger.plain - lag
        return next((gamma for gamma in range(most, 0, -1) if gamma * guess + cost.of(gamma) <= room), 0)

    def _worth(self, acceptance: float) -> int:
        """How many tokens of a lookup to propose to the last verifier."""
        cost = self._pass_cost(self.verifier)
        gamma = best_gamma(acceptance, 0.0, cost, self._affordable(0.0, LOOKUP_AT_MOST))
        seconds = cost_per_token(acceptance, 0.0, cost, gamma)
        return gamma if seconds < min(self._bar, self._best) else 0

    def _worth_below(self, model: CachedModel, acceptance: float) -> int:
        """How many tokens of a lookup to propose to a verifier below the last."""
        return best_gamma(acceptance, 0.0, self._pass_cost(model), LOOKUP_AT_MOST)

    def _pass_cost(self, model: CachedModel, overhead: float = 0.0) -> RoundCost:
        now = model.meter.seconds_by_rows if self._sampling.greedy else {}
        return MeasuredCost(now, self._costs[model.name], overhead)

    def _account(self, verdict: Verdict, wall: float, overhead: float, modelled: float) -> None:
        """Enter a round into the ledger and, if the proposer was used, into its trial."""
        tokens, proposed = len(verdict.tokens), self.levels[-1].proposed
        guessed, seconds = len(verdict.q_of_guesses) > 0, wall
        if not self._sampling.greedy:
            seconds = modelled + (self._overhead if proposed else 0.0)
        elif proposed:
            self._overhead = 0.8 * (self._overhead or overhead) + 0.2 * overhead
        if proposed:
            self._trial.add(tokens, seconds, self._ledger.plain)
        elif self._trial.rested(tokens):
            self.levels[-1].recent.doubt()
            self.verifier.meter.forget_costs()  # a single pass that was disturbed would be believed to the end
        self._ledger.add(tokens, seconds, guessed=guessed)

    def _look_again(self) -> None:
        """Measure rounds anew when their number of threads has changed; passes do so themselves (`PassMeter`)."""
        if self._threads == process_threads().changes or not self._sampling.greedy:
            return
        self._threads, self._overhead = process_threads().changes, 0.0
        self._ledger.forget_times()
        for level in self.levels:
            level.seconds_per_guess = 0.0

    @property
    def level_stats(self) -> tuple[LevelStats | None, LevelStats | None]:
        """Level 1 and level 2 so far; methods with one model above the proposer have level 2 only."""
        stats = [level.counter.snapshot() for level in self.levels]
        return (stats[0] if len(stats) == 2 else None, stats[-1] if stats else None)


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


def models_of(name: str, parts: Parts) -> list[CachedModel]:
    """The models of a method, cheapest first.

    Raises:
        InvalidSetting: no such method.
        UnsupportedModel: the method needs a draft model and there is none.
    """
    method = check_method(name)
    if not method.exact:
        return [parts.evicting(name)]
    by_name = {"draft": parts.draft, "retrieval": parts.retrieval, "full": parts.full}
    models = [model for part in method.models if (model := by_name[part]) is not None]
    if len(models) < len(method.models):
        hint = f"Use --method {default_method(has_draft=False)} instead."
        raise UnsupportedModel(f"The method {name!r} needs a draft model.", hint=hint)
    return models
