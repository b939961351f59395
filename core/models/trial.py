"""A trial when a model is loaded: some tokens through a cache, against transformers' own attention.

The census (tests/core/models/census.py) compares families; this compares these weights with this transformers. What
each layer's attention puts out is compared, not only the logits: sharp heads and many layers hide a fault from them.
Keys and values are not rounded here: what that costs is judged apart (`kv_type`), with the same tokens.
One pass of transformers, one per piece through the cache, and one with rounded rows.

Models with recurrent layers are not tried: their modules keep what they saw. Nor are shares of a model, whose passes
need all processes (`core.parallel`).
"""

import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from core.caches.full import FullCache
from core.errors import UnsupportedModel
from core.models.families import OTHER
from core.models.hf_attention import ATTENTION_NAME, forward
from core.models.linear import exact_products
from core.models.loader import LoadedModel
from core.ops.backend import STOCK, Backend

log = logging.getLogger(__name__)

PIECES = (0, 9, 19, 20)  # where passes begin and end: a prompt, a round of guesses, a token; most are behind others
CAPACITY, CHUNK = 64, 8
# How far a token's numbers may lie from transformers', in units of how far tokens lie from their mean. Two orders of
# float32 sums differ by up to 1e-4 (real models of 0.1B and 0.5B, tiny ones of all families), the wrong engines of
# tests/core/models/test_trial.py by 0.07 and more. Where rounding may send a token to other experts, most tokens count,
# not the furthest; in 16 bits the same, of the logits alone.
FURTHEST, FURTHEST_OF_MIXTURES, FURTHEST_IN_16_BITS = 0.01, 0.02, 0.45
LOST = 10  # last places of the largest key by which, in these units, two orders of sums may differ
SAFE = 8  # times the largest key or value of the trial: other texts have larger ones
# Mean KL divergence, in nats, of next tokens' distributions that rounding may cost. Measured for float16 and bfloat16:
# SmolLM2 135M 9e-7 and 5e-5, Qwen2.5-Coder 1.5B 2e-5 and 2e-3, the bundled target with its sharp circuits 9e-3 and 8.
MOST_LOSS = 0.02


class Trial(NamedTuple):
    """What a model computed through a cache, in the type of computation."""

    tokens: Tensor  # [T]
    logits: Tensor  # [T, V]
    largest: float  # of all keys and values


def try_out(loaded: LoadedModel, name: str, dtype: torch.dtype, backend: Backend = STOCK) -> Trial | None:
    """Try a model: it then computes what transformers computes. None: it could not be tried.

    Raises:
        UnsupportedModel: it computes something else, or nothing.
    """
    module = loaded.module
    if loaded.shape.recurrent or not hasattr(module, "set_attn_implementation"):
        return None
    total, vocab = PIECES[-1], loaded.dims.vocab_size
    tokens = torch.arange(1, total + 1, device=loaded.shape.device) * vocab // (total + 1)
    try:
        expected = _observed(module, lambda: _stock(module, tokens))
    except Exception as error:  # theirs: nothing to compare with
        log.info("%s was not tried: %s", name, type(error).__name__)
        return None
    if not all(torch.isfinite(numbers).all() for numbers in expected):
        return None
    cache = _MeasuredCache(loaded.shape._replace(narrow=None), CAPACITY, CHUNK, backend=backend)
    try:
        computed = _observed(module, lambda: _cached(module, tokens, cache))
    except torch.OutOfMemoryError:
        return None
    except Exception as error:
        log.debug("the trial of %s", name, exc_info=True)
        raise UnsupportedModel(
            f"{name} does not run through the caches here ({type(error).__name__}).", hint=OTHER
        ) from error
    apart, allowed = _judged(computed, expected, dtype, mixed=loaded.experts is not None)
    allowed += LOST * torch.finfo(torch.float32).eps * cache.largest
    if not apart <= allowed:
        raise UnsupportedModel(
            f"{name} computes something else here than in transformers: a trial of {total} tokens differs by "
            f"{apart:.2g} of what their numbers vary.",
            hint=OTHER,
        )
    return Trial(tokens, computed[-1], cache.largest)


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
        with exact_products(module):
            logits = run()
    finally:
        for hook in hooks:
            hook.remove()
    return [*(torch.cat(parts) for parts in outputs.values()), logits.float()]


