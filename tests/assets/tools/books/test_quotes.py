"""Claims about quotation tasks: a phrase points to one sentence, and the sentence stands in the text as it is asked."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from assets.tools.books.generated import write_book
from assets.tools.books.quotes import QUESTION, quote_questions, sentences

TEXT = (
    'The tide came in at four and nobody had told the boys. They ran for the wall. "Is anybody hurt?" asked the old '
    "keeper from his window.\n\nNobody was hurt (so they said). Mr. Pike wrote it down all the same, and the page is "
    "still in the book. They ran for the wall."
)


def test_sentences_are_cut_at_their_ends_and_keep_their_quotes() -> None:
    found = sentences(TEXT)
    assert found[0] == "The tide came in at four and nobody had told the boys."
    assert found[2] == '"Is anybody hurt?" asked the old keeper from his window.'
    assert found[3] == "Nobody was hurt (so they said)."
    assert " ".join(found) == TEXT.replace("\n\n", " ")


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_every_phrase_points_to_exactly_one_sentence(book_seed: int, seed: int) -> None:
    text = write_book(book_seed, 400).text
    for question in quote_questions(text, 20, random.Random(seed)):
        phrase = question.question.split('"')[1]
        assert question.question == QUESTION.format(phrase=phrase)
        assert text.count(phrase) == 1 and phrase in question.answer
        assert text.count(question.answer) == 1 and "\n" not in question.answer
        assert question.values == (question.answer,)
