"""Claims about what the recall suite reads and asks: the kept text answers every question, and nobody trained on it."""

from __future__ import annotations

import random

import pytest

from assets.tools.bench import recall_tasks
from assets.tools.books.generated import ABSENT_ANSWER, write_book
from assets.tools.books.quotes import quote_questions
from core.generation.text import ChatText
from core.models.hub.catalog import find
from core.models.loader import load_tokenizer

TEXT = ChatText(load_tokenizer(find("harbour").target), frozenset())


@pytest.mark.parametrize("num_tokens", [64, 100, 333, 800])
def test_a_book_is_cut_behind_a_whole_paragraph(num_tokens: int) -> None:
    written = write_book(3_000_001, 800).text
    kept = recall_tasks.cut_at_paragraph(TEXT, written, num_tokens)
    assert len(TEXT.encode(kept)) <= num_tokens
    assert written.startswith(kept + "\n\n")
    following = written[len(kept) :].split("\n\n")[1]
    assert len(TEXT.encode(f"{kept}\n\n{following}")) > num_tokens, "one more paragraph would have fitted"


def test_what_is_asked_about_a_cut_book_has_its_answer_in_it() -> None:
    source = next(recall_tasks.books(TEXT, 1024, 0, 20))
    lower = source.text.lower()
    assert all(source.questions[skill] for skill in recall_tasks.BOOK_SKILLS if skill != "list")
    for asked in source.questions["fact"]:
        assert asked.answer.removesuffix(".").lower() in lower
    for asked in source.questions["list"]:
        assert all(value.lower() in lower for value in asked.values)
    for skill in ("quote", "recite"):
        assert all(asked.answer in source.text for asked in source.questions[skill])
    told = {asked.question for asked in source.questions["fact"]}
    for asked in source.questions["absent"]:
        assert asked.answer == ABSENT_ANSWER and asked.question not in told


def test_sentences_that_training_reads_as_well_are_not_asked_for() -> None:
    trained, shared, own = recall_tasks.trained_english(), [], set()
    for source in recall_tasks.english_texts(TEXT, 120_000, 0, 10_000):
        asked = {question.answer for question in source.questions["quote_any"]}
        assert asked and not any(answer in trained for answer in asked)
        own |= asked
        shared += [q for q in quote_questions(source.text, 10_000, random.Random(0)) if q.answer in trained]
    assert shared, "topics do share sentences, so leaving them out was needed"
    assert not own & {question.answer for question in shared}
