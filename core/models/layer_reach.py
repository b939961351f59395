"""To which tokens each layer of a model attends, from its configuration alone. Caches and plans are made from it.

Attention itself does what a layer asks for (`hf_attention`); a layer that asks for another reach than the one found
here is refused, so a mistake here cannot change an answer.
"""

from collections.abc import Sequence
from typing import Any, cast

from core.ops.reach import Reach

WINDOWED, CHUNKED, FULL = "sliding_attention", "chunked_attention", "full_attention"
KINDS = frozenset({WINDOWED, CHUNKED, FULL})
BOTH = "hybrid"  # a layer that attends and keeps a running state
RECURRENT = frozenset({"linear_attention", "conv", BOTH})
WITHOUT_BOTH = frozenset({"mlp", "moe"})


def read_again(config: object) -> tuple[int, ...]:
    """The layer that each layer without keys and values of its own reads; those are the last layers.

    Each reads the last one before them that is of its own type (Gemma 3n, Gemma 4).
    """
    kinds: Sequence[str] = getattr(config, "layer_types", None) or ()
    own = len(kinds) - int(getattr(config, "num_kv_shared_layers", 0) or 0)
    owners = {kind: layer for layer, kind in enumerate(kinds[:own])}
    return tuple(owners[kind] for kind in kinds[own:])


def layer_heads(config: object) -> Sequence[tuple[int, int]]:
    """KV heads and their dimension of each layer; empty if all are as the configuration says."""
    if not getattr(config, "is_heterogeneous", False):
        return ()
    layers: Sequence[Any] = cast(Any, config).per_layer_config
    return [(int(layer.num_key_value_heads), int(layer.head_dim)) for layer in layers]


def reaches_of(config: object, *, everywhere: bool) -> tuple[Reach | None, ...]:
    """The reach of each layer; empty if every layer attends to all tokens.

    Args:
        everywhere: whether a window applies to all layers where no types of layers are stated.
    """
    count = int(getattr(config, "num_hidden_layers", 0) or 0)
    window, chunk = getattr(config, "sliding_window", None), getattr(config, "attention_chunk_size", None)
    kinds: Sequence[str] = getattr(config, "layer_types", None) or ()
    if not kinds:
        kinds = [WINDOWED] * count if window and everywhere else []
    reach = {
        WINDOWED: Reach(int(window)) if window else None,
        CHUNKED: Reach(int(chunk), chunked=True) if chunk else None,
    }
    found = tuple(reach.get(kind) for kind in kinds[:count])
    return found if any(found) else ()


def attending_layers(config: object) -> tuple[int, ...]:
    """The numbers of the layers that attend, of a configuration that names the kind of each layer."""
    kinds: Sequence[str] = getattr(config, "layer_types", None) or ()
    return tuple(layer for layer, kind in enumerate(kinds) if kind in (FULL, BOTH))
