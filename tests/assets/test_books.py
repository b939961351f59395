"""Claims about the sample books: they are what the recipe writes, fit their contexts and contain their answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pypdf import PdfReader

from assets.recipe.books import SEED_32K, TOKENS_32K, fit
from assets.recipe.tokens import Layout

ASSETS = Path(__file__).resolve().parents[2] / "assets"
LAYOUT = Layout.load(ASSETS / "models" / "harbour-target")
QUESTIONS = json.loads((ASSETS / "books" / "questions.json").read_text(encoding="utf-8"))


def words(text: str) -> str:
    return " ".join(text.split()).lower()


def pdf_text() -> str:
    pages = [page.extract_text().split("\n")[1:-1] for page in PdfReader(ASSETS / "books" / "harbour-8k.pdf").pages]
    return " ".join(" ".join(lines) for lines in pages)  # without running header and page number


@pytest.mark.parametrize("name", ["harbour-8k.pdf", "harbour-32k.txt"])
def test_each_book_has_ten_questions_and_contains_their_answers(name: str) -> None:
    text = words(pdf_text() if name.endswith("pdf") else (ASSETS / "books" / name).read_text(encoding="utf-8"))
    asked = [question for question in QUESTIONS if question["book"] == name]
    assert len(asked) >= 10
    assert {question["kind"] for question in asked} == {"fact", "list", "recite"}
    for question in asked:
        if question["kind"] == "list":
            sentences = question["answer"].rstrip(".").split(". ")
        else:
            sentences = [question["answer"].rstrip(".")]
        assert all(words(sentence) in text for sentence in sentences), question["question"]


def test_the_short_book_has_about_8k_tokens_after_extraction() -> None:
    assert 7_000 < len(LAYOUT.ids(pdf_text())) < 8_192


def test_the_long_book_fits_into_32k_with_a_long_answer() -> None:
    text = (ASSETS / "books" / "harbour-32k.txt").read_text(encoding="utf-8")
    longest = max(len(LAYOUT.turn(question["question"], first=True)) for question in QUESTIONS)
    assert 31_000 < len(LAYOUT.opening() + LAYOUT.ids(text)) + longest + 200 < 32_768


def test_the_long_book_is_what_the_recipe_writes() -> None:
    text = (ASSETS / "books" / "harbour-32k.txt").read_text(encoding="utf-8")
    assert text == fit(SEED_32K, TOKENS_32K, LAYOUT).text + "\n"
