"""How the methods of the registry are composed of the same few parts.

The registry names the models of each method, cheapest first. Each model proposes to the next, so TriForce is
Speculative(Speculative(draft, target + retrieval), target + full), arXiv 2404.11912.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from core.caches.retrieval import HeldPart, RetrievalCache
from core.caches.streaming import HeldWindow, StreamingCache
from core.caches.tokens import Context
from core.config import RetrievalConfig, SamplingParams, SpeculationConfig
from core.decoding.adaptive import MeasuredCost, PassCost, RecentAcceptance, RoundCost, best_gamma, cost_per_token
from core.decoding.grammar import Grammar
from core.decoding.ngram_lookup import Lookup, TokenIndex
from core.decoding.registry import Method, check_method, default_method
from core.decoding.sampling import TokenSampler
from core.decoding.speculative import (
    AutoregressiveProposer,
    NoProposer,
    Pass,
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

PRIOR_LEVEL1, PRIOR_LEVEL2 = 0.6, 0.9  # initial acceptance for adaptation; a few rounds override it
PROBE_INTERVAL = 24  # rounds after which a level that was switched off because guessing lost is tried again
PROBE_GAMMA = 2
LOOKUP_AT_MOST = 12  # tokens proposed at once
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
    nominal_cost: Callable[[CachedModel], PassCost]  # modelled cost of a pass, from sizes and the plan alone
    most_guesses: Callable[[], int]  # of a round that the full cache verifies, if the settings do not say
    # Takes whether passes over the full cache are to count what they attend to; if not, what was counted is forgotten
    count_votes: Callable[[bool], None] = lambda wanted: None


class Aside(NamedTuple):
    """What the smaller caches held of an answer, by model."""

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
        all_sampled = self._sampled = [SampledModel(model, sampling, grammar) for model in self.models]
        self.levels: list[Speculative] = []  # level 1 first, the top last
        self._lookup = make_lookup(method, parts) if method.lookup_at_least else None
        self._top: AutoregressiveProposer | Speculative = AutoregressiveProposer(all_sampled[0])
        lookup_alone = self._lookup is not None and not method.needs_draft
        if lookup_alone:
            self._top = Speculative(NoProposer(), all_sampled[0], 0, lookup=self._lookup)
            self.levels.append(self._top)
        gammas = [speculation.gamma1, speculation.gamma2][3 - len(all_sampled) :]
        for number, (sampled, gamma) in enumerate(zip(all_sampled[1:], gammas, strict=True)):
            lookup = self._lookup if number == 0 and not lookup_alone else None
            self._top = Speculative(self._top, sampled, gamma, lookup=lookup)
            self.levels.append(self._top)
        priors = [PRIOR_LEVEL1, PRIOR_LEVEL2][-len(self.levels) :] if self.levels else []
        self._recent = [RecentAcceptance(prior) for prior in priors]
        self._idle_rounds = [0] * len(self.levels)
        self._synced = False  # whether the n-gram index has the conversation
        self._round_overhead = 0.0  # recent mean, seconds of a round outside passes
        self._threads = process_threads().changes  # when the costs of passes began to be measured
        self.reselections = 0
        self.waited_seconds = 0.0  # in rounds, while passes were computed for other conversations
        self.begins_plainly = False  # greedy rounds begin with one of one row, which no model of costs foretells
        for level in self.levels:
            level.clock = self._clock

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

    def start(self) -> None:
        """Choose the contents of the smaller caches after the prompt was read into the full cache.

        Their old contents are dropped: what a seed draws may depend on the prompt, not on earlier answers.
        """
        self._parts.count_votes(False)
        self.verifier.meter.forget_costs()  # costs depend on how much it has read
        for model in self.models:
            if isinstance(model.cache, RetrievalCache):
                model.cache.select()
            elif model is self._parts.draft:
                model.cache.truncate(0)
        self._record()

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
        """As `step`, for somebody who computes the passes."""
        self._parts.count_votes(any(isinstance(model.cache, RetrievalCache) for model in self.models[:-1]))
        if not self.levels:
            return (yield from self._top.round(context, sampler))
        if self._lookup and self._synced:
            self._lookup.extend(context)
        elif self._lookup:
            self._lookup.sync(context.span(0, len(context)))
            self._synced = True
        self._look_again()
        if self._adapts_by_times and self._round_overhead == 0:
            yield from self._calibrate(context)
        gamma = self.levels[-1].gamma
        if self.begins_plainly and self._adapts_by_times and 1 not in self.verifier.meter.seconds_by_rows:
            self.levels[-1].gamma = 0
        started, aside = self._clock(), self._pass_seconds() + self.recording_seconds
        verdict = yield from self._top.round(context, sampler)
        self._reselect(verdict)
        overhead = self._clock() - started - (self._pass_seconds() + self.recording_seconds - aside)
        self._round_overhead = 0.8 * (self._round_overhead or overhead) + 0.2 * overhead
        self.levels[-1].gamma = gamma
        if self._speculation.adaptive:
            self._adapt()
        return verdict

    @property
    def _adapts_by_times(self) -> bool:
        return self._speculation.adaptive and self._sampling.greedy

    def _clock(self) -> float:
        """Seconds since any fixed moment, without those that this conversation waited for others."""
        return time.perf_counter() - self.waited_seconds

    def _pass_seconds(self) -> float:
        return sum(model.meter.seconds for model in self.models)

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

    def _adapt(self) -> None:
        """Set gammas by acceptance and cost so far; 0, a plain draw, where guessing would lose.

        Greedy text does not depend on round shapes, so there costs are measured times. Sampled text does depend on
        them (not its distribution, but which sample a seed gives), so there costs are modelled from the plan and a
        seed stays reproducible.
        """
        below = self.models[: -len(self.levels)]  # the proposer of the first level, if any
        guess_cost = self._pass_cost(below[0]).of(0) if below else None
        for number, level in enumerate(self.levels):
            cost = self._pass_cost(self.models[len(below) + number])
            if guess_cost is None:  # only lookups: they are free, and the proposer is never asked
                guess_cost = cost.of(0)
                continue
            if number and self._lookup and self._sampling.greedy:  # lookups below: what a guess really takes
                guess_cost = level.seconds_per_guess or guess_cost
            most = self._speculation.max_gamma1
            if level is self._top:
                most = self._speculation.max_gamma2 or self._parts.most_guesses()
            acceptance = self._recent[number].update(level.proposed.snapshot())
            gamma = best_gamma(acceptance, guess_cost, cost, most)
            self._idle_rounds[number] = 0 if gamma else self._idle_rounds[number] + 1
            probe = self._idle_rounds[number] % PROBE_INTERVAL == PROBE_INTERVAL - 1
            level.gamma = PROBE_GAMMA if probe else gamma
            guess_cost = cost_per_token(acceptance, guess_cost, cost, gamma)

    def _pass_cost(self, model: CachedModel) -> RoundCost:
        modelled = self._parts.nominal_cost(model)
        if not self._sampling.greedy:
            return modelled
        overhead = self._round_overhead if model is self.verifier else 0.0
        return MeasuredCost(model.meter.seconds_by_rows, modelled, overhead)

    def _look_again(self) -> None:
        """Measure rounds anew when their number of threads has changed; passes do so themselves (`PassMeter`)."""
        if self._threads == process_threads().changes:
            return
        self._threads, self._round_overhead = process_threads().changes, 0.0
        for level in self.levels:
            level.seconds_per_guess = 0.0

    def _calibrate(self, context: Context) -> Passes[None]:
        """Time one row through the middle models: a pass of several rows does not show what one row costs."""
        for sampled in self._sampled[-len(self.levels) : -1]:
            if 1 not in sampled.model.meter.seconds_by_rows:
                yield Pass(sampled, context, 1)
                sampled.truncate(len(context) - 1)

    @property
    def level_stats(self) -> tuple[LevelStats | None, LevelStats | None]:
        """Level 1 and level 2 so far; methods with one model above the proposer have level 2 only."""
        stats = [level.counter.snapshot() for level in self.levels]
        return (stats[0] if len(stats) == 2 else None, stats[-1] if stats else None)


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
    found = [model for part in method.models if (model := by_name[part]) is not None]
    if len(found) < len(method.models):
        hint = f"Use --method {default_method(has_draft=False)} instead."
        raise UnsupportedModel(f"The method {name!r} needs a draft model.", hint=hint)
    return found


def make_lookup(method: Method, parts: Parts) -> Lookup:
    """The n-gram lookup that proposes for a method."""
    device, at_least = parts.full.device, method.lookup_at_least
    return Lookup(parts.index, parts.vocab, device, at_least=at_least, at_most=LOOKUP_AT_MOST)
