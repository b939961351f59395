"""The interface between transformers and our caches.

`register()` makes the attention implementation "triforce" known. A model loaded with it calls `update(k, v, layer)` on
its `cache` (`past_key_values` before transformers 5.24) and passes the result on as `key, value`; we return a handle
there, and our attention function uses the handle's cache and layer (a later layer without keys of its own passes on an
earlier one's handle). Every decoder-only family whose attention goes through this interface works without model code of
ours (`core.models.families`: those that are tested).

The cache attends causally to everything it has seen. What else a layer may ask for (a window, chunks, a soft cap,
sinks) is passed on as `Asked`. Any other request is refused here: leaving it out silently would give another model's
answers. Some families state their window in the mask alone, so masks are read too: the result is None, a `Reach`, or
a `Partial` that attention refuses.
"""

import inspect
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import (
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from core.caches.base import RunningPass
from core.caches.running_state import RunningState, running_state
from core.errors import UnsupportedModel
from core.models.recurrent import StatefulLayers, watch
from core.ops.reach import Asked, Reach

ATTENTION_NAME = "triforce"
# Keywords that do not change which tokens are attended to: keys were rotated before, and caches know their rows.
HARMLESS = frozenset(
    {"position_ids", "cache_position", "use_cache", "logits_to_keep", "output_router_logits", "output_hidden_states"}
)


class Staged(NamedTuple):
    """Stands for the keys and the values of a layer, and of those that read them again."""

    cache: RunningPass
    layer: int

    def to(self, *_: object) -> "Staged":
        """Itself: before transformers 5.24, layers that read an earlier layer's keys ask for them on their device."""
        return self


class PassHandle:
    """Replaces a transformers cache during one forward pass."""

    def __init__(self, cache: RunningPass) -> None:
        self.cache = cache

    def update(self, k: Tensor, v: Tensor, layer: int, *_: object, **__: object) -> tuple[Staged, Staged]:
        """Stage k, v [1, H_kv, T, D]; the attention function gets a handle instead of them."""
        self.cache.stage(layer, k, v)
        staged = Staged(self.cache, layer)
        return staged, staged

    def get_seq_length(self, layer: int = 0) -> int:
        """Conversation tokens seen, for transformers."""
        return self.cache.length

    def get_query_offset(self, layer: int = 0) -> int:
        """The same number, for a mask."""
        return self.cache.length

    def get_mask_sizes(self, num_new: int, layer: int = 0) -> tuple[int, int]:
        """The number of keys that a mask would cover, and the index of the first."""
        return self.cache.length + num_new, 0


class HybridHandle(PassHandle, StatefulLayers):
    """As `PassHandle`, of a model with recurrent layers: the cache's layers are those that attend."""

    def __init__(self, cache: RunningPass, state: RunningState, num_new: int) -> None:
        PassHandle.__init__(self, cache)
        StatefulLayers.__init__(self, cache, state, num_new)
        self._slots = state.slots

    def update(self, k: Tensor, v: Tensor, layer: int, *_: object, **__: object) -> tuple[Staged, Staged]:
        """As `PassHandle.update`."""
        return super().update(k, v, self._slots[layer])


class Partial:
    """Stands for a mask other than those that are known."""


class _Built(NamedTuple):
    """How transformers composes a mask of an overlay, such as a window, and the causal one."""

    composed: CodeType
    overlay: CodeType

    @classmethod
    def of(cls, mask_function: object) -> "tuple[_Built, object] | None":
        """The composition and the overlay's size; None if it is composed otherwise."""
        if not isinstance(mask_function, FunctionType) or mask_function.__closure__ is None:
            return None
        parts = mask_function.__closure__[0].cell_contents
        if not isinstance(parts, tuple) or len(parts) != 2 or parts[1] is not causal_mask_function:
            return None
        overlay = parts[0]
        if not isinstance(overlay, FunctionType) or overlay.__closure__ is None:
            return None
        inside = dict(zip(overlay.__code__.co_freevars, overlay.__closure__, strict=True))
        size = next((inside[name].cell_contents for name in ("sliding_window", "chunk_size") if name in inside), None)
        return cls(mask_function.__code__, overlay.__code__), size


_nothing_left_out = torch.zeros(1, dtype=torch.int64)
_KNOWN = {  # by composition: whether the reach is chunked
    built[0]: chunked
    for function, chunked in (
        (sliding_window_causal_mask_function(1), False),
        (chunked_causal_mask_function(1, _nothing_left_out), True),
    )
    if (built := _Built.of(function)) is not None
}


def mask(*, mask_function: object, attention_mask: object = None, **_: object) -> Reach | Partial | None:
    """transformers' signature for building a mask; None: causal, to every token."""
    if attention_mask is not None:
        return Partial()
    if mask_function is causal_mask_function:
        return None
    built = _Built.of(mask_function)
    if built is None or built[0] not in _KNOWN or not isinstance(built[1], int):
        return Partial()
    return Reach(built[1], _KNOWN[built[0]])


def attention(
    module: nn.Module,
    q: Tensor,
    key: object,
    value: object,
    attention_mask: object,
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
    wish = _wish(module, attention_mask, asked) if attention_mask is not None or asked else None
    assert isinstance(key, Staged), f"attention got {type(key).__name__}; run models through a CachedModel"
    assert value is key, f"attention got values of {type(value).__name__}"
    scaling = q.shape[-1] ** -0.5 if scaling is None else scaling  # the default of transformers' own functions
    if wish is None:
        return key.cache.attend(key.layer, q, scaling).transpose(1, 2).contiguous(), None
    return key.cache.attend(key.layer, q, scaling, wish).transpose(1, 2).contiguous(), None


def _wish(module: nn.Module, mask: object, asked: Mapping[str, object]) -> Asked | None:
    """What the layer asks for beside plain attention; None: nothing.

    Raises:
        UnsupportedModel: something that is not known, or a window that its mask does not have.
    """
    window, softcap, sinks = None, None, None
    for name, wanted in asked.items():
        if wanted is None or wanted is False or name in HARMLESS:
            continue
        if name == "sliding_window" and isinstance(wanted, int):
            window = wanted
        elif name == "softcap" and isinstance(wanted, float):
            softcap = wanted
        elif name == "s_aux" and isinstance(wanted, Tensor):
            sinks = wanted
        else:
            raise _refused(module, name if isinstance(wanted, Tensor) else f"{name}={wanted!r}")
    if mask is not None and not isinstance(mask, Reach):
        raise _refused(module, "a mask that is not causal, or hides tokens")
    if window is not None and mask != Reach(window):
        raise _refused(module, f"sliding_window={window} with another mask")
    return None if mask is None and softcap is None and sinks is None else Asked(mask, softcap, sinks)


def _refused(module: nn.Module, what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"The layers of this model ({type(module).__name__}) ask attention for {what}, which is not implemented.",
        hint="Choose a model with full attention.",
    )


def register() -> None:
    """Make `attn_implementation="triforce"` available. Registering twice is harmless."""
    AttentionInterface.register(ATTENTION_NAME, attention)
    AttentionMaskInterface.register(ATTENTION_NAME, mask)


def cache_argument(module: nn.Module) -> str:
    """What the forward method of a model or layer calls its cache: `cache` since transformers 5.24."""
    return _cache_argument(cast(Any, type(module)))


@lru_cache
def _cache_argument(kind: Any) -> str:
    return "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"


@torch.inference_mode()
def forward(model: nn.Module, tokens: Tensor, positions: Tensor, cache: RunningPass, keep: int | Tensor) -> Tensor:
    """One pass over tokens [T] at positions [T] through `cache`; logits [keep, V].

    Args:
        keep: of how many of the last tokens, or of which of them, [keep] int64.
    """
    state = running_state(cache)
    handle = PassHandle(cache) if state is None else HybridHandle(cache, state, len(tokens))
    if state is not None:
        watch(model)
    wanted: int | Tensor = keep
    config = getattr(model, "config", None)
    shares_keys = bool(getattr(config, "num_kv_shared_layers", 0))
    if isinstance(keep, int) and shares_keys:  # of a number, Gemma 4 would leave out the queries before
        wanted = torch.arange(len(tokens) - keep, len(tokens), device=tokens.device)
    output = cast(Any, model)(
        input_ids=tokens[None],
        position_ids=positions[None],
        use_cache=True,
        logits_to_keep=wanted,
        **{cache_argument(model): handle},
    )
    if isinstance(handle, HybridHandle):
        handle.leave()
    logits = output.logits[0]
    assert isinstance(logits, Tensor)
    return logits
