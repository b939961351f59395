"""The interface between transformers and our caches.

`register()` makes the attention implementation "triforce" known. A model loaded with it calls `update(k, v, layer)` on
its `past_key_values` and passes the result on as `key, value`; we return a handle there, and our attention function
uses the handle's cache. Every decoder-only family whose attention goes through this interface works without model code
of ours (`core.models.families`: those that are tested).

The cache attends causally to everything it has seen, and to nothing else. So any other request of a layer (a window, a
soft cap, sinks) is refused here: leaving it out silently would give another model's answers. Some families state their
window only in the mask, so masks are checked too: the result is None, or a `Partial` that attention refuses.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function

from core.caches.base import KVCache, RunningPass
from core.errors import UnsupportedModel

ATTENTION_NAME = "triforce"
# Keywords that do not change which tokens are attended to: keys were rotated before, and caches know their rows.
HARMLESS = frozenset(
    {"position_ids", "cache_position", "use_cache", "logits_to_keep", "output_router_logits", "output_hidden_states"}
)


class PassHandle:
    """Replaces a transformers cache during one forward pass."""

    def __init__(self, cache: RunningPass) -> None:
        self.cache = cache

    def update(self, k: Tensor, v: Tensor, layer: int, *_: object, **__: object) -> tuple["PassHandle", "PassHandle"]:
        """Stage k, v [1, H_kv, T, D]; the attention function gets this handle instead of them."""
        self.cache.stage(layer, k, v)
        return self, self

    def get_seq_length(self, layer: int = 0) -> int:
        """Conversation tokens seen, for transformers."""
        return self.cache.length

    def get_query_offset(self, layer: int = 0) -> int:
        """The same number, for a mask."""
        return self.cache.length

    def get_mask_sizes(self, num_new: int, layer: int = 0) -> tuple[int, int]:
        """The number of keys that a mask would cover, and the index of the first."""
        return self.cache.length + num_new, 0


class Partial:
    """Stands for a mask other than the plain causal one."""


def mask(*, mask_function: object, attention_mask: object = None, **_: object) -> Partial | None:
    """transformers' signature for building a mask; None: causal, to every token."""
    return None if mask_function is causal_mask_function and attention_mask is None else Partial()


def attention(
    module: nn.Module,
    q: Tensor,
    key: object,
    value: object,
    mask: object,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **asked: object,
) -> tuple[Tensor, None]:
    """transformers' attention signature; q: [1, H, T, D], returns [1, T, H, D].

    Raises:
        UnsupportedModel: the layer requests something that is not implemented.
    """
    if dropout:
        raise _refused(module, f"dropout={dropout}")
    if is_causal is False or (is_causal is None and getattr(module, "is_causal", True) is False):
        raise _refused(module, "is_causal=False")
    for name, wanted in asked.items():
        if wanted is not None and wanted is not False and name not in HARMLESS:
            raise _refused(module, name if isinstance(wanted, Tensor) else f"{name}={wanted!r}")
    if mask is not None:
        raise _refused(module, "a mask that is not causal, or hides tokens")
    assert isinstance(key, PassHandle), f"attention got {type(key).__name__}; run models through a Judge"
    assert value is key, f"attention got values of {type(value).__name__}"
    layer = module.layer_idx
    assert isinstance(layer, int)
    scaling = q.shape[-1] ** -0.5 if scaling is None else scaling  # the default of transformers' own functions
    return key.cache.attend(layer, q, scaling).transpose(1, 2), None


def _refused(module: nn.Module, what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"The layers of this model ({type(module).__name__}) ask attention for {what}, which is not implemented.",
        hint="Choose a model with full attention.",
    )


def register() -> None:
    """Make `attn_implementation="triforce"` available. Registering twice is harmless."""
    AttentionInterface.register(ATTENTION_NAME, attention)
    AttentionMaskInterface.register(ATTENTION_NAME, mask)


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
