"""Losslessness, by exact enumeration: every random decision is visited with its probability, nothing is sampled.

The negative control is the rule that the published reference implementation uses at level 1: after a rejection it
draws from p instead of norm(max(p - q, 0)). The same measurement must catch it.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from core.caches.tokens import Context
from core.decoding.origin import Origin
from core.decoding.sampling import TokenSampler
from core.decoding.speculative import AutoregressiveProposer, NoProposer, Passes, Proposer, Rule, Speculative, alone
from core.decoding.verify import Guess, Verdict, verify
from tests.core.toys import EnumeratingSampler, TableModel

V = 3
START = [0]


def verify_without_residual(guess: Guess, p: Tensor, sampler: TokenSampler, level: str = "verifier") -> Verdict:
    """The wrong rule: a rejected guess is replaced by a draw from p."""
    g = len(guess.tokens)
    at = torch.arange(g)
    tokens = torch.tensor(guess.tokens, dtype=torch.int64)
    a = sampler.accept(p[at, tokens], guess.probs[at, tokens])
    own = sampler.draw(p[a])
    origins = (*guess.origins[:a], Origin(level, "corrected"))
    return Verdict((*guess.tokens[:a], own), p[: a + 1], origins, a, guess.probs[at, tokens])


def accept_everything(guess: Guess, p: Tensor, sampler: TokenSampler, level: str = "verifier") -> Verdict:
    """The wrong rule: whatever is proposed is kept, as if the verifier had drawn it."""
    g = len(guess.tokens)
    proposed = guess.probs[torch.arange(g), torch.tensor(guess.tokens, dtype=torch.int64)]
    return Verdict((*guess.tokens, sampler.draw(p[g])), p, (*guess.origins, Origin(level, "bonus")), g, proposed)


def tables(seed: int, vocab: int = V) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    draft, retrieval, full = (torch.softmax(torch.randn(vocab, vocab, generator=generator), -1) for _ in range(3))
    return draft, retrieval, full


def output_law(top: Speculative, num_tokens: int) -> dict[tuple[int, ...], float]:
    """Exact joint law of the first tokens that rounds of `top` commit."""
    sampler = EnumeratingSampler()
    law: dict[tuple[int, ...], float] = defaultdict(float)
    for _ in sampler.paths():
        tokens: list[int] = []
        while len(tokens) < num_tokens:
            tokens += alone(top.round(Context(START, tuple(tokens)), cast(TokenSampler, sampler))).tokens
        law[tuple(tokens[:num_tokens])] += sampler.probability
    return law


def total_variation(law: dict[tuple[int, ...], float], full: Tensor, num_tokens: int) -> float:
    """Distance to the law of decoding from `full` alone."""
    distance = 0.0
    for tokens in torch.cartesian_prod(*[torch.arange(len(full))] * num_tokens).reshape(-1, num_tokens).tolist():
        exact, last = 1.0, START[-1]
        for token in tokens:
            exact *= float(full[last, token])
            last = token
        distance += abs(law.get(tuple(tokens), 0.0) - exact)
    return distance / 2


def two_levels(seed: int, gamma: int, rule: Rule = verify) -> tuple[Speculative, Tensor]:
    draft, _, full = tables(seed)
    return Speculative(AutoregressiveProposer(TableModel("draft", draft)), TableModel("full", full), gamma, rule), full


def three_levels(
    seed: int, gamma1: int, gamma2: int, rule1: Rule = verify, vocab: int = V
) -> tuple[Speculative, Tensor]:
    draft, retrieval, full = tables(seed, vocab)
    level1: Proposer = Speculative(
        AutoregressiveProposer(TableModel("draft", draft)), TableModel("retrieval", retrieval), gamma1, rule1
    )
    return Speculative(level1, TableModel("full", full), gamma2), full


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_one_level_of_speculation_follows_the_judge(gamma: int) -> None:
    top, full = two_levels(gamma, gamma)
    assert total_variation(output_law(top, 2), full, 2) < 1e-6


@pytest.mark.parametrize(("gamma1", "gamma2"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_two_nested_levels_follow_the_full_judge(gamma1: int, gamma2: int) -> None:
    vocab = 3 if gamma1 * gamma2 == 1 else 2  # the number of paths grows with V ** guesses
    top, full = three_levels(10 * gamma1 + gamma2, gamma1, gamma2, vocab=vocab)
    assert total_variation(output_law(top, 2), full, 2) < 1e-6


def test_a_level_without_guesses_draws_from_its_judge() -> None:
    top, full = three_levels(3, 0, 2)
    assert total_variation(output_law(top, 2), full, 2) < 1e-6
    top.gamma = 0
    assert total_variation(output_law(top, 2), full, 2) < 1e-6


def test_three_nested_levels_follow_the_topmost_judge() -> None:
    draft, middle, full = tables(5, 2)
    upper = tables(6, 2)[0]
    level1 = Speculative(AutoregressiveProposer(TableModel("draft", draft)), TableModel("a", middle), 1)
    level2 = Speculative(level1, TableModel("b", full), 1)
    top = Speculative(level2, TableModel("c", upper), 1)
    assert total_variation(output_law(top, 1), upper, 1) < 1e-6


def test_gammas_that_follow_what_was_accepted_leave_the_law_alone() -> None:
    top, full = three_levels(7, 1, 1)
    judge = cast(Any, top)

    def round_then_adapt(context: Context, sampler: TokenSampler) -> Passes[Verdict]:
        verdict = yield from Speculative.round(top, context, sampler)
        top.gamma = 1 + verdict.num_accepted % 2
        return verdict

    judge.round = round_then_adapt
    sampler = EnumeratingSampler()
    law: dict[tuple[int, ...], float] = defaultdict(float)
    for _ in sampler.paths():
        top.gamma = 1  # every path starts alike
        tokens: list[int] = []
        while len(tokens) < 2:
            tokens += alone(judge.round(Context(START, tuple(tokens)), cast(TokenSampler, sampler))).tokens
        law[tuple(tokens[:2])] += sampler.probability
    assert total_variation(law, full, 2) < 1e-6


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_measurement_catches_the_wrong_rule_at_either_level(seed: int) -> None:
    """The right rule is off by less than 1e-6. A level-1 proposer that lies about its law makes level 2 wrong too."""
    direct, full = two_levels(seed, 2, verify_without_residual)
    assert total_variation(output_law(direct, 1), full, 1) > 1e-3
    nested, full = three_levels(seed, 1, 2, verify_without_residual, vocab=2)
    assert total_variation(output_law(nested, 2), full, 2) > 1e-3


def test_the_error_of_the_wrong_rule_is_the_predicted_one() -> None:
    """One judge, one guess: tokens of mass min(p, q) are accepted, the rest is drawn from p instead of the residual."""
    p, q = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.2, 0.3, 0.5])
    law = {}
    for rule in (verify, verify_without_residual):
        top = Speculative(
            AutoregressiveProposer(TableModel("draft", q.repeat(V, 1))), TableModel("full", p.repeat(V, 1)), 1, rule
        )
        law[rule.__name__] = total_variation(output_law(top, 1), p.repeat(V, 1), 1)
    rejected = 1 - float(torch.minimum(p, q).sum())
    wrong = 0.5 * float((torch.minimum(p, q) + rejected * p - p).abs().sum())
    assert law["verify"] < 1e-7
    assert law["verify_without_residual"] == pytest.approx(wrong, abs=1e-6)


class Repeating:
    """Stands in for a lookup: behind token 1 it is certain of what comes, elsewhere it finds nothing."""

    def __init__(self, certain: tuple[int, ...], vocab: int, *, lies: bool = False) -> None:
        self._certain, self._vocab, self._lies = certain, vocab, lies

    def learn(self, tokens: Sequence[int]) -> None:
        """It knows what it knows."""

    def guess(self, context: Context) -> Guess | None:
        if context.span(len(context) - 1, len(context)) != [1]:
            return None
        probs = torch.eye(self._vocab)[list(self._certain)]
        if self._lies:  # states a law that the tokens were not drawn from
            probs = torch.full_like(probs, 1 / self._vocab)
        return Guess(self._certain, probs, (Origin("lookup", "proposed"),) * len(self._certain))


def with_lookup(seed: int, *, draft: bool, lies: bool = False) -> tuple[Speculative, Tensor]:
    small, retrieval, full = tables(seed, 2)
    lookup = cast(Any, Repeating((1, 0), 2, lies=lies))
    proposer: Proposer = AutoregressiveProposer(TableModel("draft", small)) if draft else NoProposer()
    level1 = Speculative(proposer, TableModel("retrieval", retrieval), 1 if draft else 0, lookup=lookup)
    return Speculative(level1, TableModel("full", full), 2), full


@pytest.mark.parametrize("draft", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_lookups_alone_and_before_a_draft_leave_the_law_alone(seed: int, draft: bool) -> None:
    top, full = with_lookup(seed, draft=draft)
    assert total_variation(output_law(top, 2), full, 2) < 1e-6
    liar, full = with_lookup(seed, draft=draft, lies=True)
    assert total_variation(output_law(liar, 2), full, 2) > 1e-3, "the measurement must catch a wrong law"
