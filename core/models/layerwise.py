"""A transformers decoder split into its layers, so that one layer can compute many chunks before the next begins.

The layers are called as the model's own `forward` calls them. Only families whose `forward` is embedding, layers with
one rotary embedding, norm and nothing else are split; all others are run whole.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from core.models.hf_attention import PassHandle, cache_argument
from core.ops.threads import process_threads

if TYPE_CHECKING:
    from core.caches.layerwise import LayerwisePass

PLAIN_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})  # model_type


@dataclass(frozen=True, slots=True)
class DecoderLayers:
    """The parts of a decoder that reading needs; no norm and output layer, as no logits are needed."""

    embedding: nn.Module
    layers: nn.ModuleList
    rotary: nn.Module

    @classmethod
    def of(cls, model: nn.Module) -> "DecoderLayers | None":
        """The parts of a causal language model; None if its family is not a plain one."""
        config, base = cast(Any, model).config, getattr(model, "model", None)
        names = ("embed_tokens", "layers", "rotary_emb", "norm")
        if getattr(config, "model_type", "") not in PLAIN_FAMILIES or not all(hasattr(base, name) for name in names):
            return None
        embedding, layers, rotary, _ = (getattr(base, name) for name in names)
        if not isinstance(layers, nn.ModuleList) or len(layers) != config.num_hidden_layers:
            return None
        return cls(embedding, layers, rotary)

    @torch.inference_mode()
    def embed(self, tokens: Tensor) -> Tensor:
        """Hidden states [1, T, hidden] of tokens [T] before the first layer."""
        hidden = self.embedding(tokens[None])
        assert isinstance(hidden, Tensor)
        return hidden

    @torch.inference_mode()
    def step(self, layer: int, hidden: Tensor, positions: Tensor, cache: "LayerwisePass") -> None:
        """Let one layer compute a chunk: hidden [1, T, hidden] at positions [T], in place."""
        if hidden.device.type == "cpu":
            process_threads().lend()
        at = positions[None]
        module = self.layers[layer]
        computed = module(
            hidden,
            attention_mask=None,
            position_ids=at,
            use_cache=True,
            position_embeddings=self.rotary(hidden, position_ids=at),
            **{cache_argument(module): PassHandle(cache)},
        )
        hidden.copy_(computed)
