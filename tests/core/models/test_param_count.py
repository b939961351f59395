"""Counting parameters beside an engine that computes: the default type of numbers belongs to all threads."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from core.models.param_count import size_of


def test_counting_a_16_bit_model_leaves_the_default_type_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted on the page's thread, in bfloat16, it made the engine's thread write over memory that was too small."""
    chosen: list[Any] = []
    set_default = torch.set_default_dtype
    monkeypatch.setattr(torch, "set_default_dtype", lambda dtype: (chosen.append(dtype), set_default(dtype)))
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        dtype="bfloat16",
    )
    size = size_of(config, "tiny")
    assert size.layer_parameters + size.other_parameters > 0 and str(config.dtype).endswith("bfloat16")
    assert set(chosen) <= {torch.float32} and torch.get_default_dtype() == torch.float32
