"""Claims about the recipe: documents train what they say, a run goes on where it was saved, growth changes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from assets.tools.books.generated import Question
from assets.training.asking import answer_losses, make_rows, open_book, pad, text_and_questions
from assets.training.dialogs import (
    ABSENT,
    FACT,
    QUOTE,
    SKILLS,
    START,
    answer_ids,
    compose,
    compose_foreign,
    held_out_seed,
    make_batch,
)
from assets.training.growth import widen
from assets.training.run import Run, next_token_losses
from assets.training.shapes import DRAFT, TARGET, build
from assets.training.tokens import END, Layout
from tests.assets.conftest import short_leg


def test_documents_have_their_length_and_name_what_each_token_trains(layout: Layout) -> None:
    document = compose(layout, held_out_seed(3), 2048, 0.5)
    assert len(document.ids) == len(document.skills) == 2048
    found = {SKILLS[skill] for skill in document.skills}
    assert {"language", "question", "start", "fact", "absent", "quote"} <= found
    starts = [at for at, skill in enumerate(document.skills) if skill == START]
    assert all(document.skills[at + 1] in (FACT, ABSENT) for at in starts if at + 1 < 2048)
    foreign = compose_foreign(layout, held_out_seed(4), 1024, 0.5)
    quoted = [i for i, skill in zip(foreign.ids, foreign.skills, strict=True) if skill == QUOTE]
    assert layout.mark(END) in quoted
    batch = make_batch(layout, 5, 4, 512, skip=True)
    assert batch.ids.shape == (4, 512) and (batch.positions.diff(dim=1) > 0).all()


def test_quotations_are_answered_with_the_tokens_of_the_text(layout: Layout) -> None:
    text = "Fog lay on the quay. Zebulon whistled. Nobody heard."
    first, second = (Question("quote", "", said, (said,)) for said in ("Fog lay on the quay.", "Zebulon whistled."))
    ids = layout.ids(text)
    for question in (first, second):
        answer = answer_ids(layout, text, question)
        assert answer[-1] == layout.mark(END)
        assert any(ids[at : at + len(answer) - 1] == answer[:-1] for at in range(len(ids))), question.answer
    bare = layout.ids(second.answer)
    assert not any(ids[at : at + len(bare)] == bare for at in range(len(ids))), "without its space it has other tokens"
    fact = Question("fact", "", "Zebulon whistled.", ())
    assert answer_ids(layout, text, fact) == [*bare, layout.mark(END)], "other answers begin without a space"


def test_a_run_goes_on_where_it_was_saved(layout: Layout, tmp_path: Path) -> None:
    """Weights, optimiser and number of the step: four steps at once, and two and two with a file between."""
    leg = replace(short_leg(steps=4, rate=1e-2), warmup=2, floors=(0.1, 0.1))

    def begun(folder: str) -> Run:
        (tmp_path / folder).mkdir(exist_ok=True)
        return Run("draft", build(DRAFT, seed=3), (leg,), layout, tmp_path / folder)

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


def test_questions_about_an_open_book_lose_and_learn_as_behind_the_whole_of_it(layout: Layout) -> None:
    model = build(DRAFT, seed=3)
    text, questions = text_and_questions(0, 300, foreign=False)
    before = [*layout.opening(), *layout.ids(text)]
    documents = list(make_rows(layout, text, questions[:3]))
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


@torch.no_grad()
def test_a_wider_model_computes_the_same(layout: Layout, model: LlamaForCausalLM) -> None:
    ids = torch.tensor([compose(layout, held_out_seed(1), 512, 0.6).ids])
    before, mlp = model(ids).logits, TARGET.mlp
    assert (before - widen(model, 480, mlp, TARGET.heads)(ids).logits).abs().max() < 2e-3 < before.std()
    assert (before - widen(model, 416, mlp + 3, TARGET.heads + 2)(ids).logits).abs().max() < 2e-3
