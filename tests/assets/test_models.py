"""Claims about the bundled pair: plain Llama folders of the promised size, and a target that really reads."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from assets.tools.bench.recall_tasks import measured_topics, unseen_quotes, unwrapped
from assets.tools.books.generated import Question, write_book
from assets.training.dialogs import WORDS_PER_TOKEN, answer_ids, held_out_seed
from assets.training.measure import ATTENTION, answer_hits, read
from assets.training.tokens import Layout

MODELS = Path(__file__).resolve().parents[2] / "assets" / "models"
LAYOUT = Layout.load(MODELS / "harbour-target")


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    model: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(MODELS / "harbour-target", dtype=torch.float32)
    model.set_attn_implementation(ATTENTION)
    return model.eval()


def num_right(target: LlamaForCausalLM, text: str, *asked: Sequence[Question]) -> list[int]:
    """Greedy answers that are right token for token, of each list of questions about one text."""
    cache, right = read(target, LAYOUT.opening() + LAYOUT.ids(text)), [0] * len(asked)
    for number, questions in enumerate(asked):
        for question in questions:
            turn, answer = LAYOUT.turn(question.question, first=True), answer_ids(LAYOUT, text, question)
            right[number] += int(answer_hits(target, cache, turn, answer).all())
    return right


def test_target_answers_most_questions_about_an_unseen_short_book(target: LlamaForCausalLM) -> None:
    """The model card tells the measured rates, the bound leaves room for bad luck."""
    seed = held_out_seed(123_456)
    book = write_book(seed, int(1024 * WORDS_PER_TOKEN))
    asked = [
        random.Random(seed).sample([q for q in book.questions if q.kind == kind], 8) for kind in ("fact", "absent")
    ]
    right = num_right(target, book.text, *asked)
    assert min(right) >= 6, f"{right} of 8"


def test_target_quotes_sentences_of_english_that_no_training_saw(target: LlamaForCausalLM) -> None:
    text = unwrapped("\n\n".join(topics[name] for name in measured_topics()[:12]))[:16000]
    asked = unseen_quotes(text, 16, random.Random(1))
    assert len(asked) == 16
    (right,) = num_right(target, text, asked)
    assert right >= 9, f"{right} of 16"
