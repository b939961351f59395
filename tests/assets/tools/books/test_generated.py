"""Claims about the generated books: they are reproducible, and every question has exactly one answer in the text."""

from __future__ import annotations

import re
from collections import Counter
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.tools.books.generated import _OBJECT_RELATIONS, _PERSON_RELATIONS, Book, write_book


def facts_told(book: Book) -> str:
    """The text in lower case, so that a statement is found at the start of a sentence too."""
    return book.text.lower()


@pytest.mark.parametrize(
    ("arguments", "digest"),
    [
        ((7, 1500), "d934b5d7cd5f523091685818eae726618331e558962dd88788591f1a1b5c3adf"),
        ((900_000, 9000, 300), "f4b45172b6e00ce13ab2d6e062799c2e6e4cf3f4a486909101bf13a4d27151b0"),
    ],
)
def test_books_stay_what_they_were_when_models_were_trained_on_them(arguments: tuple[int, ...], digest: str) -> None:
    assert sha256(repr(write_book(*arguments)).encode()).hexdigest() == digest


@settings(max_examples=30, deadline=None)
@given(st.integers(min_value=0, max_value=2**40), st.integers(min_value=60, max_value=3000))
def test_every_question_of_a_book_has_one_answer_in_it_or_none(seed: int, num_words: int) -> None:
    book = write_book(seed, num_words)
    assert Counter(question.question for question in book.questions).most_common(1)[0][1] == 1
    facts_are_stated_once(book)
    chapters_are_recited_word_for_word(book)
    what_is_asked_in_vain_is_told_nowhere(book)


def facts_are_stated_once(book: Book) -> None:
    """Each in its chapter; and what stands before the value stands nowhere else, so no other value can be meant."""
    for fact in book.facts:
        statement = re.compile(re.escape(fact.statement.lower()) + r"\b")
        assert len(statement.findall(facts_told(book))) == 1, fact
        assert len(statement.findall(book.chapters[fact.chapter - 1].text.lower())) == 1, fact
        assert fact.statement.endswith(fact.value)
        opening = re.compile(r"\b" + re.escape(fact.statement.removesuffix(fact.value).lower()))
        assert len(opening.findall(facts_told(book))) == 1, fact


def chapters_are_recited_word_for_word(book: Book) -> None:
    for number, chapter in enumerate(book.chapters, start=1):
        assert chapter.number == number
        assert chapter.text.startswith(f"Chapter {number}: {chapter.title}\n\n")
        assert book.text.count(chapter.text) == 1
    assert sum(question.kind == "recite" for question in book.questions) == len(book.chapters)


def what_is_asked_in_vain_is_told_nowhere(book: Book) -> None:
    """A question without an answer names a subject and a relation; the words that would tell it are not in the text."""
    absent = [question for question in book.questions if question.kind == "absent"]
    assert absent and all(question.answer == "The book does not say." for question in absent)
    openings = [(r.question, r.statement.split("{v}")[0]) for r in _PERSON_RELATIONS + _OBJECT_RELATIONS]
    checked = 0
    for question in absent:
        for pattern, opening in openings:
            before, after = pattern.split("{s}")
            if question.question.startswith(before) and question.question.endswith(after):
                subject = question.question[len(before) : len(question.question) - len(after)]
                if pattern.format(s=subject) == question.question:
                    told = re.compile(r"\b" + re.escape(opening.format(s=subject).lower().strip()) + r"\b")
                    assert not told.search(facts_told(book)), question
                    checked += 1
    assert checked, "no question was recognised"
