"""Under a grammar every method writes what the target alone would write under it, by exact enumeration.

The negative controls are two ways in which programs get it wrong: a draft that draws under the grammar and tells the
distribution it had without, and a verifier that knows no grammar.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from core.caches.tokens import Context
from core.config import SamplingParams
from core.decoding.grammar import Grammar, Thought
from core.decoding.ngram_lookup import Lookup
from core.decoding.origin import Origin
from core.decoding.sampling import TokenSampler, to_probs
from core.decoding.speculative import (
    AutoregressiveProposer,
    NoProposer,
    Passes,
    Proposer,
    SampledModel,
    Speculative,
    alone,
)
from core.decoding.verify import Guess
from tests.core.toys import EnumeratingSampler

V, END, PROMPT, LENGTH = 4, 3, [0], 3
WORDS = [(1, 2, 0), (1, 2, 1), (1, 0), (2, 0), (2, 2)]  # of the language, each with the end of text behind it
SAMPLING = SamplingParams(temperature=1.3, top_p=0.95)


class Words:
    """A matcher of a few words; it counts what it is asked."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.asked = 0

    def accept(self, token_id: int) -> bool:
        assert token_id != END
        longer = (*self.taken, token_id)
        if any(word[: len(longer)] == longer for word in WORDS):
            self.taken.append(token_id)
        return tuple(self.taken) == longer

    def rollback(self, num_tokens: int) -> None:
        assert 0 < num_tokens <= len(self.taken)
        del self.taken[-num_tokens:]

    def allowed(self) -> Tensor:
        self.asked += 1
        return allowed_after(tuple(self.taken))


def allowed_after(text: tuple[int, ...]) -> Tensor:
    mask = torch.zeros(V, dtype=torch.bool)
    for word in WORDS:
        if word == text:
            mask[END] = True
        elif word[: len(text)] == text:
            mask[word[len(text)]] = True
    return mask


class TableLogits:
    """Stands for a `CachedModel`: logits that depend on the newest token."""

    graphs, device = None, torch.device("cpu")

    def __init__(self, name: str, table: Tensor) -> None:
        self.name, self.table = name, table
        self.cache = self

    def logits(self, context: Context, keep: int) -> Tensor:
        return self.table[torch.tensor(context.span(len(context) - keep, len(context)))]

    def truncate(self, length: int) -> None:
        """Has no state."""


def tables(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(V, V, generator=generator) for _ in range(3)]


def sampled(name: str, table: Tensor, grammar: Grammar | None) -> SampledModel:
    return SampledModel(cast(Any, TableLogits(name, table)), SAMPLING, grammar)


def grammar() -> Grammar:
    return Grammar(Words(), len(PROMPT), frozenset({END}))


def law_of(top: Speculative | AutoregressiveProposer) -> dict[tuple[int, ...], float]:
    """Exact law of the answer's tokens, up to the end of text or LENGTH."""
    sampler = EnumeratingSampler()
    law: dict[tuple[int, ...], float] = defaultdict(float)
    for _ in sampler.paths():
        text: list[int] = []
        while len(text) < LENGTH and END not in text:
            text += alone(top.round(Context(PROMPT, tuple(text)), cast(TokenSampler, sampler))).tokens
        text = text[: text.index(END) + 1] if END in text else text
        law[tuple(text[:LENGTH])] += sampler.probability
    return law


def exact_law(full: Tensor) -> dict[tuple[int, ...], float]:
    """By the definition: `to_probs` of the full model's logits, without the tokens that may not come."""
    law: dict[tuple[int, ...], float] = {}
    open_texts: dict[tuple[int, ...], float] = {(): 1.0}
    while open_texts:
        longer: dict[tuple[int, ...], float] = {}
        for text, mass in open_texts.items():
            logits = full[text[-1] if text else PROMPT[-1]].masked_fill(~allowed_after(text), float("-inf"))
            for token, p in enumerate(to_probs(logits, SAMPLING).tolist()):
                done = token == END or len(text) + 1 == LENGTH
                if p:
                    (law if done else longer)[(*text, token)] = mass * p
        open_texts = longer
    return law


def distance(one: dict[tuple[int, ...], float], other: dict[tuple[int, ...], float]) -> float:
    return sum(abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in one.keys() | other.keys()) / 2


class Telling(AutoregressiveProposer):
    """The first control: it draws under the grammar, and tells the distribution without."""

    def __init__(self, model: SampledModel, free: SampledModel) -> None:
        super().__init__(model)
        self._free = free

    def propose(self, context: Context, num_tokens: int, sampler: TokenSampler) -> Passes[Guess]:
        guess = yield from super().propose(context, num_tokens, sampler)
        told = self._free.probs(context.extended(guess.tokens[:-1]), num_tokens)
        return Guess(guess.tokens, told, guess.origins)


