"""Shapes of the bundled pair: plain Llama, multi-head attention, 64 wide heads, a rotary base of 1e20.

With that base nine of the 32 frequencies measure distances from 1 to 100,000 tokens and the other 23 hardly turn within
131,072 positions: content is compared there, equally sharp at any distance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from assets.training.tokens import VOCAB_SIZE

HEAD_DIM = 64
ROPE_THETA = 1e20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of one of the two models."""

    layers: int
    hidden: int
    heads: int
    mlp: int
    max_positions: int
    rope_theta: float


TARGET = Shape(layers=4, hidden=336, heads=6, mlp=512, max_positions=131072, rope_theta=ROPE_THETA)
DRAFT = Shape(layers=2, hidden=162, heads=3, mlp=240, max_positions=2048, rope_theta=ROPE_THETA)


def build(shape: Shape, seed: int) -> LlamaForCausalLM:
    """A randomly initialised float32 model with silent output projections, attention through SDPA."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=HEAD_DIM,
        max_position_embeddings=shape.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=4,
        pad_token_id=0,
        initializer_range=0.03,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.mul_(0.3)
            layer.self_attn.o_proj.weight.mul_(0.3)
    return model
