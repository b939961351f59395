"""What a verdict tells, and what it costs to reach one."""

import itertools
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from core.decoding.origin import Origin
from core.decoding.sampling import TokenSampler
from core.decoding.verify import Guess, verify

Q = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0]])
P = torch.tensor([[0.9, 0.1, 0.0], [0.1, 0.9, 0.0], [0.3, 0.3, 0.4]])
GUESS = Guess((0, 1), Q, (Origin("draft", "proposed"),) * 2)


class Waits(TorchDispatchMode):
    """Counts operations whose result the host needs before it goes on: on a GPU each waits for all work so far."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return func(*args, **(kwargs or {}))


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


@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_a_verdict_tells_p_and_q_of_every_token(accepted: int) -> None:
    sampler = Fixed(accepted)
    verdict = verify(GUESS, P, sampler, "full")
    own = [0, 1, 2][accepted]  # residuals: [.4, 0, 0], [0, .1, 0]; the bonus comes from p itself
    assert verdict.tokens == (*GUESS.tokens[:accepted], own) and verdict.num_accepted == accepted
    p, q = verdict.p_and_q()
    assert p == pytest.approx([*[0.9, 0.9, 0.4][:accepted], [0.9, 0.9, 0.4][accepted]])
    assert q[:-1] == pytest.approx([0.5, 0.8][:accepted]) and q[-1] is None
    assert [origin.kind for origin in verdict.origins[:accepted]] == ["proposed"] * accepted
    assert verdict.origins[-1] == Origin("full", "bonus" if accepted == 2 else "corrected")
    expected = [[0.4, 0, 0], [0, 0.1, 0], P[2].tolist()][accepted]
    assert sampler.weights.tolist() == pytest.approx(expected)
    assert torch.equal(verdict.probs, P[: accepted + 1])


def test_a_residual_of_nothing_falls_back_to_the_judge() -> None:
    """A rejection between equal laws: rounding, or a coin of exactly 1."""
    sampler = Fixed(0)
    verify(Guess((1,), P[:1], (Origin("draft", "proposed"),)), P[:2], sampler)
    assert torch.equal(sampler.weights, P[0])


@pytest.mark.parametrize("certain", [False, True])
def test_a_verdict_waits_for_the_device_twice_at_most(certain: bool) -> None:
    """Once for the length of the accepted prefix, once for the token drawn; p and q only when they are read."""
    sampler, p = TokenSampler(torch.Generator().manual_seed(0)), P.argmax(-1) if certain else P
    with Waits() as waits:
        verdict = verify(GUESS, p, sampler)
        assert waits.count <= 2
        assert float(verdict.probs.sum()) > 0
        assert waits.count >= 1, "the count must count"


def test_tokens_that_are_certain_are_verified_as_their_distributions_are() -> None:
    """Every pattern of agreement of three guesses with a verifier whose distributions are one-hot."""
    one_hot, sampler = torch.eye(4), TokenSampler(torch.Generator().manual_seed(2))
    for guessed in itertools.product(range(3), repeat=3):
        wanted = torch.tensor((0, 1, 2, 3))
        origins = (Origin("draft", "proposed"),) * 3
        sparse = verify(Guess(guessed, torch.tensor(guessed), origins), wanted, sampler, "full")
        dense = verify(Guess(guessed, one_hot[list(guessed)], origins), one_hot[wanted], sampler, "full")
        assert (sparse.tokens, sparse.origins, sparse.num_accepted) == (dense.tokens, dense.origins, dense.num_accepted)
        assert sparse.p_and_q() == dense.p_and_q()
        assert torch.equal(sparse.q_of_guesses, dense.q_of_guesses)
        assert torch.equal(one_hot[sparse.probs], dense.probs)
