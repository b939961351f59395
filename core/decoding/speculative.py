"""One round of speculation, and the hierarchy as composition: a verifier that proposes to a better one.

Nested once this is TriForce (arXiv 2404.11912): Speculative(Speculative(draft, retrieval), full). Rounds yield the
passes they need: `alone` computes them, `core.generation.together` those of several conversations at once.
"""

import time
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from core.caches.tokens import Context
from core.config import SamplingParams
from core.decoding.adaptive import RecentAcceptance
from core.decoding.ngram_lookup import Lookup
from core.decoding.sampling import Filters, TokenSampler, as_tensor, to_probs, to_probs_by_tensor
from core.decoding.stats import LevelStats, Origin
from core.decoding.verify import Guess, Verdict, certain, no_guess, verify
from core.models.cached_model import CachedModel

if TYPE_CHECKING:
    from core.decoding.grammar import Grammar

RECENT = 0.2  # weight of the newest guess in seconds_per_guess

T = TypeVar("T")


class LanguageModel(Protocol):
    """Gives the distribution of each next token."""

    @property
    def name(self) -> str:
        """The model's name, for provenance."""

    def probs(self, context: Context, keep: int) -> Tensor:
        """Distributions after each of the last `keep` tokens of `context`; feeds unseen tokens.

        Returns:
            [keep, V] float32; or, if they are certain (temperature 0), the first of the likeliest tokens, [keep] int64.
        """

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on."""


class Pass(NamedTuple):
    """One pass of a model to compute: the arguments of `LanguageModel.probs`."""

    model: LanguageModel
    context: Context
    keep: int


Passes = Generator[Pass, Tensor, T]  # yields passes, receives their distributions [keep, V], returns T


def alone(passes: Passes[T]) -> T:
    """Compute each pass as it comes, for one conversation."""
    try:
        wanted = next(passes)
        while True:
            wanted = passes.send(wanted.model.probs(wanted.context, wanted.keep))
    except StopIteration as done:
        result: T = done.value
        return result


class Proposer(Protocol):
    """Guesses how a text goes on."""

    def propose(self, context: Context, num_tokens: int, sampler: TokenSampler) -> Passes[Guess]:
        """Up to num_tokens guesses, at least one, each with the distribution it was drawn from."""

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on in every cache below."""


class SampledModel:
    """A model under sampling options and a grammar: probabilities instead of logits."""

    def __init__(self, model: CachedModel, sampling: SamplingParams, grammar: "Grammar | None" = None) -> None:
        self.model, self._sampling, self._grammar = model, sampling, grammar
        self.noting, self.noted = False, torch.empty(0, 0)  # logits [keep, V] of the newest pass, if noted
        self._params = as_tensor(sampling, model.device)

    @property
    def name(self) -> str:
        return self.model.name

    def probs(self, context: Context, keep: int) -> Tensor:
        return self.probs_of(self.model.logits(context, keep), context, keep)

    def probs_of(self, logits: Tensor, context: Context, keep: int) -> Tensor:
        """The distributions of logits [keep, V] that a pass of this model over `context` has given, as `probs`."""
        if self.noting:
            self.noted = logits
        if self._grammar is not None:
            logits = self._grammar.masked(logits, context, keep)
        return self._distributions(logits)

    def _distributions(self, logits: Tensor) -> Tensor:
        if self._sampling.greedy:
            return logits.argmax(-1)
        replay = self._recorded(logits)
        return replay() if replay else to_probs(logits, self._sampling)

    def _recorded(self, logits: Tensor) -> Callable[[], Tensor] | None:
        graphs = self.model.graphs
        if self._sampling.greedy or graphs is None or self._grammar is not None:
            return None
        filters = Filters.of(self._sampling, logits.shape[-1])
        key = ("probs", *logits.shape, logits.dtype, *filters)
        return graphs.prepare(key, partial(to_probs_by_tensor, filters=filters), logits, self._params)

    def time(self, rows: int) -> float:
        """Seconds of a pass over so many tokens; the cache is as before."""
        length, started = self.model.cache.length, time.perf_counter()
        try:
            self._distributions(self.model.feed_tokens([0] * rows, length, rows))[..., -1].tolist()  # waits for it
            return time.perf_counter() - started
        finally:
            self.model.cache.truncate(length)

    def record(self, num_guesses: int, most_unseen: int, vocab: int, seen: int) -> None:
        """Record the passes for the first distributions behind `seen` tokens, if anything is recorded.

        Args:
            num_guesses: guesses verified at once, or 0. The distribution of a single token is recorded too.
            most_unseen: the most tokens before them that the model may not have seen.
            vocab: size of a distribution.
        """
        if self.model.graphs is None:
            return
        self.model.record(sorted({1, *(num_guesses + unseen for unseen in range(1, most_unseen + 1))}), seen)
        for keep in sorted({1, num_guesses + 1}):
            self._recorded(torch.zeros(keep, vocab, device=self.model.device))

    def truncate(self, length: int) -> None:
        self.model.cache.truncate(length)


