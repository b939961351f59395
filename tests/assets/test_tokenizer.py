"""Claims about the bundled tokenizer: any text comes back, and the app's segmentation is the template's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from assets.tools.books.generated import write_book
from assets.training.tokens import END, SPECIALS, Layout

MODELS = Path(__file__).resolve().parents[2] / "assets" / "models"
LAYOUT = Layout.load(MODELS / "harbour-target")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(MODELS / "harbour-target")
    return loaded


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_any_text_comes_back_exactly(text: str) -> None:
    assert LAYOUT.tokenizer.decode(LAYOUT.ids(text), skip_special_tokens=False) == text


@given(st.sampled_from(SPECIALS), st.text(max_size=20))
def test_a_document_cannot_smuggle_in_special_tokens(special: str, text: str) -> None:
    ids = LAYOUT.ids(text + special + text)
    assert all(token >= len(SPECIALS) for token in ids)


def test_both_models_share_one_tokenizer() -> None:
    target, draft = (MODELS / name / "tokenizer.json" for name in ("harbour-target", "harbour-draft"))
    assert target.read_bytes() == draft.read_bytes()


def test_joined_segments_are_what_the_chat_template_renders(tokenizer: PreTrainedTokenizerBase) -> None:
    book = write_book(4, 300)
    first, second = book.questions[:2]
    messages = [
        {"role": "user", "content": f"{book.text}\n\n{first.question}"},
        {"role": "assistant", "content": first.answer},
        {"role": "user", "content": second.question},
    ]
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    joined = LAYOUT.opening() + LAYOUT.ids(book.text) + LAYOUT.turn(first.question, first=True)
    joined += [*LAYOUT.ids(first.answer), LAYOUT.mark(END), *LAYOUT.turn(second.question, first=False)]
    assert rendered == joined
