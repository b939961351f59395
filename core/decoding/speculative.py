"""One round of speculation, and the hierarchy as composition: a judge that proposes to a better judge.

Nested once this is TriForce (arXiv 2404.11912): Speculative(Speculative(draft, retrieval), full).
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from core.caches.tokens import Context
from core.config import SamplingParams
from core.decoding.ngram_lookup import Lookup
from core.decoding.origin import Origin
from core.decoding.sampling import Dice, Filters, as_tensor, to_probs, to_probs_by_tensor
from core.decoding.stats import LevelCounter
from core.decoding.verify import Guess, Verdict, no_guess, verify
from core.models.cached_model import Judge

RECENT = 0.2  # weight of the newest guess in seconds_per_guess


class Proposer(Protocol):
    """Guesses how a text goes on."""

    def propose(self, context: Context, num_tokens: int, dice: Dice) -> Guess:
        """Up to num_tokens guesses, at least one, each with the law it was drawn from."""

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on in every cache below."""


class Law(Protocol):
    """Knows how likely each next token is."""

    @property
    def name(self) -> str:
        """Who speaks, for provenance."""

    def probs(self, context: Context, keep: int) -> Tensor:
        """Laws after each of the last `keep` tokens of `context`, [keep, V] float32; feeds what is unseen."""

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on."""


class ModelLaw:
    """A judge under sampling options: probabilities instead of logits."""

    def __init__(self, judge: Judge, sampling: SamplingParams) -> None:
        self.judge, self._sampling = judge, sampling
        self._params = as_tensor(sampling, judge.device)

    @property
    def name(self) -> str:
        """The judge's name."""
        return self.judge.name

    def probs(self, context: Context, keep: int) -> Tensor:
        """Laws after each of the last `keep` tokens of `context`, [keep, V] float32; feeds what is unseen."""
        logits = self.judge.logits(context, keep)
        replay = self._recorded(logits)
        return replay() if replay else to_probs(logits, self._sampling)

    def _recorded(self, logits: Tensor) -> Callable[[], Tensor] | None:
        graphs = self.judge.graphs
        if self._sampling.greedy or graphs is None:
            return None
        filters = Filters.of(self._sampling, logits.shape[-1])
        key = ("law", *logits.shape, logits.dtype, *filters)
        return graphs.prepare(key, partial(to_probs_by_tensor, filters=filters), logits, self._params)

    def record(self, num_guesses: int, most_unseen: int, vocab: int, seen: int) -> None:
        """Record what the first laws behind `seen` tokens take, if anything is recorded.

        Args:
            num_guesses: that are judged at once; 0 where none is. A law of one token alone is recorded too.
            most_unseen: tokens before them that the judge may not have seen, its first guess's or the judge above's.
            vocab: tokens of a law.
        """
        if self.judge.graphs is None:
            return
        self.judge.record(sorted({1, *(num_guesses + unseen for unseen in range(1, most_unseen + 1))}), seen)
        for keep in sorted({1, num_guesses + 1}):
            self._recorded(torch.zeros(keep, vocab, dtype=self.judge.dtype, device=self.judge.device))

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on."""
        self.judge.cache.truncate(length)


class Sampler:
    """Proposes by decoding token by token: a draft model, or the target looking through a smaller cache."""

    def __init__(self, law: Law) -> None:
        self._law = law
        self._origin = Origin(law.name, "proposed")

    def propose(self, context: Context, num_tokens: int, dice: Dice) -> Guess:
        """Draw num_tokens tokens, each from the model's law after the ones before it."""
        tokens: list[int] = []
        laws: list[Tensor] = []
        for _ in range(num_tokens):
            law = self._law.probs(context, 1)[0]
            token = dice.draw(law)
            tokens.append(token)
            laws.append(law)
            context = context.extended((token,))
        return Guess(tuple(tokens), torch.stack(laws), (self._origin,) * num_tokens)

    def round(self, context: Context, dice: Dice) -> Verdict:
        """One token, drawn: plain decoding."""
        p = self._law.probs(context, 1)
        return verify(no_guess(p.shape[1], p.device), p, dice, self._law.name)

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on."""
        self._law.truncate(length)


Rule = Callable[[Guess, Tensor, Dice, str], Verdict]


class Speculative:
    """A proposer and a judge. Proposes tokens distributed exactly as the judge would draw them.

    Args:
        gamma: guesses a round, 0 to draw from the judge alone; may be changed between rounds, from what earlier
            rounds have shown.
        rule: how a guess is judged; another one than `verify` serves tests only.
        lookup: asked before the proposer, which is left out where it has a guess.
    """

    def __init__(
        self, proposer: Proposer, law: Law, gamma: int, rule: Rule = verify, lookup: Lookup | None = None
    ) -> None:
        self._proposer, self._law, self.gamma, self._rule, self._lookup = proposer, law, gamma, rule, lookup
        self.counter = LevelCounter()  # of all guesses
        self.proposed = LevelCounter()  # of the proposer's own
        self.seconds_per_guess = 0.0  # recent, of the proposer; 0 before the first

    def round(self, context: Context, dice: Dice) -> Verdict:
        """One round of speculative decoding (arXiv 2211.17192, algorithm 1): one to gamma + 1 new tokens.

        Invariant: a level has seen a prefix of the context, never its last token; it feeds itself what it lacks.
        """
        found = self._lookup.guess(context) if self._lookup else None
        guess = found
        if guess is None and self.gamma:
            started = time.perf_counter()
            guess = self._proposer.propose(context, self.gamma, dice)
            seconds = (time.perf_counter() - started) / len(guess.tokens)
            self.seconds_per_guess += RECENT * (seconds - self.seconds_per_guess) if self.seconds_per_guess else seconds
        tokens = guess.tokens if guess else ()
        p = self._law.probs(context.extended(tokens), len(tokens) + 1)  # one pass of the judge
        verdict = self._rule(guess or no_guess(p.shape[1], p.device), p, dice, self._law.name)
        self.counter.add(len(tokens), verdict.num_accepted)
        if found is None:
            self.proposed.add(len(tokens), verdict.num_accepted)
        self.truncate(len(context) + verdict.num_accepted)  # the judge's own token stays unseen
        return verdict

    def propose(self, context: Context, num_tokens: int, dice: Dice) -> Guess:
        """Rounds until num_tokens tokens are there. What the last round wrote beyond them is dropped unseen."""
        tokens: list[int] = []
        origins: list[Origin] = []
        laws: list[Tensor] = []
        while len(tokens) < num_tokens:
            verdict = self.round(context.extended(tokens), dice)
            tokens += verdict.tokens
            origins += verdict.origins
            laws.append(verdict.probs)
        return Guess(tuple(tokens[:num_tokens]), torch.cat(laws)[:num_tokens], tuple(origins[:num_tokens]))

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on, at this level and below."""
        self._law.truncate(length)
        self._proposer.truncate(length)


class Nobody:
    """Proposes nothing: below a judge that lives on lookups alone."""

    def propose(self, context: Context, num_tokens: int, dice: Dice) -> Guess:
        """Never asked: the level's gamma is 0."""
        raise AssertionError("nobody was asked for a guess")

    def truncate(self, length: int) -> None:
        """Nothing is held."""
