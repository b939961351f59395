"""The index against a plain search, and guesses that continue what they should."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.caches.tokens import Context
from core.config import GenerationConfig, SpeculationConfig
from core.decoding.ngram_lookup import LONGEST_MATCH, Lookup, TokenIndex
from tests.core.toys import last_event, random_prompt, tiny_engine

CPU = torch.device("cpu")
texts = st.lists(st.integers(0, 2), max_size=60)  # few letters: everything repeats


def index_of(tokens: list[int]) -> TokenIndex:
    index = TokenIndex()
    index.sync(tokens)
    return index


def found_plainly(tokens: list[int], suffix: list[int]) -> tuple[int, int]:
    """As `TokenIndex.find`, by comparing every place."""
    best_end, best_length = 0, 0
    for end in range(1, len(tokens)):
        length = 0
        while length < min(len(suffix), end, LONGEST_MATCH) and suffix[-1 - length] == tokens[end - 1 - length]:
            length += 1
        if length and length >= best_length:
            best_end, best_length = end, length
    return best_end, best_length


@settings(max_examples=400, deadline=None)
@given(texts | st.lists(st.integers(0, 400), max_size=40), texts, st.integers(0, 40))
def test_a_match_is_the_longest_and_newest_there_is(tokens: list[int], tail: list[int], cut: int) -> None:
    """Also for a suffix that ends in tokens that the index was not told of."""
    text = tokens + tokens[cut : cut + 40]
    for suffix in (text, text + tail):
        assert index_of(text).find(suffix) == found_plainly(text, suffix)


@settings(max_examples=200, deadline=None)
@given(texts, texts, st.integers(0, 60))
def test_rewinding_leaves_no_trace(first: list[int], second: list[int], keep: int) -> None:
    """An index that was rewound and grown otherwise equals one that never knew the first text."""
    used, now = index_of(first), first[:keep] + second
    used.sync(now)
    assert used.tokens == now and vars(used) == vars(index_of(now))


def test_a_passage_of_common_words_is_found_behind_many_places_of_each() -> None:
    passage = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    index = index_of([*passage, *(token for number in range(2000) for token in (8, 9, 1, 2, 50 + number % 7))])
    assert index.find([40, *passage[:11]]) == (11, 11)


@pytest.mark.parametrize(
    ("behind", "at"),
    [(7, 209), (7, 211), (8, None)],
    ids=["the longest match", "a tail that nothing was told of", "a match that is too short here"],
)
def test_a_guess_continues_the_longest_match(behind: int, at: int | None) -> None:
    """As many tokens as agree, and certain of each."""
    rng = random.Random(0)
    book = [rng.randrange(100, 200) for _ in range(500)]
    quoted = book[200:209] if at else book[200:204]
    index = index_of([*book, 7, *quoted])
    tail = tuple(book[209:at]) if at else ()
    context = Context([*book, behind, *quoted]).extended(tail)
    guess = Lookup(index, 256, CPU, at_least=5, at_most=12).guess(context)
    if at is None:
        assert guess is None
        return
    assert guess is not None and list(guess.tokens) == book[at : at + 9 + len(tail)]
    assert torch.equal(guess.probs, torch.eye(256)[list(guess.tokens)])
    assert {origin.level for origin in guess.origins} == {"lookup"}


def test_what_an_answer_has_written_is_looked_up_too() -> None:
    engine, prompt = tiny_engine(), random_prompt(200)
    config = GenerationConfig(method="lookup", max_new_tokens=60, speculation=SpeculationConfig(adaptive=False))
    text = [*prompt, *last_event(engine.generate(prompt, config)).token_ids]
    known = engine._levels.parts.index.tokens
    assert known == text[: len(known)] and len(known) > len(text) - 20, "all but the last round's"
