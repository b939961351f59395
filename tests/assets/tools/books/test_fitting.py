"""A book of a wanted length, found with few countings."""

import pytest

from assets.tools.books.fitting import MAX_TRIES, TRIED_TOKENS, BookTooShort, fit_book
from assets.tools.books.generated import Book


class Counter:
    """Counts tokens, and how often it was asked."""

    def __init__(self, tokens_per_word: float) -> None:
        self.tokens_per_word, self.num_calls = tokens_per_word, 0

    def __call__(self, book: Book) -> int:
        self.num_calls += 1
        return round(len(book.text.split()) * self.tokens_per_word)


@pytest.mark.parametrize("tokens_per_word", [0.9, 1.2, 1.4, 3.0])
@pytest.mark.parametrize("wanted", [300, 1_000, 8_000, 30_000])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_book_has_at_most_the_wanted_length_and_hardly_less(wanted: int, seed: int, tokens_per_word: float) -> None:
    count = Counter(tokens_per_word)
    fitted = fit_book(seed, wanted, count)
    assert wanted - max(70 * tokens_per_word, wanted // 100) <= fitted.num_tokens <= wanted
    assert fitted.num_tokens == count(fitted.book)
    assert count.num_calls <= max(MAX_TRIES, TRIED_TOKENS // wanted) + 1


def test_a_length_below_the_shortest_book_is_refused_and_the_one_named_works() -> None:
    with pytest.raises(BookTooShort, match="No book is as short as 80 tokens") as caught:
        fit_book(7, 80, Counter(2.0))
    named = int(caught.value.hint.split()[2])
    assert fit_book(7, named, Counter(2.0)).num_tokens == named
