"""Attention that reaches less far, or is scored otherwise, than the plain causal one: windows, soft caps, sinks.

A window holds the newest tokens (Mistral, arXiv 2310.06825), a chunk those since its beginning (Llama 4). A soft cap
bounds scores (Gemma 2, arXiv 2408.00118); a sink is a learned logit per head that takes a share of attention and gives
nothing (gpt-oss). Knows shapes and devices, not caches or models.
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from core.errors import UnsupportedModel
from core.ops.attention import Partial, add_part, causal_partial, partial, widened
from core.ops.backend import Backend, PartialAttend
from core.ops.native import MOST_TOKENS

MASKED_ROWS = 512  # query rows of a long pass that share a mask and the keys of their windows
SCORE_BYTES = 64 << 20  # scores computed at a time where no fused kernel can


class Reach(NamedTuple):
    """The tokens that a token may attend to: the newest `size` with itself, or those of its own chunk of `size`."""

    size: int
    chunked: bool = False

    def first(self, token: int) -> int:
        """The oldest token that `token` attends to."""
        return token // self.size * self.size if self.chunked else max(0, token - self.size + 1)


class Asked(NamedTuple):
    """What a layer asks of attention beside the plain causal one."""

    reach: Reach | None = None
    softcap: float | None = None
    sinks: Tensor | None = None  # [H], one logit a head


def attend_as(
    q: Tensor, k: Tensor, v: Tensor, scaling: float, asked: Asked, backend: Backend, first: int = 0
) -> Tensor:
    """Causal attention as asked; q: [1, H, T, D], k, v: [1, H_kv, S, D] of tokens [first, first + S), the last T q's.

    On a processor each row of a short pass over windows is computed alone, so that it does not depend on other rows.
    """
    num_new, start = q.shape[2], first + k.shape[2] - q.shape[2]
    reach, found = asked.reach, []
    step = _rows_together(q, k, asked)
    for at in range(0, num_new, step):
        end = min(at + step, num_new)
        oldest = first if reach is None else reach.first(start + at)
        assert oldest >= first, f"token {oldest} is in the reach of {start + at}, rows begin at {first}"
        rows = slice(oldest - first, start + end - first)
        found.append(_attend_rows(q[:, :, at:end], k[:, :, rows], v[:, :, rows], scaling, asked, oldest, backend))
    return found[0] if len(found) == 1 else torch.cat(found, 2)


def _rows_together(q: Tensor, k: Tensor, asked: Asked) -> int:
    num_new = q.shape[2]
    if asked.reach is None:
        return num_new if asked.softcap is None else max(1, SCORE_BYTES // (4 * q.shape[1] * k.shape[2]))
    if q.device.type == "cpu" and num_new <= MOST_TOKENS:
        return 1
    if asked.softcap is None and asked.sinks is None:
        return MASKED_ROWS
    keys = min(k.shape[2], asked.reach.size + MASKED_ROWS)
    return min(MASKED_ROWS, max(1, SCORE_BYTES // (4 * q.shape[1] * keys)))


def _attend_rows(q: Tensor, k: Tensor, v: Tensor, scaling: float, asked: Asked, first: int, backend: Backend) -> Tensor:
    """As `attend_as`, where `first` is the oldest token that the first row attends to."""
    end = first + k.shape[2]
    whole = asked.reach is None or asked.reach.first(end - 1) <= first  # no row reaches less far than another
    if asked.softcap is not None or (asked.sinks is not None and not whole):
        return _explicit(q, k, v, scaling, asked, first)
    if not whole:
        mask, k, v = _visible(asked.reach, first, end, q), widened(k, q.dtype), widened(v, q.dtype)
        wide = q.shape[1] != k.shape[1]
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling, enable_gqa=wide)
    if asked.sinks is None:
        return backend.attend(q, k, v, scaling)
    return with_sinks(_with_lse(q, k, v, scaling, backend), asked.sinks).to(q.dtype)


def _with_lse(q: Tensor, k: Tensor, v: Tensor, scaling: float, backend: Backend) -> Partial:
    """Causal attention with its log-sum-exp."""
    num_new = q.shape[2]
    if num_new == 1:
        return backend.partial(q, k, v, scaling)
    new = causal_partial(q, k[:, :, -num_new:], v[:, :, -num_new:], scaling)
    if num_new == k.shape[2]:
        return new
    old = backend.partial(q, k[:, :, :-num_new], v[:, :, :-num_new], scaling)
    return add_part(Partial(new.out.float(), new.lse), old)


def with_sinks(found: Partial, sinks: Tensor) -> Tensor:
    """Attention after every head's sink [H] has taken its share, [B, H, T, D] float32."""
    return found.out.float() * torch.sigmoid(found.lse - sinks.float()[:, None])[..., None]


