"""One round of speculation, and the hierarchy as composition: a judge that proposes to a better judge.

Nested once this is TriForce (arXiv 2404.11912): Speculative(Speculative(draft, retrieval), full).
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from core.config import SamplingParams
from core.decoding.sampling import Dice, to_probs
from core.decoding.verify import Guess, Verdict, no_guess, verify
from core.events import Origin
from core.models.judge import Judge
from core.stats import LevelCounter
from core.tokens import Context


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

    @property
    def name(self) -> str:
        """The judge's name."""
        return self.judge.name

    def probs(self, context: Context, keep: int) -> Tensor:
        """Laws after each of the last `keep` tokens of `context`, [keep, V] float32; feeds what is unseen."""
        return to_probs(self.judge.logits(context, keep), self._sampling)

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
    """

    def __init__(self, proposer: Proposer, law: Law, gamma: int, rule: Rule = verify) -> None:
        self._proposer, self._law, self.gamma, self._rule = proposer, law, gamma, rule
        self.counter = LevelCounter()

    def round(self, context: Context, dice: Dice) -> Verdict:
        """One round of speculative decoding (arXiv 2211.17192, algorithm 1): one to gamma + 1 new tokens.

        Invariant: a level has seen a prefix of the context, never its last token; it feeds itself what it lacks.
        """
        guess = self._proposer.propose(context, self.gamma, dice) if self.gamma else None
        tokens = guess.tokens if guess else ()
        p = self._law.probs(context.extended(tokens), len(tokens) + 1)  # one pass of the judge
        verdict = self._rule(guess or no_guess(p.shape[1], p.device), p, dice, self._law.name)
        self.counter.add(len(tokens), verdict.num_accepted)
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
