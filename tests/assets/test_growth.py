"""Claims about the growth of the target: widening changes nothing, and the new heads find what they are written to."""

from __future__ import annotations

import copy
import random
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM

from assets.recipe.dialogs import compose, compose_foreign, held_out_seed, make_batch, training_seed
from assets.recipe.english import prose
from assets.recipe.growth import CODE_SIZES, Added, RestingKeys, grow, held_back, widen
from assets.recipe.run import Run, token_losses
from assets.recipe.shapes import TARGET
from assets.recipe.tokens import Layout
from core.bench.quotes import quote_questions
from tests.assets.conftest import short_leg


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
    before, after = model(ids).logits, widen(model, 480)(ids).logits
    assert (before - after).abs().max() < 2e-3 < before.std()
    assert (before - widen(model, 408)(ids).logits).abs().max() < 2e-3


def test_every_token_carries_the_codes_of_those_before_it(layout: Layout, grown: LlamaForCausalLM) -> None:
    ids = compose(layout, held_out_seed(1), 512, 0.6).ids
    state, at = hidden_states(grown, ids)[1], Added(TARGET.hidden)
    own, short = state[:, at.codes[0]], at.short(0)
    for back in range(1, len(CODE_SIZES)):
        source = own if CODE_SIZES[back] == CODE_SIZES[0] else state[:, short[0]] * short[1]
        carried = state[20:, at.codes[back]]
        assert (carried - source[20 - back : -back]).norm(dim=1).max() < 0.05
        assert (carried - source[19 - back : -back - 1]).norm(dim=1).median() > 0.3  # another place is told apart


def test_a_phrase_finds_its_sentence(layout: Layout, grown: LlamaForCausalLM) -> None:
    rng, at = random.Random(5), Added(TARGET.hidden)
    text = prose(rng, 600)
    questions = quote_questions(text, 12, rng)
    encoded = layout.tokenizer.encode(text, add_special_tokens=False)
    book = [*layout.opening(), *encoded.ids]
    shift = len(layout.opening())
    right, others, firsts = [], [], []
    for question in questions:
        matched = re.search(r'contains "(.*)"\.$', question.question)
        assert matched
        end = text.index(matched[1]) + len(matched[1])
        place = shift + next(i for i, (_, stop) in enumerate(encoded.offsets) if stop >= end)
        state = hidden_states(grown, [*book, *layout.turn(question.question, first=True)])
        found, signatures = state[3][-1, at.found], state[3][shift : len(book), at.signature]
        alike = F.cosine_similarity(found[None], signatures, dim=1)
        right.append(float(alike[place - shift]))
        others.append(float(alike.median()))
        begun = text.rindex(question.answer, 0, end + len(question.answer))
        first = shift + next(i for i, (_, stop) in enumerate(encoded.offsets) if stop > begun)
        firsts.append((float(alike[first - shift]), float(signatures[first - shift].norm())))
    assert sum(value > 0.9 for value in right) >= 0.7 * len(right), right
    assert max(others) < 0.7
    assert sum(value > 0.9 for value, _ in firsts) >= 0.7 * len(firsts), firsts
    lengths = [length for value, length in firsts if value > 0.9]
    assert max(lengths) < 1.25 * min(lengths), "a longer signature would be preferred whatever is looked for"


def test_a_sentence_begins_behind_a_stop_and_with_a_capital_only(layout: Layout, grown: LlamaForCausalLM) -> None:
    text = "Nobody in gr.render or, e.g., the old mill at no.7 heard the captain call. Rain fell."
    encoded = layout.tokenizer.encode(text, add_special_tokens=False)
    signatures = hidden_states(grown, [*layout.opening(), *encoded.ids])[2][
        len(layout.opening()) :, Added(TARGET.hidden).signature
    ]
    number = {
        word: next(i for i, (_, stop) in enumerate(encoded.offsets) if stop > text.index(word))
        for word in ("Nobody", "captain", "Rain")
    }
    alike = F.cosine_similarity(signatures[number["Nobody"], None], signatures, dim=1)
    assert (alike[number["Nobody"] : number["captain"]] > 0.9).all(), alike
    assert (alike[number["Rain"] :] < 0.7).all()


def test_a_step_moves_all_but_what_the_new_heads_look_for(
    layout: Layout, grown: LlamaForCausalLM, tmp_path: Path
) -> None:
    leg = short_leg(steps=2, rate=1e-3)
    model = copy.deepcopy(grown).train()
    masks, resting = held_back(model), RestingKeys(model, layout)
    kept = resting.measured()[1]
    run = Run("grown", model, (leg,), layout, tmp_path, masks)
    for step in range(2):
        run.update(token_losses(model, make_batch(layout, step, 1, 256, skip=False)).mean())
    for name, before in grown.named_parameters():
        mask, after = masks.get(name, torch.ones_like(before)), model.get_parameter(name)
        assert torch.equal(before[mask == 0], after[mask == 0]), name
        moved = (before != after)[mask == 1].float().mean()
        assert moved > 0.01, name
    assert len(masks) == 1 + 3 * 4 + 3 + 3 + 3 + 2
    drifted, keys = resting.measured()[1], {name: p.clone() for name, p in model.named_parameters() if "k_proj" in name}
    assert max(float((drifted[head] - key).abs().max()) for head, key in kept.items()) > 0.01
    resting.restore()
    for head, key in resting.measured()[1].items():
        assert torch.allclose(key, kept[head], atol=1e-3)
    for name, before in keys.items():
        moved_in = (model.get_parameter(name) != before).any(0).nonzero().flatten().tolist()
        assert moved_in in ([], [Added(TARGET.hidden).flag["bos"]])
