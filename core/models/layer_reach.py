"""To which tokens each layer of a model attends, and what it keeps of them, from its configuration alone.

Caches and plans are made from it. Attention itself does what a layer asks for (`hf_attention`); a layer that asks for
another reach than the one found here is refused, so a mistake here cannot change an answer.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch

from core.ops.reach import Reach

WINDOWED, CHUNKED, FULL = "sliding_attention", "chunked_attention", "full_attention"
KINDS = frozenset({WINDOWED, CHUNKED, FULL})
BOTH = "hybrid"  # a layer that attends and keeps a running state
RECURRENT = frozenset({"linear_attention", "conv", BOTH})
WITHOUT_BOTH = frozenset({"mlp", "moe"})


def kinds_of(config: object) -> Sequence[str]:
    """The type of each layer; empty if the configuration does not name them."""
    return cast(Sequence[str], getattr(config, "layer_types", None) or ())


def read_again(config: object) -> tuple[int, ...]:
    """The layer that each layer without keys and values of its own reads; those are the last layers.

    Each reads the last one before them that is of its own type (Gemma 3n, Gemma 4).
    """
    kinds = kinds_of(config)
    own = len(kinds) - int(getattr(config, "num_kv_shared_layers", 0) or 0)
    owners = {kind: layer for layer, kind in enumerate(kinds[:own])}
    return tuple(owners[kind] for kind in kinds[own:])


def layer_heads(config: object) -> Sequence[tuple[int, int]]:
    """KV heads and their dimension of each layer; empty if all are as the configuration says."""
    if not getattr(config, "is_heterogeneous", False):
        return ()
    layers: Sequence[Any] = cast(Any, config).per_layer_config
    return [(int(layer.num_key_value_heads), int(layer.head_dim)) for layer in layers]


def reaches_of(config: object) -> tuple[Reach | None, ...]:
    """The reach of each layer; empty if every layer attends to all tokens.

    A window applies to all layers where no types of layers are stated.
    """
    count = int(getattr(config, "num_hidden_layers", 0) or 0)
    window, chunk = getattr(config, "sliding_window", None), getattr(config, "attention_chunk_size", None)
    reach = {
        WINDOWED: Reach(int(window)) if window else None,
        CHUNKED: Reach(int(chunk), chunked=True) if chunk else None,
    }
    found = tuple(reach.get(kind) for kind in (kinds_of(config) or [WINDOWED] * count)[:count])
    return found if any(found) else ()


def rope_parts(config: object) -> Sequence[Mapping[str, Any]]:
    """Rotary positions of each type of layer; of one type, if all have the same."""
    stated = getattr(config, "rope_parameters", None) or {}
    return [part for part in stated.values() if isinstance(part, Mapping)] or [stated]


def stretched(rope: Mapping[str, Any]) -> int:
    """Tokens that YaRN makes of those that the model was trained with; 0: other positions.

    A configuration that YaRN was added to, as model cards advise, still states the shorter context.
    """
    if rope.get("rope_type") != "yarn":
        return 0
    return int((rope.get("original_max_position_embeddings") or 0) * (rope.get("factor") or 1))


def attending_layers(config: object) -> tuple[int, ...]:
    """The numbers of the layers that attend, of a configuration that names the kind of each layer."""
    return tuple(layer for layer, kind in enumerate(kinds_of(config)) if kind in (FULL, BOTH))


class StateSize(NamedTuple):
    """Numbers in the running states of all recurrent layers."""

    conv: int = 0  # the newest inputs of convolutions, in the type of computation
    recurrent: int = 0
    layers: int = 0

    def nbytes(self, dtype: torch.dtype) -> int:
        """Bytes of all states, once; recurrent ones are computed and kept in float32."""
        return self.conv * dtype.itemsize + self.recurrent * torch.float32.itemsize


NO_STATE = StateSize()


def state_size(config: object) -> StateSize:
    """The states of a hybrid whose configuration names the kind of each layer (`layer_types`)."""
    layers = sum(kind in RECURRENT for kind in kinds_of(config))
    conv, recurrent = _state_of_layer(cast(Any, config))
    return StateSize(layers * conv, layers * recurrent, layers)


def _state_of_layer(config: Any) -> tuple[int, int]:
    if hasattr(config, "linear_num_value_heads"):  # gated delta net, arXiv 2412.06464: keys, queries, values
        keys = config.linear_num_key_heads * config.linear_key_head_dim
        values = config.linear_num_value_heads * config.linear_value_head_dim
        return (2 * keys + values) * config.linear_conv_kernel_dim, values * config.linear_key_head_dim
    if hasattr(config, "mamba_d_state"):  # Mamba 2, arXiv 2405.21060: inputs, and B and C of each group
        inner = config.mamba_n_heads * config.mamba_d_head
        given = inner + 2 * config.mamba_n_groups * config.mamba_d_state
        return given * config.mamba_d_conv, inner * config.mamba_d_state
    return config.hidden_size * config.conv_L_cache, 0  # short convolutions, as in LFM2
