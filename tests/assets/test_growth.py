"""The growth of the target: widening changes nothing."""

from __future__ import annotations

import torch
from transformers import LlamaForCausalLM

from assets.training.dialogs import compose, held_out_seed
from assets.training.growth import widen
from assets.training.shapes import TARGET
from assets.training.tokens import Layout


@torch.no_grad()
def test_a_wider_model_computes_the_same(layout: Layout, model: LlamaForCausalLM) -> None:
    ids = torch.tensor([compose(layout, held_out_seed(1), 512, 0.6).ids])
    before, mlp = model(ids).logits, TARGET.mlp
    assert (before - widen(model, 480, mlp, TARGET.heads)(ids).logits).abs().max() < 2e-3 < before.std()
    assert (before - widen(model, 416, mlp + 3, TARGET.heads + 2)(ids).logits).abs().max() < 2e-3