class Guessing:
    """Stands for a lookup that guesses what the grammar may not allow."""

    def guess(self, _context: Context) -> Guess:
        tokens = (1, 2, 1)
        return Guess(tokens, torch.eye(V)[list(tokens)], (Origin("lookup", "proposed"),) * 3)

    def learn(self, _tokens: Sequence[int]) -> None:
        """It knows what it knows."""


@pytest.mark.parametrize(("seed", "gamma1", "gamma2"), [(0, 1, 1), (1, 1, 2), (2, 2, 1)])
def test_triforce_under_a_grammar_is_plain_decoding_under_it(seed: int, gamma1: int, gamma2: int) -> None:
    draft, retrieval, full = tables(seed)
    same = grammar()
    level1: Proposer = Speculative(
        AutoregressiveProposer(sampled("draft", draft, same)), sampled("retrieval", retrieval, same), gamma1
    )
    top = Speculative(level1, sampled("full", full, same), gamma2)
    law = law_of(top)
    assert sum(law.values()) == pytest.approx(1, abs=1e-5)
    assert distance(law, exact_law(full)) < 1e-5
    assert distance(law_of(AutoregressiveProposer(sampled("full", full, grammar()))), exact_law(full)) < 1e-5


def test_guesses_that_the_grammar_forbids_are_never_committed() -> None:
    full = tables(5)[2]
    top = Speculative(NoProposer(), sampled("full", full, grammar()), 0, lookup=cast(Lookup, Guessing()))
    assert distance(law_of(top), exact_law(full)) < 1e-5


@pytest.mark.parametrize("seed", range(3))
def test_the_measurement_notices_a_draft_that_tells_another_distribution(seed: int) -> None:
    draft, _, full = tables(seed)
    same = grammar()
    wrong = Telling(sampled("draft", draft, same), sampled("draft", draft, None))
    assert distance(law_of(Speculative(wrong, sampled("full", full, same), 2)), exact_law(full)) > 0.01


@pytest.mark.parametrize("seed", range(3))
def test_the_measurement_notices_a_verifier_without_the_grammar(seed: int) -> None:
    draft, _, full = tables(seed)
    wrong = Speculative(AutoregressiveProposer(sampled("draft", draft, grammar())), sampled("full", full, None), 1)
    assert distance(law_of(wrong), exact_law(full)) > 0.01


def test_levels_that_follow_one_another_ask_nothing_twice() -> None:
    matcher = Words()
    same = Grammar(matcher, len(PROMPT), frozenset({END}))
    logits = torch.zeros(1, V)
    for text in ((), (1,), (1, 2)):
        same.masked(logits, Context(PROMPT, text), 1)
    assert matcher.asked == 3
    found = same.masked(torch.zeros(3, V), Context(PROMPT, (1, 2)), 3)
    assert matcher.asked == 3
    assert [(row > float("-inf")).nonzero().flatten().tolist() for row in found] == [[1, 2], [0, 2], [0, 1]]
    same.masked(logits, Context(PROMPT, (2,)), 1)  # another path
    assert matcher.taken == [2]


def test_masks_of_long_answers_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """One was kept for every token of an answer: 0.6 GB for 4,096 tokens of a vocabulary of 152,000."""
    monkeypatch.setattr("core.decoding.grammar.MASKS_KEPT", 3)
    grammar, fresh = Grammar(Words(), len(PROMPT), frozenset({END})), Grammar(Words(), len(PROMPT), frozenset({END}))
    text = [1, 2] * 6
    for length in range(len(text) + 1):
        grammar.masked(torch.zeros(1, V), Context(PROMPT, text[:length]), 1)
    assert len(grammar._masks) == 4
    late, wanted = (one.masked(torch.zeros(9, V), Context(PROMPT, text), 9) for one in (grammar, fresh))
    assert torch.equal(late, wanted), "what was dropped is computed again"


def test_nothing_is_asked_of_a_thought() -> None:
    free = torch.zeros(1, V)
    inside = Grammar(Words(), 1, frozenset({END}), thought=Thought(0, 2, inside=True))
    assert inside.masked(free, Context(PROMPT, (0, 0)), 1) is free
    assert (inside.masked(free, Context(PROMPT, (0, 2, 1)), 1)[0] == 0).nonzero().flatten().tolist() == [0, 2]
    before = Grammar(Words(), 1, frozenset({END}), thought=Thought(0, 2, inside=False))
    assert (before.masked(free, Context(PROMPT), 1)[0] == 0).nonzero().flatten().tolist() == [0, 1, 2]
    assert before.masked(free, Context(PROMPT, (0, 1)), 1) is free
    assert (before.masked(free, Context(PROMPT, (1,)), 1)[0] == 0).nonzero().flatten().tolist() == [0, 2]
