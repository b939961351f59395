"""Claims about the sample books: they are what the recipe writes, fit their contexts and contain their answers."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from app.documents.readers import read_document
from assets.tools.books.formats import as_read
from assets.tools.books.generated import ABSENT_ANSWER, write_book
from assets.training.books import FOLDER, QUESTIONS, SAMPLES, Sample
from assets.training.tokens import Layout

LAYOUT = Layout.load(FOLDER.parent / "models" / "harbour-target")
ROWS = json.loads((FOLDER / "questions.json").read_text(encoding="utf-8"))
NAMES = [name for sample in SAMPLES for name in sample.names]
# What was measured and shown in the README was measured on these very texts.


@cache
def text_of(name: str) -> str:
    return read_document(FOLDER / name).text


def words(text: str) -> str:
    return " ".join(text.split()).lower()


@pytest.mark.parametrize("name", NAMES)
def test_each_book_has_questions_of_every_kind_and_contains_their_answers(name: str) -> None:
    text = words(text_of(name))
    asked = [row for row in ROWS if row["book"] == name]
    assert {kind: sum(row["kind"] == kind for row in asked) for kind in QUESTIONS} == dict(QUESTIONS)
    for row in asked:
        if row["kind"] == "absent":
            assert row["answer"] == ABSENT_ANSWER
        elif row["kind"] in ("recite", "quote"):
            assert words(row["answer"]) in text, row["question"]
        else:
            assert all(words(part) in text for part in row["answer"].rstrip(".").split(". ")), row["question"]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.names[0])
def test_the_books_are_what_the_recipe_writes(sample: Sample) -> None:
    book = write_book(sample.seed, sample.num_words)
    for name in sample.names:
        assert text_of(name) == as_read(book, Path(name).suffix)


@pytest.mark.parametrize(
    ("name", "fewest", "context"),
    [
        ("harbour-8k.pdf", 7_000, 8_192),
        ("harbour-32k.txt", 31_000, 32_768),
        ("harbour-32k.epub", 31_000, 32_768),
        ("harbour-120k.txt", 110_000, 122_880),
    ],
)
def test_a_book_fits_into_its_context_with_a_long_question_and_an_answer(name: str, fewest: int, context: int) -> None:
    longest = max(len(LAYOUT.turn(row["question"], first=True)) for row in ROWS)
    assert fewest < len(LAYOUT.opening() + LAYOUT.ids(text_of(name))) + longest + 150 < context
