"""The size of the running states of a model's recurrent layers, from its configuration alone; for plans."""

from typing import Any, NamedTuple, cast

import torch

from core.models.layer_reach import RECURRENT

WIDE = torch.float32.itemsize  # recurrent states are computed and kept in float32


class StateSize(NamedTuple):
    """Numbers in all recurrent layers."""

    conv: int = 0  # the newest inputs of convolutions, in the type of computation
    recurrent: int = 0
    layers: int = 0

    def nbytes(self, dtype: torch.dtype) -> int:
        """Bytes of all states, once."""
        return self.conv * dtype.itemsize + self.recurrent * WIDE


NO_STATE = StateSize()


def state_size(config: object) -> StateSize:
    """The states of a hybrid whose configuration names the kind of each layer (`layer_types`)."""
    layers = sum(kind in RECURRENT for kind in getattr(config, "layer_types", None) or ())
    conv, recurrent = _of_layer(cast(Any, config))
    return StateSize(layers * conv, layers * recurrent, layers)


def _of_layer(config: Any) -> tuple[int, int]:
    if hasattr(config, "linear_num_value_heads"):  # gated delta net, arXiv 2412.06464: keys, queries, values
        keys = config.linear_num_key_heads * config.linear_key_head_dim
        values = config.linear_num_value_heads * config.linear_value_head_dim
        return (2 * keys + values) * config.linear_conv_kernel_dim, values * config.linear_key_head_dim
    if hasattr(config, "mamba_d_state"):  # Mamba 2, arXiv 2405.21060: inputs, and B and C of each group
        inner = config.mamba_n_heads * config.mamba_d_head
        given = inner + 2 * config.mamba_n_groups * config.mamba_d_state
        return given * config.mamba_d_conv, inner * config.mamba_d_state
    return config.hidden_size * config.conv_L_cache, 0  # short convolutions, as in LFM2