class AutoregressiveProposer:
    """Proposes by decoding token by token: a draft model, or the target with a smaller cache."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._origin = Origin(model.name, "proposed")

    def propose(self, context: Context, num_tokens: int, sampler: TokenSampler) -> Passes[Guess]:
        """Draw num_tokens tokens, each from the model's distribution after the tokens before it."""
        tokens: list[int] = []
        probs: list[Tensor] = []
        for _ in range(num_tokens):
            p = (yield Pass(self._model, context, 1))[0]
            p = p.cpu() if certain(p) else p
            token = int(p) if certain(p) else sampler.draw(p)
            tokens.append(token)
            probs.append(p)
            context = context.extended((token,))
        return Guess(tuple(tokens), torch.stack(probs), (self._origin,) * num_tokens)

    def round(self, context: Context, sampler: TokenSampler) -> Passes[Verdict]:
        """Draw one token: plain decoding."""
        p = yield Pass(self._model, context, 1)
        return verify(no_guess(p), p, sampler, self._model.name)

    def truncate(self, length: int) -> None:
        self._model.truncate(length)


Rule = Callable[[Guess, Tensor, TokenSampler, str], Verdict]


class Speculative:
    """A proposer and a verifier. Its tokens are distributed exactly as if the verifier had drawn them.

    Args:
        proposer: None: only lookups guess, and gamma is 0.
        gamma: guesses a round, 0 to draw from the verifier alone; may be changed between rounds, based on earlier
            rounds.
        rule: how a guess is verified; only tests use another rule than `verify`.
        lookup: comes before the proposer, which is skipped if the lookup has a guess.
        prior: acceptance of the proposer's guesses before any was tested.
    """

    def __init__(
        self,
        proposer: Proposer | None,
        verifier: LanguageModel,
        gamma: int,
        rule: Rule = verify,
        lookup: Lookup | None = None,
        prior: float = 0.5,
    ) -> None:
        self._proposer, self._verifier, self.gamma, self._rule, self._lookup = proposer, verifier, gamma, rule, lookup
        self.stats = LevelStats()  # of all guesses
        self.recent = RecentAcceptance(prior)  # of the proposer's guesses, without lookups
        self.proposed = False  # whether the last round used the proposer
        self.seconds_per_guess = 0.0  # recent mean of the proposer; 0 before the first guess
        self.clock = time.perf_counter  # of `seconds_per_guess`

    def round(self, context: Context, sampler: TokenSampler) -> Passes[Verdict]:
        """One round of speculative decoding (arXiv 2211.17192, algorithm 1): one to gamma + 1 new tokens.

        Invariant: a level has seen a prefix of the context, never its last token; it feeds itself the missing tokens.
        """
        guess = self._lookup.guess(context) if self._lookup else None
        self.proposed = guess is None and self.gamma > 0
        if self.proposed:
            assert self._proposer is not None, "nobody can be asked for a guess"
            started = self.clock()
            guess = yield from self._proposer.propose(context, self.gamma, sampler)
            seconds = (self.clock() - started) / len(guess.tokens)
            self.seconds_per_guess += RECENT * (seconds - self.seconds_per_guess) if self.seconds_per_guess else seconds
        tokens = guess.tokens if guess else ()
        p = yield Pass(self._verifier, context.extended(tokens), len(tokens) + 1)
        verdict = self._rule(guess or no_guess(p), p, sampler, self._verifier.name)
        self.stats = self.stats.after(len(tokens), verdict.num_accepted)
        if self.proposed:
            self.recent.add(min(verdict.num_accepted + 1, len(tokens)), verdict.num_accepted)
        if self._lookup:
            self._lookup.learn(verdict.tokens)
        self.truncate(len(context) + verdict.num_accepted)  # the bonus token stays unseen
        return verdict

    def propose(self, context: Context, num_tokens: int, sampler: TokenSampler) -> Passes[Guess]:
        """Run rounds until there are num_tokens tokens. Extra tokens of the last round are dropped unseen."""
        tokens: list[int] = []
        origins: list[Origin] = []
        probs: list[Tensor] = []
        while len(tokens) < num_tokens:
            verdict = yield from self.round(context.extended(tokens), sampler)
            tokens += verdict.tokens
            origins += verdict.origins
            probs.append(verdict.probs)
        return Guess(tuple(tokens[:num_tokens]), torch.cat(probs)[:num_tokens], tuple(origins[:num_tokens]))

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on, at this level and below."""
        self._verifier.truncate(length)
        if self._proposer is not None:
            self._proposer.truncate(length)
