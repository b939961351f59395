"""Claims about the recipe and what it made: tokenizer, documents, training, growth, the pair and the sample books."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from app.documents.readers import read_document
from assets.tools.bench.recall_tasks import measured_topics, unseen_quotes, unwrapped
from assets.tools.books.formats import FORMATS, as_read
from assets.tools.books.generated import Question, write_book
from assets.tools.books.questions import choose_questions
from assets.training.asking import answer_losses, make_rows, open_book, pad, text_and_questions
from assets.training.books import FOLDER, QUESTIONS, SAMPLES, Sample
from assets.training.dialogs import WORDS_PER_TOKEN, answer_ids, held_out_seed
from assets.training.measure import ATTENTION, answer_hits, read
from assets.training.run import Run, Schedule, next_token_losses
from assets.training.shapes import DRAFT, build
from assets.training.tokens import END, SPECIALS, Layout

MODELS = FOLDER.parent / "models"
LAYOUT = Layout.load(MODELS / "harbour-target")
ROWS = json.loads((FOLDER / "questions.json").read_text(encoding="utf-8"))
TARGET_NOW = MODELS / "harbour-target"

# -------------------- the tokenizer


@settings(max_examples=200)
@given(st.text(), st.sampled_from(SPECIALS))
def test_any_text_comes_back_exactly_and_smuggles_in_no_special_token(text: str, special: str) -> None:
    assert LAYOUT.tokenizer.decode(LAYOUT.ids(text), skip_special_tokens=False) == text
    assert all(token >= len(SPECIALS) for token in LAYOUT.ids(text + special + text))


def test_joined_segments_are_what_the_chat_template_of_both_models_renders() -> None:
    draft, target = ((MODELS / f"harbour-{name}" / "tokenizer.json").read_bytes() for name in ("draft", "target"))
    assert draft == target
    book = write_book(4, 300)
    first, second = book.questions[:2]
    said = [f"{book.text}\n\n{first.question}", first.answer, second.question]
    messages = [{"role": role, "content": text} for role, text in zip(("user", "assistant", "user"), said, strict=True)]
    rendered = AutoTokenizer.from_pretrained(TARGET_NOW).apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    joined = LAYOUT.opening() + LAYOUT.ids(book.text) + LAYOUT.turn(first.question, first=True)
    joined += [*LAYOUT.ids(first.answer), LAYOUT.mark(END), *LAYOUT.turn(second.question, first=False)]
    assert rendered == joined


# -------------------- documents


def test_quotations_are_answered_with_the_tokens_of_the_text() -> None:
    def stands_in(ids: list[int], part: list[int]) -> bool:
        return any(ids[at : at + len(part)] == part for at in range(len(ids)))

    text = "Fog lay on the quay. Zebulon whistled. Nobody heard."
    for said in ("Fog lay on the quay.", "Zebulon whistled."):
        answer = answer_ids(LAYOUT, text, Question("quote", "", said, (said,)))
        assert answer[-1] == LAYOUT.mark(END) and stands_in(LAYOUT.ids(text), answer[:-1])
    bare = LAYOUT.ids("Zebulon whistled.")
    assert not stands_in(LAYOUT.ids(text), bare), "without its space it has other tokens"
    fact = Question("fact", "", "Zebulon whistled.", ())
    assert answer_ids(LAYOUT, text, fact) == [*bare, LAYOUT.mark(END)], "other answers begin without a space"


# -------------------- training


def test_a_run_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    """Weights, optimiser and number of the step: four steps at once, and two and two with a file between."""
    leg = Schedule(
        steps=4,
        peak_rate=1e-2,
        warmup=2,
        tokens_per_step=64,
        stages=((1.0, (64,)),),
        circuit_shares=((1.0, 1.0),),
        floors=(0.1, 0.1),
        skip_positions=False,
    )

    def begun(folder: str) -> Run:
        (tmp_path / folder).mkdir(exist_ok=True)
        return Run("draft", build(DRAFT, seed=3), (leg,), LAYOUT, tmp_path / folder)

    def two_steps(run: Run) -> None:
        for _ in range(2):
            run.update(run.model((torch.arange(8) + 7 * run.step)[None]).logits.square().mean())

    at_once, first = begun("at once"), begun("twice")
    two_steps(at_once), two_steps(at_once), two_steps(first)
    first.save()
    again = begun("twice")
    assert again.step == 2
    two_steps(again)
    for name, weight in at_once.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name]), name
    assert not torch.equal(first.model.lm_head.weight, again.model.lm_head.weight)


def test_questions_about_an_open_book_lose_and_learn_as_behind_the_whole_of_it() -> None:
    model = build(DRAFT, seed=3)
    text, questions = text_and_questions(0, 300, foreign=False)
    before = [*LAYOUT.opening(), *LAYOUT.ids(text)]
    documents = list(make_rows(LAYOUT, text, questions[:3]))
    batch = pad(documents, len(before))
    query = model.model.layers[1].self_attn.q_proj.weight

    losses = answer_losses(model, open_book(model, before, chunk=100), batch)
    kept = torch.arange(losses.shape[1])[None] < torch.tensor([[len(d.ids) - 1] for d in documents])
    losses[kept].sum().backward()
    assert query.grad is not None
    gradient, query.grad = query.grad, None

    wanted = []
    for document in documents:
        tokens = torch.tensor([before + document.ids])
        whole = next_token_losses(model(tokens, use_cache=False).logits, tokens)[0, len(before) :]
        wanted.append(whole)
        # The last layer's queries in the book have no part in what is asked: their gradient is that of the questions.
        whole.sum().backward()
    torch.testing.assert_close(losses[kept], torch.cat(wanted).detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gradient, query.grad, rtol=1e-3, atol=1e-5)
    losses = answer_losses(model, open_book(model, before[:-1]), batch)  # one token less is another book
    assert (losses[kept] - torch.cat(wanted)).abs().max() > 1e-3


# -------------------- the pair


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    model: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(TARGET_NOW, dtype=torch.float32)
    model.set_attn_implementation(ATTENTION)
    return model.eval()


def num_right(target: LlamaForCausalLM, text: str, questions: Sequence[Question]) -> int:
    """Greedy answers that are right token for token. The model card tells the rates; bounds leave room for bad luck."""
    cache = read(target, LAYOUT.opening() + LAYOUT.ids(text))
    asked = [(LAYOUT.turn(one.question, first=True), answer_ids(LAYOUT, text, one)) for one in questions]
    return sum(bool(answer_hits(target, cache, *turn).all()) for turn in asked)


def test_target_answers_most_questions_about_an_unseen_short_book(target: LlamaForCausalLM) -> None:
    seed = held_out_seed(123_456)
    book = write_book(seed, int(1024 * WORDS_PER_TOKEN))
    for kind in ("fact", "absent"):
        asked = random.Random(seed).sample([question for question in book.questions if question.kind == kind], 8)
        assert num_right(target, book.text, asked) >= 6, kind


@pytest.mark.slow
def test_target_quotes_sentences_of_english_that_no_training_saw(target: LlamaForCausalLM) -> None:
    text = unwrapped("\n\n".join(topics[name] for name in measured_topics()[:12]))[:16000]
    asked = unseen_quotes(text, 16, random.Random(1))
    assert len(asked) == 16 and num_right(target, text, asked) >= 9


# -------------------- the sample books: what the README tells was measured on these very texts


@cache
def text_of(name: str) -> str:
    return read_document(FOLDER / name).text


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.names[0])
def test_the_books_are_what_the_recipe_writes(sample: Sample) -> None:
    book = write_book(sample.seed, sample.num_words)
    for name in sample.names:
        suffix = Path(name).suffix
        assert text_of(name) == as_read(book, suffix)
        assert suffix == ".pdf" or (FOLDER / name).read_bytes() == FORMATS[suffix](book)
        asked = [row for row in ROWS if row["book"] == name]
        assert asked == choose_questions(book, name, sample.seed, QUESTIONS)
        assert Counter(row["kind"] for row in asked) == QUESTIONS


@pytest.mark.parametrize(
    ("name", "fewest", "context"),
    [("harbour-8k.pdf", 7_000, 8_192), ("harbour-32k.epub", 31_000, 32_768), ("harbour-120k.txt", 110_000, 122_880)],
)
def test_a_book_fits_its_context_with_a_long_question_and_an_answer(name: str, fewest: int, context: int) -> None:
    longest = max(len(LAYOUT.turn(row["question"], first=True)) for row in ROWS)
    assert fewest < len(LAYOUT.opening() + LAYOUT.ids(text_of(name))) + longest + 150 < context
