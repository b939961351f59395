"""Recurrent layers of transformers over our caches: linear attention, state spaces, short convolutions.

During a pass each recurrent layer works on a copy of its state, in transformers' own cache layer, so that its code runs
as it is. Before a pass that follows a rejection, the layer is given the accepted inputs of the rejected pass again: its
own code makes the state from which the pass goes on, and nothing else of the model is computed twice.
"""

from collections.abc import Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from transformers.cache_utils import LinearAttentionLayer

from core.caches.base import RunningPass
from core.caches.running_state import MOST_INPUTS, LayerState, RunningState
from core.errors import UnsupportedModel

_watched: WeakSet[nn.Module] = WeakSet()
_whole_chunks: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # as models were loaded


class StatefulLayers:
    """The recurrent layers of a model during one pass: what they ask of transformers' cache.

    transformers reads and writes their states here: 5.17 those of `layers`, later versions through the methods.
    """

    def __init__(self, cache: RunningPass, state: RunningState, num_new: int) -> None:
        assert state.length == cache.length, f"states of {state.length} tokens in a cache of {cache.length}"
        self._state, self._num_new = state, num_new
        self._begun: dict[int, LayerState] = {}  # the states that the pass begins with
        self._inputs: dict[int, Tensor] = {}
        self._running: dict[int, LinearAttentionLayer] = {}
        self._layer = -1  # that computes now

    def __getitem__(self, layer: int) -> LinearAttentionLayer:
        """transformers' cache of one layer.

        Raises:
            UnsupportedModel: the layer is not one whose inputs are known, so that it could not go back.
        """
        if layer not in self._running:
            raise UnsupportedModel(
                "A layer of this model keeps a running state in a way that is not known.", hint="Choose another model."
            )
        return self._running[layer]

    def enter(self, module: nn.Module, inputs: Tensor, arguments: dict[str, Any]) -> None:
        """A recurrent layer begins: bring its state to where the pass begins.

        Args:
            inputs: [1, T, hidden].
            arguments: all others of the layer's `forward`.
        """
        layer = cast(int, module.layer_idx)
        point, self._layer = self._state.point, layer
        begun, count, device = point.states.get(layer), _number_of_states(module), inputs.device
        _fit_chunks(module, self._num_new, device)
        if layer in point.inputs:
            self._running[layer] = _running(begun, count, device)
            module.forward(point.inputs[layer].to(device), **arguments)
            begun = _state_of(self._running[layer])
        self._running[layer] = _running(begun, count, device)
        if begun is not None:
            self._begun[layer] = begun
        if self._num_new <= MOST_INPUTS:
            self._inputs[layer] = inputs

    def leave(self) -> None:
        """The pass is over: hand its states to the cache, which counts them if it is committed."""
        after = {layer: _state_of(running) for layer, running in self._running.items()}
        self._state.passed(self._begun, self._inputs, after)

    @property
    def layers(self) -> "StatefulLayers":
        """The layers' caches, by number."""
        return self

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Whether a layer (None: the one that computes) has seen tokens."""
        known = self[self._layer if layer_idx is None else layer_idx].has_previous_state
        return all(known.values()) if state_idx is None else bool(known[state_idx])

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The newest inputs of a convolution, which decoding one token replaces in place."""
        return self[layer_idx].conv_states[state_idx]

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The recurrent state, likewise."""
        return self[layer_idx].recurrent_states[state_idx]

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **more: Any) -> Tensor:
        """The inputs of a convolution with those before them."""
        return self[layer_idx].update_conv_state(conv_states, state_idx, **more)

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **more: Any
    ) -> Tensor:
        """Replace the recurrent state."""
        return self[layer_idx].update_recurrent_state(recurrent_states, state_idx, **more)

    def is_recording_past(self, layer_idx: int) -> bool:
        """Whether transformers is to keep earlier states: never, they are kept here."""
        return False


def _fit_chunks(module: nn.Module, num_new: int, device: torch.device) -> None:
    """Let a state space compute a short pass on a processor in a short chunk; it would fill up a whole one with zeros.

    Six layers of Falcon-H1 0.5B's kind, 8 tokens on one core: 129 ms instead of 555 ms.
    """
    whole = _whole_chunks.setdefault(module, getattr(module, "chunk_size", 0))
    if isinstance(whole, int) and whole and device.type == "cpu":
        cast(Any, module).chunk_size = min(whole, 1 << max(4, (num_new - 1).bit_length()))


def _number_of_states(module: nn.Module) -> int:
    return int(getattr(getattr(module, "config", None), "number_of_conv_states", 1) or 1)


def _running(state: LayerState | None, count: int, device: torch.device) -> LinearAttentionLayer:
    """transformers' cache layer with copies of a state: decoding one token writes into them."""
    layer: Any = LinearAttentionLayer(number_of_states=count)
    if state is None:
        return cast(LinearAttentionLayer, layer)
    for index, (conv, recurrent) in enumerate(zip(state.conv, state.recurrent, strict=True)):
        if conv is not None:
            layer.conv_states[index] = conv.to(device, copy=True)
            layer.conv_kernel_size[index] = conv.shape[-1]
            layer.is_conv_states_initialized[index] = layer.has_previous_state[index] = True
            layer.dtype, layer.device = conv.dtype, device
        if recurrent is not None:
            layer.recurrent_states[index] = recurrent.to(device, copy=True)
            layer.is_recurrent_states_initialized[index] = True
    return cast(LinearAttentionLayer, layer)


def _state_of(layer: LinearAttentionLayer) -> LayerState:
    indices = range(layer.number_of_states)
    return LayerState(
        tuple(layer.conv_states[index] for index in indices), tuple(layer.recurrent_states[index] for index in indices)
    )


def watch(model: nn.Module) -> None:
    """Let every recurrent layer of a model tell the pass what it is given. Watching twice is harmless."""
    if model in _watched:
        return
    _watched.add(model)
    for part in model.modules():
        if is_recurrent(part) and _entered not in part._forward_pre_hooks.values():
            part.register_forward_pre_hook(_entered, with_kwargs=True)


def is_recurrent(part: nn.Module) -> bool:
    """Whether a module is the recurrent part of a layer: all that are served begin with a convolution."""
    return isinstance(getattr(part, "layer_idx", None), int) and any(
        isinstance(child, nn.Conv1d) for child in part.children()
    )


def _entered(module: nn.Module, args: Sequence[object], kwargs: dict[str, Any]) -> None:
    passing = next((value for value in kwargs.values() if isinstance(value, StatefulLayers)), None)
    if passing is None:  # transformers' own cache, or none
        return
    inputs = args[0] if args else kwargs["hidden_states"]
    assert isinstance(inputs, Tensor) and len(args) <= 1, f"{type(module).__name__} has other arguments"
    others = {name: value for name, value in kwargs.items() if name != "hidden_states"}
    passing.enter(module, inputs, others)
