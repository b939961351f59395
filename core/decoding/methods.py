"""How the methods of the registry are composed: each model proposes to the next, cheapest first.

TriForce (arXiv 2404.11912) is Speculative(Speculative(draft, target + retrieval), target + full).
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from core.caches.retrieval import HeldPart, RetrievalCache
from core.caches.streaming import HeldWindow, StreamingCache
from core.caches.tokens import Context
from core.config import RetrievalConfig, SamplingParams, SpeculationConfig
from core.decoding.adaptive import RecentAcceptance
from core.decoding.ngram_lookup import Lookup, TokenIndex
from core.decoding.pace import LOOKUP_AT_MOST, MOST_LAG, Pace
from core.decoding.registry import Method, check_method, default_method
from core.decoding.sampling import TokenSampler
from core.decoding.speculative import AutoregressiveProposer, Passes, SampledModel, Speculative, alone
from core.decoding.stats import LevelStats
from core.decoding.verify import Verdict
from core.errors import UnsupportedModel
from core.models.cached_model import CachedModel

if TYPE_CHECKING:
    from core.decoding.grammar import Grammar

PRIOR_LEVEL1, PRIOR_LEVEL2 = 0.7, 0.9  # initial acceptance for adaptation; a few rounds override it
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


class Aside(NamedTuple):
    """The contents of an answer's smaller caches."""

    part: HeldPart | None
    window: HeldWindow | None


class Decoder:
    """One method decoding one answer. `grammar`: what its text follows, at every level."""

    def __init__(
        self,
        name: str,
        parts: Parts,
        sampling: SamplingParams,
        speculation: SpeculationConfig,
        grammar: "Grammar | None" = None,
    ) -> None:
        method = check_method(name)
        self.name, self.exact = name, method.exact
        self.models = models_of(name, parts)  # cheapest first, the final verifier last
        smaller = [model.cache for model in self.models[:-1]]
        self._retrieval = next((cache for cache in smaller if isinstance(cache, RetrievalCache)), None)
        self._streaming = next((cache for cache in smaller if isinstance(cache, StreamingCache)), None)
        self._parts, self._speculation, self._sampling = parts, speculation, sampling
        self._sampled = [SampledModel(model, sampling, grammar) for model in self.models]
        self.levels: list[Speculative] = []  # level 1 first, the top last
        looks_up = method.lookup_at_least > 0
        self.pace = Pace(parts, self._sampled, self.levels, speculation, sampling, looks_up=looks_up)
        stands_in = method.lookup_at_least > 0 and not method.needs_draft  # lookups, for the draft
        self._top: AutoregressiveProposer | Speculative = AutoregressiveProposer(self._sampled[0])
        verifiers = self._sampled if stands_in else self._sampled[1:]
        gammas, priors = (speculation.gamma1, speculation.gamma2), (PRIOR_LEVEL1, PRIOR_LEVEL2)
        for number, sampled in enumerate(verifiers, 2 - len(verifiers)):
            lowest = stands_in and not self.levels
            lookup = self._make_lookup(method, sampled) if method.lookup_at_least else None
            self._top = Speculative(
                None if lowest else self._top,
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
        self.reselections = 0
        self.waited_seconds = 0.0  # in rounds, while passes were computed for other conversations
        for level in self.levels:
            level.clock = self._clock

    def _make_lookup(self, method: Method, sampled: SampledModel) -> Lookup | None:
        """The lookups of a level. Rounds of a fixed shape have them at level 1 alone."""
        worth: Callable[[float], int] | None = None
        if self._speculation.adaptive:
            worth = self.pace.worth if sampled is self._sampled[-1] else partial(self.pace.worth_below, sampled.model)
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
        if self.pace.begin(len(context), cancel) and self.models[0] is self._parts.draft:
            self._feed_unseen(self.models[0], context)
        self.reset_meters()

    @property
    def _adapts(self) -> bool:
        return self._speculation.adaptive and bool(self.levels)

    def _record(self) -> None:
        """Record what the first rounds replay, before the answer's clock runs. Caches keep their contents."""
        gammas = [0] * (len(self.models) - len(self.levels)) + [level.gamma for level in self.levels]
        for sampled, gamma in zip(self._sampled, gammas, strict=True):
            # When a whole guess was accepted, its proposer has two tokens to read: the guess's last and the bonus
            most_unseen = 1 if sampled.model is self.verifier else 2
            sampled.record(gamma, most_unseen, self._parts.vocab, self.verifier.cache.length)

    @property
    def recording_seconds(self) -> float:
        """Seconds spent so far on recording passes and distributions, for all answers: not decoding time."""
        shared = {model.graphs for model in self.models if model.graphs is not None}
        return sum(graphs.recording_seconds for graphs in shared)

    def set_aside(self) -> "Aside":
        """Set aside what the smaller caches hold of this answer, because another answer is about to use them."""
        part = self._retrieval.set_aside() if self._retrieval else None
        return Aside(part, self._streaming.set_aside() if self._streaming else None)

    def put_back(self, held: "Aside", shared: int) -> None:
        """Continue as if no other answer had used the caches meanwhile.

        Args:
            shared: leading tokens that the answers have in common.
        """
        self._synced = False
        if self._retrieval and held.part:
            self._retrieval.put_back(held.part, shared)
        if self._streaming and held.window:
            self._streaming.put_back(held.window)

    def drop(self, held: "Aside") -> None:
        """Free what was set aside and will not be put back."""
        if self._retrieval and held.part:
            self._retrieval.forget(held.part)

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
        self._parts.count_votes(False)
        self._synced = False
        for model in self.models[:-1]:
            model.cache.truncate(0)
            if isinstance(model.cache, RetrievalCache):
                model.cache.select()
            self._feed_unseen(model, context)

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
        self.pace.look_again()
        top, began, passing = self.levels[-1], self._own_clock(), self._pass_seconds()
        if self._adapts:
            self.pace.choose(context)
        retrieval = self._retrieval if top.gamma > 0 else None
        self._parts.count_votes(retrieval is not None)
        if retrieval and self._adapts and len(context) - 1 - retrieval.length > MOST_LAG:
            retrieval.select()  # it lags behind rounds that did not use it
        verdict = yield from self._top.round(context, sampler)
        if retrieval and (top.proposed or not self._adapts):
            poor = verdict.num_accepted < LOW_ACCEPTANCE * top.gamma
            if poor or retrieval.tokens_since_selection >= self._parts.config.reselect_interval:
                retrieval.select()
                self.reselections += 1
        if self._adapts:
            seconds = self._own_clock() - began
            self.pace.account(verdict, seconds, seconds - (self._pass_seconds() - passing))
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

    @property
    def level_stats(self) -> tuple[LevelStats | None, LevelStats | None]:
        """Level 1 and level 2 so far; methods with one model above the proposer have level 2 only."""
        lower = self.levels[0].stats if len(self.levels) == 2 else None
        return lower, self.levels[-1].stats if self.levels else None


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
