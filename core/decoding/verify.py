"""Accept or correct: the step that makes speculation lossless. Pure functions of probabilities.

Leviathan et al., arXiv 2211.17192, algorithm 1; Chen et al., arXiv 2302.01318.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from core.decoding.sampling import Dice
from core.events import Origin


@dataclass(frozen=True, slots=True)
class Guess:
    """Proposed tokens and, for each, the law it was really drawn from."""

    tokens: tuple[int, ...]  # g
    probs: Tensor  # q: [g, V] float32
    origins: tuple[Origin, ...]  # g


def no_guess(vocab: int, device: torch.device) -> Guess:
    """Nothing proposed: the judge decides alone."""
    return Guess((), torch.empty(0, vocab, device=device), ())


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's answer: the accepted prefix of a guess and one token more, all distributed as the judge's law."""

    tokens: tuple[int, ...]  # a + 1
    probs: Tensor  # p: [a + 1, V] float32
    origins: tuple[Origin, ...]
    num_accepted: int  # a
    p_of_tokens: tuple[float, ...]  # a + 1
    q_of_tokens: tuple[float | None, ...]  # None for the token the judge wrote itself


def verify(guess: Guess, p: Tensor, dice: Dice, level: str = "judge") -> Verdict:
    """Keep a prefix of the guess and draw one more token, so that all of them follow `p`.

    Guess x is accepted with probability min(1, p(x) / q(x)). The first rejected one is replaced by a draw from
    norm(max(p - q, 0)); after a full accept a bonus token comes from p. An empty guess makes that a plain draw.

    Args:
        guess: g tokens with laws q [g, V].
        p: [g + 1, V], the judge's laws at the same places and one further.
        level: the judge's name, for provenance.
    """
    q, g = guess.probs, len(guess.tokens)
    assert p.shape[0] == g + 1, f"{g} guesses need {g + 1} laws, got {p.shape[0]}"
    at, proposed = torch.arange(g, device=p.device), torch.tensor(guess.tokens, device=p.device, dtype=torch.int64)
    p_proposed, q_proposed = p[at, proposed], q[at, proposed]  # [g]
    a = dice.accept(p_proposed, q_proposed)
    weights = p[a]
    if a < g:
        residual = (p[a] - q[a]).clamp_min(0)
        if float(residual.sum()) > 0:  # else p == q up to rounding: nothing is left over
            weights = residual
    own = dice.draw(weights)
    return Verdict(
        tokens=(*guess.tokens[:a], own),
        probs=p[: a + 1],
        origins=(*guess.origins[:a], Origin(level, "drawn" if g == 0 else "bonus" if a == g else "corrected")),
        num_accepted=a,
        p_of_tokens=(*p_proposed[:a].tolist(), float(p[a, own])),
        q_of_tokens=(*q_proposed[:a].tolist(), None),
    )
