"""What a verdict tells. How often one waits for the device, `test_waits` counts in whole rounds."""

import itertools
from typing import Any

import pytest
import torch

from core.decoding.sampling import TokenSampler
from core.decoding.stats import Origin
from core.decoding.verify import Guess, verify

Q = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0]])
P = torch.tensor([[0.9, 0.1, 0.0], [0.1, 0.9, 0.0], [0.3, 0.3, 0.4]])
PROPOSED = Origin("draft", "proposed")
GUESS = Guess((0, 1), Q, (PROPOSED,) * 2)


class Fixed(TokenSampler):
    """Accepts so many guesses and draws the likeliest token."""

    def __init__(self, accepted: int) -> None:
        super().__init__(torch.Generator())
        self._accepted = accepted

    def accept(self, p: torch.Tensor, q: torch.Tensor) -> int:
        return self._accepted

    def draw(self, weights: torch.Tensor) -> int:
        self.weights = weights
        return int(weights.argmax())


@pytest.mark.parametrize(
    ("accepted", "tokens", "p", "weights", "kind"),
    [
        (0, (0,), [0.9], [0.4, 0, 0], "corrected"),
        (1, (0, 1), [0.9, 0.9], [0, 0.1, 0], "corrected"),
        (2, (0, 1, 2), [0.9, 0.9, 0.4], [0.3, 0.3, 0.4], "bonus"),
    ],
)
def test_a_verdict_tells_p_and_q_of_every_token(
    accepted: int, tokens: tuple[int, ...], p: list[float], weights: list[float], kind: Any
) -> None:
    """The last token is drawn from the residual, the bonus from p itself."""
    sampler = Fixed(accepted)
    verdict = verify(GUESS, P, sampler, "full")
    assert (verdict.tokens, verdict.num_accepted) == (tokens, accepted)
    told_p, told_q = verdict.p_and_q()
    assert told_p == pytest.approx(p) and told_q[:-1] == pytest.approx([0.5, 0.8][:accepted]) and told_q[-1] is None
    assert verdict.origins == (*[PROPOSED] * accepted, Origin("full", kind))
    assert sampler.weights.tolist() == pytest.approx(weights) and torch.equal(verdict.probs, P[: accepted + 1])


def test_a_residual_of_nothing_falls_back_to_the_verifier() -> None:
    """A rejection between equal laws: rounding, or a coin of exactly 1."""
    sampler = Fixed(0)
    verify(Guess((1,), P[:1], (PROPOSED,)), P[:2], sampler)
    assert torch.equal(sampler.weights, P[0])


def test_tokens_that_are_certain_are_verified_as_their_distributions_are() -> None:
    """Every pattern of agreement of three guesses with a verifier whose distributions are one-hot."""
    one_hot, sampler, wanted = torch.eye(4), TokenSampler(torch.Generator().manual_seed(2)), torch.arange(4)
    for guessed in itertools.product(range(3), repeat=3):
        origins = (PROPOSED,) * 3
        sparse = verify(Guess(guessed, torch.tensor(guessed), origins), wanted, sampler, "full")
        dense = verify(Guess(guessed, one_hot[list(guessed)], origins), one_hot[wanted], sampler, "full")
        assert (sparse.tokens, sparse.origins, sparse.num_accepted) == (dense.tokens, dense.origins, dense.num_accepted)
        assert sparse.p_and_q() == dense.p_and_q()
        assert torch.equal(sparse.q_of_guesses, dense.q_of_guesses)
        assert torch.equal(one_hot[sparse.probs], dense.probs)
