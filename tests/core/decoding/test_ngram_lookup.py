"""The index against a plain search, and guesses that continue what they should."""

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.caches.tokens import Context
from core.decoding.ngram_lookup import LONGEST_MATCH, Lookup, TokenIndex

CPU = torch.device("cpu")
texts = st.lists(st.integers(0, 2), max_size=60)  # few letters: everything repeats


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
    index = TokenIndex()
    index.sync(text)
    for suffix in (text, text + tail):
        assert index.find(suffix) == found_plainly(text, suffix)


@settings(max_examples=200, deadline=None)
@given(texts, texts, st.integers(0, 60))
def test_rewinding_leaves_no_trace(first: list[int], second: list[int], keep: int) -> None:
    """An index that was rewound and grown otherwise equals one that never knew the first text."""
    used, fresh = TokenIndex(), TokenIndex()
    used.sync(first)
    now = first[:keep] + second
    used.sync(now)
    fresh.sync(now)
    assert used.tokens == fresh.tokens == now
    assert used._last == fresh._last and used._before == fresh._before


def test_a_passage_of_common_words_is_found_behind_many_places_of_each() -> None:
    passage = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    index = TokenIndex()
    index.sync([*passage, *(token for number in range(2000) for token in (8, 9, 1, 2, 50 + number % 7))])
    assert index.find([40, *passage[:11]]) == (11, 11)


def test_a_guess_continues_the_longest_match() -> None:
    rng = random.Random(0)
    book = [rng.randrange(100, 200) for _ in range(500)]
    quoted = book[200:209]
    index = TokenIndex()
    lookup = Lookup(index, 256, CPU, at_least=5, at_most=12)
    index.sync([*book, 7, *quoted])
    guess = lookup.guess(Context([*book, 7, *quoted]))
    assert guess is not None
    assert list(guess.tokens) == book[209 : 209 + 9], "as many tokens as agree"
    assert guess.probs.sum(-1).tolist() == [1.0] * 9 and guess.probs[0, book[209]] == 1
    assert {origin.level for origin in guess.origins} == {"lookup"}
    assert lookup.guess(Context([*book, 8, *book[200:204]])) is None, "four tokens are too few here"
    # a speculative tail that nothing was told of is matched as well
    tail = Context([*book, 7, *quoted]).extended(tuple(book[209:212]))
    more = lookup.guess(tail)
    assert more is not None and more.tokens[0] == book[212]


def test_what_was_committed_is_taken_in() -> None:
    index = TokenIndex()
    lookup = Lookup(index, 64, CPU, at_least=3, at_most=12)
    text = [1, 2, 3, 4, 5, 6, 7]
    index.sync(text)
    assert lookup.guess(Context(text)) is None
    grown = [*text, 9, 2, 3, 4]
    index.extend(grown[len(text) :])
    guess = lookup.guess(Context(grown))
    assert guess is not None and guess.tokens == (5, 6, 7), "as many as agree"
