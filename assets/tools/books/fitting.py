"""Fits a book to a number of tokens, for any tokenizer, with a generator that counts words."""

import itertools
from collections.abc import Callable
from typing import NamedTuple

from assets.tools.books.generated import Book, write_book
from core.errors import CoreError

FEWEST_WORDS = 60  # minimum of write_book
FIRST_GUESS = 0.8  # words per token; the bundled tokenizer has 0.84, large ones have 0.75
MAX_TRIES = 6  # two or three are usual
TRIED_TOKENS = 20_000  # below, a paragraph changes the length by a larger share and counting is quick: more tries
SPREAD = 0.618  # of the golden section: no two tries have nearly the same target
CLOSE_TOKENS, CLOSE_SHARE = 40, 200  # close enough: within 40 tokens, or a two-hundredth, of the target


class Fitted(NamedTuple):
    """A book and its length."""

    book: Book
    num_tokens: int


class BookTooShort(CoreError):
    """No book is that short."""

    wrong_usage = True

    def __init__(self, wanted: int, shortest: int) -> None:
        super().__init__(
            f"No book is as short as {wanted:,} tokens.", hint=f"Ask for {shortest:,} or more with --tokens."
        )


def fit_book(seed: int, num_tokens: int, count: Callable[[Book], int]) -> Fitted:
    """The book of `seed` with at most `num_tokens` tokens and hardly fewer.

    A change of length gives another book, so lengths jump by a paragraph; the closest book tried is returned.

    Args:
        count: the number of tokens of a book.
    Raises:
        BookTooShort: even the shortest book of the seed has more tokens.
    Cost: a few calls of `count`, each on a book of about the requested length; more for short books.
    """
    max_tries = max(MAX_TRIES, TRIED_TOKENS // num_tokens)
    close = max(CLOSE_TOKENS, num_tokens // CLOSE_SHARE)
    num_words, best = max(FEWEST_WORDS, int(num_tokens * FIRST_GUESS)), None
    for tried in itertools.count(1):
        book = write_book(seed, num_words)
        found = Fitted(book, count(book))
        if found.num_tokens <= num_tokens and (best is None or found.num_tokens > best.num_tokens):
            best = found
        if best and (tried >= max_tries or best.num_tokens >= num_tokens - close):
            return best
        if num_words == FEWEST_WORDS and best is None:
            raise BookTooShort(num_tokens, found.num_tokens)
        goal = num_tokens - close * (SPREAD * tried % 1)
        num_words = max(FEWEST_WORDS, min(round(num_words * goal / found.num_tokens), 2 * num_words))
    raise AssertionError("unreachable: lengths go down until one fits")