def _stock(module: nn.Module, tokens: Tensor) -> Tensor:
    """Logits by transformers' own attention, without a cache, [T, V]."""
    model = cast(Any, module)
    model.set_attn_implementation("eager")
    try:
        logits = model(input_ids=tokens[None], use_cache=False).logits[0]
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
    return cast(Tensor, logits)


def _cached(module: nn.Module, tokens: Tensor, cache: FullCache) -> Tensor:
    """The same through a cache, in pieces."""
    logits = []
    for start, stop in pairwise(PIECES):
        positions = cache.begin(start, stop - start).to(tokens.device)
        logits.append(forward(module, tokens[start:stop], positions, cache, stop - start))
        cache.commit(stop - start)
    return torch.cat(logits)


class _MeasuredCache(FullCache):
    """A cache that knows the largest number that it was given."""

    largest = 0.0

    def stage(self, layer: int, k: Tensor, v: Tensor) -> None:
        self.largest = max(self.largest, float(k.abs().max()), float(v.abs().max()))
        super().stage(layer, k, v)


# -------------------- what keys and values are kept in


class KeptAs(NamedTuple):
    """The type of keys and values, and why."""

    dtype: torch.dtype | None  # None: the type of computation
    because: str


def kv_type(
    loaded: LoadedModel, trial: Trial | None, backend: Backend = STOCK, *, planned: torch.dtype, asked: bool
) -> KeptAs:
    """The type that a float32 model's keys and values are kept in: 16 bits that hold them and cost next to nothing.

    Integers with a scale, where they are planned, hold numbers of any size. Float16 rounds eight times as finely as
    bfloat16, and ends at 65,504: it must hold SAFE times what the trial had. A cache refuses what is larger all the
    same (`KVShape.check`).

    Args:
        planned: int16 or float16.
        asked: whether 16 bits were asked for, whatever they cost.
    """
    most = SAFE * trial.largest if trial else 0.0
    fits = most < torch.finfo(torch.float16).max
    told = f"{SAFE} times the trial's largest key or value is {most:,.0f}; float16 holds 65,504"
    integers = planned == torch.int16 and backend.kernel is not None and backend.kernel.scales(loaded.shape.head_dim)
    reasons = ["integers with a scale a row hold numbers of any size" if integers else told]
    for dtype in (torch.int16,) * integers + (torch.float16, torch.bfloat16)[not fits :]:
        loss = _loss(loaded, trial, dtype, backend) if trial else 0.0
        name = str(dtype).removeprefix("torch.")
        if asked or loss <= MOST_LOSS:
            cost = f"{loss:.6f}" if loss >= 1e-6 else "less than 0.000001"
            reasons.append(f"{name} costs {cost} nats a token" if trial else "the model could not be tried")
            because = f"{'asked for; ' * asked}{'; '.join(reasons)}; half the memory"
            return KeptAs(dtype, because)
        reasons.append(f"{name} would cost {loss:.1g} nats a token")
    return KeptAs(None, "; ".join(reasons))


@torch.inference_mode()
def _loss(loaded: LoadedModel, trial: Trial, dtype: torch.dtype, backend: Backend) -> float:
    """Mean KL divergence of the next tokens' distributions if keys and values are rounded."""
    cache = FullCache(loaded.shape._replace(narrow=dtype), CAPACITY, CHUNK, backend=backend)
    total = len(trial.tokens)
    positions = cache.begin(0, total).to(trial.tokens.device)
    with exact_products(loaded.module):
        logits = forward(loaded.module, trial.tokens, positions, cache, total)
    exact, rounded = (functional.log_softmax(numbers.float(), -1) for numbers in (trial.logits, logits))
    return float((exact.exp() * (exact - rounded)).sum(-1).mean().clamp_min(0))
