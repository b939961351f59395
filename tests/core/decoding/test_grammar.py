"""Under a grammar every method writes what the target alone would write under it, by exact enumeration.

The negative controls are two ways in which programs get it wrong: a draft that draws under the grammar and tells the
distribution it had without, and a verifier that knows no grammar.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from core.caches.tokens import Context
from core.config import SamplingParams
from core.decoding.grammar import Grammar, Thought
from core.decoding.sampling import TokenSampler, to_probs
from core.decoding.speculative import AutoregressiveProposer, Passes, SampledModel, Speculative, alone
from core.decoding.stats import Origin
from core.decoding.verify import Guess
from tests.core.decoding.test_output_law import START, Law, enumerated

V, END, LENGTH = 4, 3, 3
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
    following = {(*word, END)[len(text)] for word in WORDS if word[: len(text)] == text}
    return torch.tensor([token in following for token in range(V)])


class TableLogits:
    """Stands for a `CachedModel`: logits that depend on the newest token."""

    graphs, device = None, torch.device("cpu")

    def __init__(self, name: str, table: Tensor) -> None:
        self.name, self.table, self.cache = name, table, self

    def logits(self, context: Context, keep: int) -> Tensor:
        return self.table[torch.tensor(context.span(len(context) - keep, len(context)))]

    def truncate(self, length: int) -> None:
        """Has no state."""


def grammar(matcher: Words | None = None, **settings: Any) -> Grammar:
    return Grammar(matcher or Words(), len(START), frozenset({END}), **settings)


def models(seed: int, *grammars: Grammar | None) -> list[SampledModel]:
    """Draft, retrieval and full, each under its grammar."""
    generator = torch.Generator().manual_seed(seed)
    logits: list[Any] = [
        TableLogits(name, torch.randn(V, V, generator=generator)) for name in ("draft", "part", "full")
    ]
    return [SampledModel(model, SAMPLING, one) for model, one in zip(logits, grammars, strict=True)]


def error_of(top: Speculative | AutoregressiveProposer, full: SampledModel) -> float:
    """How far the law of an answer, up to the end of text or LENGTH, is from that of the target by definition."""

    def over(tokens: list[int]) -> bool:
        del tokens[tokens.index(END) + 1 if END in tokens else LENGTH :]
        del tokens[LENGTH:]
        return len(tokens) == LENGTH or END in tokens

    law = enumerated(lambda context, sampler: alone(top.round(context, sampler)).tokens, over)
    assert sum(law.values()) == pytest.approx(1, abs=1e-5)
    exact: Law = {}
    texts: Law = {(): 1.0}
    while texts:
        text, mass = texts.popitem()
        logits = full.model.logits(Context(START, text), 1)[0].masked_fill(~allowed_after(text), float("-inf"))
        for token, p in enumerate(to_probs(logits, SAMPLING).tolist()):
            if p:
                (exact if token == END or len(text) + 1 == LENGTH else texts)[(*text, token)] = mass * p
    return sum(abs(law.get(text, 0.0) - exact.get(text, 0.0)) for text in law.keys() | exact.keys()) / 2


@pytest.mark.parametrize(("seed", "gamma1", "gamma2"), [(0, 1, 1), (1, 1, 2), (2, 2, 1)])
def test_triforce_under_a_grammar_is_plain_decoding_under_it(seed: int, gamma1: int, gamma2: int) -> None:
    draft, part, full = models(seed, *[grammar()] * 3)
    level1 = Speculative(AutoregressiveProposer(draft), part, gamma1)
    assert error_of(Speculative(level1, full, gamma2), full) < 1e-5
    assert error_of(AutoregressiveProposer(full), full) < 1e-5


class Telling(AutoregressiveProposer):
    """It draws under the grammar, and tells the distribution without."""

    def propose(self, context: Context, num_tokens: int, sampler: TokenSampler) -> Passes[Guess]:
        guess = yield from super().propose(context, num_tokens, sampler)
        free = SampledModel(self._model.model, SAMPLING)
        return Guess(guess.tokens, free.probs(context.extended(guess.tokens[:-1]), num_tokens), guess.origins)


@pytest.mark.parametrize("seed", range(3))
def test_the_measurement_notices_what_programs_get_wrong(seed: int) -> None:
    draft, _, full = models(seed, *[grammar()] * 3)
    assert error_of(Speculative(Telling(draft), full, 2), full) > 0.01, "a draft that tells another distribution"
    draft, _, full = models(seed, grammar(), None, None)
    assert error_of(Speculative(AutoregressiveProposer(draft), full, 1), full) > 0.01, "a verifier without the grammar"


class Guessing:
    """Stands for a lookup that guesses what the grammar may not allow."""

    def guess(self, _context: Context) -> Guess:
        tokens = (1, 2, 1)
        return Guess(tokens, torch.eye(V)[list(tokens)], (Origin("lookup", "proposed"),) * 3)

    def learn(self, _tokens: Sequence[int]) -> None:
        """It knows what it knows."""


def test_guesses_that_the_grammar_forbids_are_never_committed() -> None:
    full, lookup = models(5, *[grammar()] * 3)[2], Guessing()
    assert error_of(Speculative(None, full, 0, lookup=lookup), full) < 1e-5  # type: ignore[arg-type]


# -------------------- masks


def left(masks: Grammar, *text: int, keep: int = 1) -> list[list[int]]:
    """The tokens that may come after each of the last `keep` tokens."""
    found = masks.masked(torch.zeros(keep, V), Context(START, text), keep)
    return [(row > float("-inf")).nonzero().flatten().tolist() for row in found]


def test_levels_that_follow_one_another_ask_nothing_twice() -> None:
    matcher = Words()
    same = grammar(matcher)
    for text in ((), (1,), (1, 2)):
        left(same, *text)
    assert matcher.asked == 3
    assert left(same, 1, 2, keep=3) == [[1, 2], [0, 2], [0, 1]] and matcher.asked == 3
    left(same, 2)  # another path
    assert matcher.taken == [2]


def test_masks_of_long_answers_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for every token would be 0.6 GB for 4,096 tokens of a vocabulary of 152,000."""
    monkeypatch.setattr("core.decoding.grammar.MASKS_KEPT", 3)
    used, text = grammar(), [1, 2] * 6
    for length in range(len(text) + 1):
        left(used, *text[:length])
    assert len(used._masks) == 4
    assert left(used, *text, keep=9) == left(grammar(), *text, keep=9), "what was dropped is computed again"


@pytest.mark.parametrize(
    ("inside", "text", "may_come"),
    [
        (True, (0, 0), [0, 1, 2, 3]),
        (True, (0, 2, 1), [0, 2]),
        (False, (), [0, 1, 2]),
        (False, (0, 1), [0, 1, 2, 3]),
        (False, (1,), [0, 2]),
    ],
)
def test_nothing_is_asked_of_a_thought(inside: bool, text: tuple[int, ...], may_come: list[int]) -> None:
    assert left(grammar(thought=Thought(0, 2, inside=inside)), *text) == [may_come]
