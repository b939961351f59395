"""The one place where transformers meets our caches.

`register()` makes the attention implementation "triforce" known. A model loaded with it calls `update(k, v, layer)` on
what it was given as `past_key_values` and hands the result on as `key, value`; we return a handle there, and our
attention function asks the handle's cache. No mask is built, because no mask function has that name. Every decoder-only
family whose attention goes through this interface works without model code of ours.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from core.caches.base import KVCache, RunningPass

ATTENTION_NAME = "triforce"


class PassHandle:
    """Stands in for a transformers cache during one forward pass."""

    def __init__(self, cache: RunningPass) -> None:
        self.cache = cache

    def update(self, k: Tensor, v: Tensor, layer: int, *_: object, **__: object) -> tuple["PassHandle", "PassHandle"]:
        """Stage k, v [1, H_kv, T, D]; the attention function gets this handle in their place."""
        self.cache.stage(layer, k, v)
        return self, self

    def get_seq_length(self, layer: int = 0) -> int:
        """Conversation tokens seen, as transformers asks for it."""
        return self.cache.length


def attention(
    module: nn.Module, q: Tensor, key: object, value: object, mask: object, *, scaling: float, **_: object
) -> tuple[Tensor, None]:
    """transformers' attention signature; q: [1, H, T, D], returns [1, T, H, D]."""
    assert isinstance(key, PassHandle), f"attention got {type(key).__name__}; run models through a Judge"
    layer = module.layer_idx
    assert isinstance(layer, int)
    return key.cache.attend(layer, q, scaling).transpose(1, 2), None


def register() -> None:
    """Make `attn_implementation="triforce"` available. Registering twice is harmless."""
    AttentionInterface.register(ATTENTION_NAME, attention)


@torch.inference_mode()
def forward(model: nn.Module, tokens: Tensor, positions: Tensor, cache: KVCache, keep: int) -> Tensor:
    """One pass over tokens [T] at positions [T] through `cache`; logits of the last `keep` of them, [keep, V]."""
    output = cast(Any, model)(
        input_ids=tokens[None],
        position_ids=positions[None],
        past_key_values=PassHandle(cache),
        use_cache=True,
        logits_to_keep=keep,
    )
    logits = output.logits[0]
    assert isinstance(logits, Tensor)
    return logits