def _visible(reach: Reach | None, first: int, end: int, q: Tensor) -> Tensor:
    """Which of the tokens [first, end) each of the last T attends to, [T, S] bool."""
    token = torch.arange(first, end, device=q.device)
    row = token[-q.shape[2] :, None]
    seen = token <= row
    if reach is None:
        return seen
    return seen & (token // reach.size == row // reach.size if reach.chunked else token > row - reach.size)


def _explicit(q: Tensor, k: Tensor, v: Tensor, scaling: float, asked: Asked, first: int) -> Tensor:
    """One masked softmax in float32 over all scores."""
    batch, heads, num_new, dim = q.shape
    folded = (q.float() * scaling).reshape(batch, k.shape[1], -1, dim)
    scores = (folded @ widened(k, torch.float32).transpose(-1, -2)).view(batch, heads, num_new, -1)
    if asked.softcap is not None:
        scores = asked.softcap * torch.tanh(scores / asked.softcap)
    scores = scores.masked_fill(~_visible(asked.reach, first, first + k.shape[2], q), float("-inf"))
    if asked.sinks is not None:
        sinks = asked.sinks.float()[:, None, None].expand(batch, -1, num_new, 1)
        scores = torch.cat((scores, sinks), -1)
    weights = torch.softmax(scores, -1)[..., : k.shape[2]].reshape(batch, k.shape[1], -1, k.shape[2])
    return (weights @ widened(v, torch.float32)).view(batch, heads, num_new, -1).to(q.dtype)


def partials_as(asked: Asked | None) -> tuple[PartialAttend, PartialAttend]:
    """Attention to all keys given, and that of new tokens among themselves, as asked; sinks are for the whole result.

    Raises:
        UnsupportedModel: a reach is asked for, which parts know nothing of.
    """
    if asked is not None and asked.reach is not None:
        raise UnsupportedModel(
            f"A layer of this model asks attention for {asked.reach}, which its config.json does not say.",
            hint="Choose another model.",
        )
    if asked is None or asked.softcap is None:
        return partial, causal_partial
    capped = functools.partial(softcapped, softcap=asked.softcap)
    return functools.partial(capped, causal=False), functools.partial(capped, causal=True)


def softcapped(q: Tensor, k: Tensor, v: Tensor, scaling: float, softcap: float, *, causal: bool) -> Partial:
    """Attention with capped scores to all keys given, or causally to the last T, with its log-sum-exp."""
    batch, heads, num_new, dim = q.shape
    folded = (q.float() * scaling).reshape(batch, k.shape[1], -1, dim)
    scores = (folded @ widened(k, torch.float32).transpose(-1, -2)).view(batch, heads, num_new, -1)
    scores = softcap * torch.tanh(scores / softcap)
    if causal:
        scores = scores.masked_fill(~_visible(None, 0, k.shape[2], q), float("-inf"))
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp().reshape(batch, k.shape[1], -1, k.shape[2])
    return Partial((weights @ widened(v, torch.float32)).view(batch, heads, num_new, -1), lse)
