"""Losslessness, by exact enumeration: every random decision is visited with its probability, nothing is sampled.

The negative control is the rule that the published reference implementation uses at level 1: after a rejection it
draws from p instead of norm(max(p - q, 0)). The same measurement must catch it.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from core.caches.tokens import Context
from core.decoding.sampling import TokenSampler
from core.decoding.speculative import AutoregressiveProposer, Proposer, Rule, Speculative, alone
from core.decoding.stats import Origin
from core.decoding.verify import Guess, Verdict, verify
from tests.core.toys import EnumeratingSampler, TableModel

START = [0]
Law = dict[tuple[int, ...], float]


def verify_without_residual(guess: Guess, p: Tensor, sampler: TokenSampler, level: str = "verifier") -> Verdict:
    """The wrong rule: a rejected guess is replaced by a draw from p."""
    at, tokens = torch.arange(len(guess.tokens)), torch.tensor(guess.tokens, dtype=torch.int64)
    a = sampler.accept(p[at, tokens], guess.probs[at, tokens])
    origins = (*guess.origins[:a], Origin(level, "corrected"))
    return Verdict((*guess.tokens[:a], sampler.draw(p[a])), p[: a + 1], origins, a, guess.probs[at, tokens])


def accept_everything(guess: Guess, p: Tensor, sampler: TokenSampler, level: str = "verifier") -> Verdict:
    """The wrong rule: whatever is proposed is kept, as if the verifier had drawn it."""
    g = len(guess.tokens)
    proposed = guess.probs[torch.arange(g), torch.tensor(guess.tokens, dtype=torch.int64)]
    return Verdict((*guess.tokens, sampler.draw(p[g])), p, (*guess.origins, Origin(level, "bonus")), g, proposed)


def tables(seed: int, vocab: int = 3, count: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.softmax(torch.randn(vocab, vocab, generator=generator), -1) for _ in range(count)]


def levels(laws: Sequence[Tensor], gammas: Sequence[int], rule1: Rule = verify) -> Speculative:
    """The draft's table, then one of each level above, with so many guesses; `rule1`: of the lowest."""
    top: Proposer = AutoregressiveProposer(TableModel("draft", laws[0]))
    for number, (law, gamma) in enumerate(zip(laws[1:], gammas, strict=True)):
        top = Speculative(top, TableModel(f"level {number + 1}", law), gamma, verify if number else rule1)
    return cast(Speculative, top)


def enumerated(step: Callable[[Context, TokenSampler], Sequence[int]], over: Callable[[list[int]], bool]) -> Law:
    """The exact joint law of what is committed step by step until it is `over`, which may also cut it."""
    sampler = EnumeratingSampler()
    law: Law = defaultdict(float)
    for _ in sampler.paths():
        tokens: list[int] = []
        while not over(tokens):
            tokens += step(Context(START, tuple(tokens)), cast(TokenSampler, sampler))
        law[tuple(tokens)] += sampler.probability
    return law


def output_law(top: Speculative, num_tokens: int) -> Law:
    """Exact joint law of the first tokens that rounds of `top` commit."""

    def over(tokens: list[int]) -> bool:
        del tokens[num_tokens:]
        return len(tokens) == num_tokens

    return enumerated(lambda context, sampler: alone(top.round(context, sampler)).tokens, over)


def total_variation(law: Law, full: Tensor, num_tokens: int) -> float:
    """Distance to the law of decoding from `full` alone."""
    distance = 0.0
    for tokens in torch.cartesian_prod(*[torch.arange(len(full))] * num_tokens).reshape(-1, num_tokens).tolist():
        exact = 1.0
        for last, token in zip([START[-1], *tokens], tokens, strict=False):
            exact *= float(full[last, token])
        distance += abs(law.get(tuple(tokens), 0.0) - exact)
    return distance / 2


# guesses by level, size of the vocabulary, tokens: the number of paths grows with V ** guesses
SHAPES = [
    ((1,), 3, 2),
    ((2,), 3, 2),
    ((3,), 3, 2),
    ((1, 1), 3, 2),
    ((1, 2), 2, 2),
    ((2, 1), 2, 2),
    ((2, 2), 2, 2),
    ((0, 2), 3, 2),  # a level without guesses draws from its verifier
    ((0, 0), 3, 2),
    ((1, 1, 1), 2, 1),
]


@pytest.mark.parametrize(("gammas", "vocab", "num_tokens"), SHAPES)
def test_nested_levels_follow_the_topmost_verifier(gammas: tuple[int, ...], vocab: int, num_tokens: int) -> None:
    laws = tables(10 * gammas[0] + gammas[-1], vocab, 1 + len(gammas))
    law = output_law(levels(laws, gammas), num_tokens)
    assert sum(law.values()) == pytest.approx(1, abs=1e-6)
    assert total_variation(law, laws[-1], num_tokens) < 1e-6


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("gammas", "vocab", "num_tokens"), [((2,), 3, 1), ((1, 2), 2, 2)])
def test_the_measurement_catches_the_wrong_rule_at_either_level(
    seed: int, gammas: tuple[int, ...], vocab: int, num_tokens: int
) -> None:
    """The right rule is off by less than 1e-6. A level-1 proposer that lies about its law makes level 2 wrong too."""
    laws = tables(seed, vocab, 1 + len(gammas))
    wrong = output_law(levels(laws, gammas, verify_without_residual), num_tokens)
    assert total_variation(wrong, laws[-1], num_tokens) > 1e-3


def test_gammas_that_follow_what_was_accepted_leave_the_law_alone() -> None:
    laws = tables(7)
    top = levels(laws, (1, 1))

    def step(context: Context, sampler: TokenSampler) -> tuple[int, ...]:
        if len(context) == len(START):
            top.gamma = 1  # every path starts alike
        verdict = alone(top.round(context, sampler))
        top.gamma = 1 + verdict.num_accepted % 2
        return verdict.tokens

    def over(tokens: list[int]) -> bool:
        del tokens[2:]
        return len(tokens) == 2

    assert total_variation(enumerated(step, over), laws[-1], 2) < 1e-6


class Repeating:
    """Stands in for a lookup: behind token 1 it is certain of what comes, elsewhere it finds nothing."""

    def __init__(self, *, lies: bool) -> None:
        self._probs = torch.full((2, 2), 0.5) if lies else torch.eye(2)[[1, 0]]  # a law they were not drawn from

    def learn(self, tokens: Sequence[int]) -> None:
        """It knows what it knows."""

    def guess(self, context: Context) -> Guess | None:
        if context.span(len(context) - 1, len(context)) != [1]:
            return None
        return Guess((1, 0), self._probs, (Origin("lookup", "proposed"),) * 2)


@pytest.mark.parametrize("draft", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_lookups_alone_and_before_a_draft_leave_the_law_alone(seed: int, draft: bool) -> None:
    small, retrieval, full = tables(seed, 2)
    proposer = AutoregressiveProposer(TableModel("draft", small)) if draft else None
    for lies in (False, True):
        lookup: Any = Repeating(lies=lies)
        level1 = Speculative(proposer, TableModel("retrieval", retrieval), int(draft), lookup=lookup)
        error = total_variation(output_law(Speculative(level1, TableModel("full", full), 2), 2), full, 2)
        assert error > 1e-3 if lies else error < 1e-6, "the measurement must catch a wrong law"
