"""A trial when a model is loaded: some tokens through a cache, against transformers' own attention.

The census (tests/core/models/census.py) compares families; this compares these weights with this transformers. What
each layer's attention puts out is compared, not only the logits: sharp heads and many layers hide a fault from them.
Keys and values are not rounded here: what that changes is another matter than whether the engine is right.
One pass of transformers and one per piece through the cache. Models with recurrent layers are not tried: their modules
keep what they saw. Nor are shares of a model, whose passes need all processes (`core.parallel`).
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from core.caches.full import FullCache
from core.errors import UnsupportedModel
from core.models.hf_attention import ATTENTION_NAME, forward
from core.models.linear import PackedLinear
from core.models.loader import LoadedModel
from core.ops.backend import STOCK, Backend

log = logging.getLogger(__name__)

PIECES = (0, 9, 19, 20)  # where passes begin and end: a prompt, a round of guesses, a token; most are behind others
CAPACITY, CHUNK = 64, 8
# How far a token's numbers may lie from transformers', in units of how far tokens lie from their mean. Two orders of
# float32 sums differ by up to 1e-4 (real models of 0.1B to 1.5B, tiny ones of all families), the wrong engines of
# tests/core/models/test_trial.py by 0.07 and more. Where rounding may send a token to other experts, most tokens count,
# not the furthest; in 16 bits the same, of the logits alone.
FURTHEST, FURTHEST_OF_MIXTURES, FURTHEST_IN_16_BITS = 0.01, 0.02, 0.45
OTHER = "Choose a model of another family, such as Llama, Mistral or Qwen."


def try_out(loaded: LoadedModel, name: str, dtype: torch.dtype, backend: Backend = STOCK) -> bool:
    """Whether the model was tried; it then computes what transformers computes.

    Raises:
        UnsupportedModel: it computes something else, or nothing.
    """
    module = loaded.module
    if loaded.shape.recurrent or not hasattr(module, "set_attn_implementation"):
        return False
    total, vocab = PIECES[-1], loaded.dims.vocab_size
    tokens = torch.arange(1, total + 1, device=loaded.shape.device) * vocab // (total + 1)
    try:
        expected = _observed(module, lambda: _stock(module, tokens))
    except Exception as error:  # theirs: nothing to compare with
        log.info("%s was not tried: %s", name, type(error).__name__)
        return False
    if not all(torch.isfinite(numbers).all() for numbers in expected):
        return False
    try:
        computed = _observed(module, lambda: _cached(loaded, tokens, backend))
    except torch.OutOfMemoryError:
        return False
    except Exception as error:
        log.debug("the trial of %s", name, exc_info=True)
        raise UnsupportedModel(
            f"{name} does not run through the caches here ({type(error).__name__}).", hint=OTHER
        ) from error
    apart, allowed = _judged(computed, expected, dtype, mixed=loaded.experts is not None)
    if not apart <= allowed:
        raise UnsupportedModel(
            f"{name} computes something else here than in transformers: a trial of {total} tokens differs by "
            f"{apart:.2g} of what their numbers vary.",
            hint=OTHER,
        )
    return True


def _judged(computed: list[Tensor], expected: list[Tensor], dtype: torch.dtype, *, mixed: bool) -> tuple[float, float]:
    """How far apart both are, and how far they may be; the last of them are logits."""
    if dtype != torch.float32:
        return float(_distances(computed[-1], expected[-1]).median()), FURTHEST_IN_16_BITS
    by_layer = torch.stack([_distances(*pair) for pair in zip(computed, expected, strict=True)])
    if mixed:
        return float(by_layer.median(1).values.max()), FURTHEST_OF_MIXTURES
    return float(by_layer.max()), FURTHEST


def _distances(computed: Tensor, expected: Tensor) -> Tensor:
    """How far each token's numbers [T, C] lie from where they should, in units of the usual distance from the mean."""
    usual = (expected - expected.mean(0)).norm(dim=-1).median()
    usual = torch.maximum(usual, 1e-3 * expected.norm(dim=-1).median())
    apart = (computed - expected).norm(dim=-1)
    return torch.where(apart == 0, apart, apart / usual)  # all alike: no distance, and none is allowed


@torch.inference_mode()
def _observed(module: nn.Module, run: Callable[[], Tensor]) -> list[Tensor]:
    """What each layer's attention puts out in `run`, and last its logits: [T, C] each, float32."""
    outputs: dict[nn.Module, list[Tensor]] = {}

    def observe(part: nn.Module, _: object, output: Any) -> None:
        numbers = output if isinstance(output, Tensor) else output[0]
        if numbers.ndim == 3 and len(numbers) == 1:  # else it is not a layer's attention
            outputs.setdefault(part, []).append(numbers[0].float())

    hooks = [part.register_forward_hook(observe) for part in module.modules() if hasattr(part, "layer_idx")]
    try:
        logits = run()
    finally:
        for hook in hooks:
            hook.remove()
    return [*(torch.cat(parts) for parts in outputs.values()), logits.float()]


@contextmanager
def _biased_by_torch(module: nn.Module) -> Iterator[None]:
    """Inside, layers with a bias multiply without the kernel: it is checked against other layers when it is made."""
    layers = [part for part in module.modules() if isinstance(part, PackedLinear) and part.bias is not None]
    hooks = [
        part.register_forward_hook(lambda part, given, _: functional.linear(given[0], part.weight, part.bias))
        for part in layers
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _stock(module: nn.Module, tokens: Tensor) -> Tensor:
    """Logits by transformers' own attention, without a cache, [T, V]."""
    model = cast(Any, module)
    model.set_attn_implementation("eager")
    try:
        with _biased_by_torch(module):
            logits = model(input_ids=tokens[None], use_cache=False).logits[0]
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
    return cast(Tensor, logits)


def _cached(loaded: LoadedModel, tokens: Tensor, backend: Backend) -> Tensor:
    """The same through a cache, in pieces."""
    cache = FullCache(loaded.shape._replace(narrow=None), CAPACITY, CHUNK, backend=backend)
    logits = []
    for start, stop in pairwise(PIECES):
        positions = cache.begin(start, stop - start)
        logits.append(forward(loaded.module, tokens[start:stop], positions, cache, stop - start))
        cache.commit(stop - start)
    return torch.cat(logits)
