"""Accept or correct: the step that makes speculation lossless. Pure functions of probabilities.

Leviathan et al., arXiv 2211.17192, algorithm 1; Chen et al., arXiv 2302.01318.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from core.caches.tokens import common_prefix
from core.decoding.sampling import TokenSampler
from core.decoding.stats import Origin
from core.ops.streams import to_device


@dataclass(frozen=True, slots=True)
class Guess:
    """Proposed tokens and, for each, the distribution it was really drawn from."""

    tokens: tuple[int, ...]  # g
    probs: Tensor  # q: [g, V] float32, or [g] int64 in host memory: the tokens that are certain
    origins: tuple[Origin, ...]  # g


def no_guess(p: Tensor) -> Guess:
    """An empty guess, where the verifier's distributions are p: it decides alone."""
    return Guess((), p[:0], ())


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verifier's answer: the accepted prefix of a guess and one more token, all distributed as it would draw them."""

    tokens: tuple[int, ...]  # a + 1
    probs: Tensor  # p: [a + 1, V] float32, or [a + 1] int64 in host memory: the tokens that are certain
    origins: tuple[Origin, ...]
    num_accepted: int  # a
    q_of_guesses: Tensor  # [g] float32, of all guesses, including rejected ones

    def p_and_q(self) -> tuple[tuple[float, ...], tuple[float | None, ...]]:
        """The verifier's probability of each of the a + 1 tokens, and the probability each was proposed with.

        None for the token that the verifier wrote itself. Waits for the device once.
        """
        device, a = self.probs.device, self.num_accepted
        if certain(self.probs):
            return (1.0,) * (a + 1), (*(1.0,) * a, None)
        p = self.probs[torch.arange(a + 1, device=device), to_device(torch.tensor(self.tokens), device)]
        both = torch.cat((p, self.q_of_guesses[:a])).tolist()
        return tuple(both[: a + 1]), (*both[a + 1 :], None)


def certain(probs: Tensor) -> bool:
    """Whether distributions are given by the ids of their certain tokens, as greedy ones are."""
    return not probs.is_floating_point()


def verify(guess: Guess, p: Tensor, sampler: TokenSampler, level: str = "verifier") -> Verdict:
    """Keep a prefix of the guess and draw one more token, so that all of them follow `p`.

    Guess x is accepted with probability min(1, p(x) / q(x)). The first rejected one is replaced by a draw from
    norm(max(p - q, 0)); after a full accept a bonus token comes from p. With an empty guess this is a plain draw.

    Waits for the device twice: for the length of the accepted prefix, and for the drawn token.

    Args:
        guess: g tokens with distributions q [g, V].
        p: [g + 1, V], the verifier's distributions at the same places and one further; or, if they are certain, their
            tokens [g + 1] int64.
        level: the verifier's name, for provenance.
    """
    q, g = guess.probs, len(guess.tokens)
    assert p.shape[0] == g + 1, f"{g} guesses need {g + 1} distributions, got {p.shape[0]}"
    if certain(p):
        p = p.cpu()
        wanted = tuple(p.tolist())
        a = common_prefix(guess.tokens, wanted[:g])
        return _verdict(guess, p, a, wanted[a], torch.ones(g), level)
    at, proposed = torch.arange(g, device=p.device), to_device(torch.tensor(guess.tokens, dtype=torch.int64), p.device)
    p_proposed, q_proposed = p[at, proposed], q[at, proposed]  # [g]
    a = sampler.accept(p_proposed, q_proposed)
    weights = p[a]
    if a < g:
        residual = (weights - q[a]).clamp_min(0)
        weights = torch.where(residual.sum() > 0, residual, weights)  # else p == q up to rounding: nothing is left
    return _verdict(guess, p, a, sampler.draw(weights), q_proposed, level)


def _verdict(guess: Guess, p: Tensor, a: int, own: int, q_of_guesses: Tensor, level: str) -> Verdict:
    g = len(guess.tokens)
    return Verdict(
        tokens=(*guess.tokens[:a], own),
        probs=p[: a + 1],
        origins=(*guess.origins[:a], Origin(level, "drawn" if g == 0 else "bonus" if a == g else "corrected")),
        num_accepted=a,
        q_of_guesses=q_of_guesses,
    )
