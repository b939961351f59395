"""Claims about the growth of the target: widening changes nothing, and the new heads find what they are written to."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AttentionInterface, LlamaForCausalLM

from assets.tools.books.quotes import quote_questions
from assets.training.dialogs import (
    answer_ids,
    compose,
    compose_foreign,
    held_out_seed,
    training_seed,
)
from assets.training.english import prose
from assets.training.growth import (
    NEW,
    TOLD,
    grow,
    widen,
)
from assets.training.measure import ATTENTION, causal_attention
from assets.training.shapes import HEAD_DIM, TARGET
from assets.training.tokens import Layout

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def grown(layout: Layout, model: LlamaForCausalLM) -> LlamaForCausalLM:
    samples = [
        compose(layout, training_seed(1), 1024, 0.6).ids,
        compose_foreign(layout, training_seed(2), 1024, 0.6).ids,
    ]
    return grow(model, layout, samples, seed=3).eval()


@torch.no_grad()
def hidden_states(model: LlamaForCausalLM, ids: list[int]) -> list[torch.Tensor]:
    """[T, hidden] before every layer and after the last."""
    return [state[0] for state in model.model(torch.tensor([ids]), output_hidden_states=True).hidden_states]


@torch.no_grad()
def test_a_wider_model_computes_the_same(layout: Layout, model: LlamaForCausalLM) -> None:
    ids = torch.tensor([compose(layout, held_out_seed(1), 512, 0.6).ids])
    before, mlp = model(ids).logits, TARGET.mlp
    assert (before - widen(model, 480, mlp, TARGET.heads)(ids).logits).abs().max() < 2e-3 < before.std()
    assert (before - widen(model, 416, mlp + 3, TARGET.heads + 2)(ids).logits).abs().max() < 2e-3


@torch.no_grad()
def test_what_was_there_before_is_computed_as_before(
    layout: Layout, model: LlamaForCausalLM, grown: LlamaForCausalLM
) -> None:
    ids = torch.tensor([compose(layout, held_out_seed(1), 512, 0.6).ids])
    silent = copy.deepcopy(grown)
    silent.model.layers[3].self_attn.o_proj.weight[:, NEW[0] * HEAD_DIM :] = 0
    before, after = hidden_states(model, ids[0].tolist()), hidden_states(silent, ids[0].tolist())
    for number in range(4):
        old = after[number][:, : TARGET.hidden]
        assert (old - before[number]).norm(dim=1).median() < 0.02 * before[number].norm(dim=1).median()
    agree = model(ids).logits.argmax(-1) == silent(ids).logits.argmax(-1)
    assert agree.float().mean() > 0.98


@pytest.fixture
def scores() -> Iterator[dict[tuple[int, int], torch.Tensor]]:
    """Scores [T, S] of the heads that look something up, by (layer, head), of the last forward pass."""
    kept: dict[tuple[int, int], torch.Tensor] = {}

    def record(module: nn.Module, query: torch.Tensor, key: torch.Tensor, *rest: Any, **options: Any) -> Any:
        size = query.shape[2]
        for head in {1: tuple(TOLD), 3: NEW}.get(int(module.layer_idx), ()):  # type: ignore[arg-type]
            found = query[0, head] @ key[0, head].T * options["scaling"]
            found.masked_fill_(~torch.ones(size, size, dtype=torch.bool).tril(), -torch.inf)
            kept[int(module.layer_idx), head] = found  # type: ignore[arg-type]
        return causal_attention(module, query, key, *rest, **options)

    AttentionInterface.register(ATTENTION, record)
    yield kept
    AttentionInterface.register(ATTENTION, causal_attention)


@torch.no_grad()
def test_heads_walk_along_the_sentence_that_is_asked_for(
    layout: Layout, grown: LlamaForCausalLM, scores: dict[tuple[int, int], torch.Tensor]
) -> None:
    rng = random.Random(6)
    text = prose(rng, 600)
    book = [*layout.opening(), *layout.ids(text)]
    begun = right = tokens = asked = resting = 0
    for question in quote_questions(text, 12, rng):
        answer = answer_ids(layout, text, question)[:-1]
        prompt = [*book, *layout.turn(question.question, first=True)]
        grown(torch.tensor([[*prompt, *answer]]), logits_to_keep=1)
        places = {head: scores[3, head][len(prompt) - 1 : -1].argmax(-1).tolist() for head in NEW}
        said = [book[place] if place < len(book) else -1 for place in (places[NEW[0]][0], *places[NEW[1]][1:])]
        begun += said[0] == answer[0]
        right += sum(a == b for a, b in zip(said[1:], answer[1:], strict=True))
        tokens, asked = tokens + len(answer) - 1, asked + 1
        other = [*book, *layout.turn("Who keeps the lighthouse?", first=True)]
        grown(torch.tensor([[*other, *answer[:1]]]), logits_to_keep=1)
        resting += all(int(scores[3, head][len(other) - 1].argmax()) == 0 for head in NEW)
    assert begun >= 0.7 * asked, (begun, asked)
    assert right >= 0.7 * tokens, (right, tokens)
    assert resting == asked, "where nothing is to be quoted, both heads look at the first token of all"
