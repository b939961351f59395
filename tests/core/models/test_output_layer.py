"""Logits of 16-bit weights: as wide as their sums. (On CUDA: `tests/gpu`, and on a pretended one.)"""

import copy
from typing import Any, cast

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, Gemma2Config

from core.models.linear import OutputLinear, use_wide_output


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_output_layer_of_16_bits_gives_logits_as_wide_as_its_sums(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    plain = nn.Linear(64, 200, dtype=dtype)
    plain.weight.data = torch.randn(200, 64, generator=generator).to(dtype)
    wide = copy.deepcopy(plain)
    wide.__class__ = OutputLinear
    hidden = torch.randn(1, 30, 64, generator=generator).to(dtype)
    expected = hidden.double() @ plain.weight.double().T + plain.bias.double()
    assert wide(hidden).dtype == torch.float32 and torch.allclose(wide(hidden).double(), expected, atol=1e-4)
    assert not torch.allclose(plain(hidden).double(), expected, atol=1e-3)
    assert torch.equal(wide.float()(hidden.float()), plain.float()(hidden.float())), "wider ones stay as they were"


def test_a_soft_cap_and_tied_weights_follow_from_wide_logits() -> None:
    config = Gemma2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        final_logit_softcapping=2.0,
        tie_word_embeddings=True,
        initializer_range=0.4,
    )
    model = cast(Any, AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)).eval()
    tokens = torch.tensor([[5, 9, 33, 2]])
    hidden = model.model(tokens).last_hidden_state.double()
    expected = 2 * torch.tanh(hidden @ model.lm_head.weight.double().T / 2)
    use_wide_output(model)
    assert model.lm_head.weight is model.model.embed_tokens.weight, "they stay one"
    found = model(tokens).logits
    assert found.dtype == torch.float32 and torch.allclose(found.double(), expected, atol=1e-5)
