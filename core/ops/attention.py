"""Attention of a few new tokens to many cached ones, from stock torch operations.

Partial attention returns its log-sum-exp, so that parts computed separately (chunks that arrive one by one, shares of
several devices) merge into the exact result. Knows shapes and devices, not caches or models.
Online softmax: arXiv 1805.02867; merging by log-sum-exp: Flash-Decoding.
"""

from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

SCALE = 2  # numbers behind the integers of a row that hold its scale
FULL = 32760.0  # of the length of a row; its numbers are at most as large


def scaled_reference(x: Tensor) -> Tensor:
    """Rows x [..., D] as integers with a scale, [..., D + SCALE] int16: slow twin of `SmallRows.scaled`."""
    length = x.float().norm(dim=-1, keepdim=True)
    numbers = torch.where(length > 0, x.float() * (FULL / length), 0.0).round().to(torch.int16)
    return torch.cat((numbers, (length / FULL).view(torch.int16)), -1)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows x [..., D] as a type keeps them: slow twin of `KVShape.kept`."""
    return scaled_reference(x) if dtype == torch.int16 else x.to(dtype)


def widened(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Keys or values of any kept type in `dtype`, [..., D]."""
    if rows.dtype != torch.int16:
        return rows.to(dtype)
    scale = rows[..., -SCALE:].contiguous().view(torch.float32)
    return (rows[..., :-SCALE] * scale).to(dtype)


# On CPU plain matmuls read K and V once and beat the fused kernel for one row at any length, and for few rows up to
# this many keys; beyond, scores exceed the processor's caches (2 cores, D = 64, fused / matmul ms a layer of 4 heads:
# 1 row 0.27 / 0.15 at S = 2300, 14.7 / 13.4 at 122880; 3 rows 0.49 / 0.38 at 2300, 5.2 / 6.6 at 32768).
MATMUL_KEYS = 16384
MATMUL_ROWS = 64  # per KV head
WIDENED_KEYS = 4096  # keys and values in another type than queries that are widened at a time


class Partial(NamedTuple):
    """Attention over a part of the keys."""

    out: Tensor  # [B, H, T, D]
    lse: Tensor  # [B, H, T] float32, natural log of the sum of exp(scores)


class Masses(NamedTuple):
    """What every row of a pass attends to in some parts of the keys, by chunks."""

    shares: Tensor  # [P, H_kv, G * T, C], of exp(score - lse), summed over each chunk of a part
    lse: Tensor  # [P, H_kv, G * T] float32, of each part


def causal_bias(num_new: int, device: torch.device) -> Tensor:
    """[T, T] float32: 0 where a new token may attend (itself and before), -inf elsewhere."""
    return torch.full((num_new, num_new), float("-inf"), device=device).triu(1)


def attend(q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
    """Causal attention where the last T rows of k and v belong to the T queries.

    Args:
        q: [B, H, T, D]; k, v: [B, H_kv, S + T, D], any strides with a contiguous last dimension. Here and in partial
            attention they may be of another type than q; they are then widened a block at a time.
        scaling: factor of the scores.
    Returns:
        [B, H, T, D].
    """
    if k.dtype != q.dtype:
        return merged_attend(q, k, v, scaling, partial)
    num_new, total = q.shape[2], k.shape[2]
    rows = num_new * (q.shape[1] // k.shape[1])
    few = rows == 1 or (rows <= MATMUL_ROWS and total <= MATMUL_KEYS)
    if q.device.type == "cpu" and few and q.dtype.itemsize > 2:  # with 16-bit tensors it would round scores to 16 bits
        return _attend_matmul(q, k, v, scaling)
    return merged_attend(q, k, v, scaling, partial)


def merged_attend(
    q: Tensor, k: Tensor, v: Tensor, scaling: float, cached_partial: Callable[[Tensor, Tensor, Tensor, float], Partial]
) -> Tensor:
    """As `attend`: `cached_partial` attends to the cached rows, the new tokens to each other; both are merged."""
    num_new, total = q.shape[2], k.shape[2]
    if num_new == 1:  # nothing to mask
        return cached_partial(q, k, v, scaling).out
    new = causal_partial(q, k[:, :, total - num_new :], v[:, :, total - num_new :], scaling)
    if total == num_new:
        return new.out
    cached = cached_partial(q, k[:, :, : total - num_new], v[:, :, : total - num_new], scaling)
    return merge(cached, new)


def _attend_matmul(q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
    batch, heads, num_new, dim = q.shape
    kv_heads, total = k.shape[1], k.shape[2]
    folded = (q * scaling).reshape(batch, kv_heads, -1, dim)  # [B, H_kv, G * T, D]: K and V are read once
    scores = folded @ k.transpose(-1, -2)  # [B, H_kv, G * T, S + T]
    if num_new > 1:
        newest = scores.view(batch, kv_heads, -1, num_new, total)[..., total - num_new :]
        newest += causal_bias(num_new, q.device).to(scores.dtype)
    return (torch.softmax(scores, -1) @ v).view(batch, heads, num_new, dim)


def partial(q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Partial:
    """Unmasked attention of every query to every key given; q: [B, H, T, D], k, v: [B, H_kv, S, D]."""
    if k.dtype != q.dtype:
        return _widened_partial(q, k, v, scaling)
    batch, heads, num_new, dim = q.shape
    folded = q.reshape(batch, k.shape[1], -1, dim)
    out, lse = _fused(folded, k, v, scaling, causal=False)
    return Partial(out.reshape(batch, heads, num_new, dim), lse.reshape(batch, heads, num_new))


def _widened_partial(q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Partial:
    blocks = zip(torch.split(k, WIDENED_KEYS, 2), torch.split(v, WIDENED_KEYS, 2), strict=True)
    wide = ((widened(keys, q.dtype), widened(values, q.dtype)) for keys, values in blocks)
    return reduce(add_part, (partial(q, keys, values, scaling) for keys, values in wide))


def causal_partial(q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Partial:
    """Causal attention of T new tokens among themselves; q: [B, H, T, D], k, v: [B, H_kv, T, D]."""
    k, v, groups = widened(k, q.dtype), widened(v, q.dtype), q.shape[1] // k.shape[1]
    if groups > 1:  # T rows only: a copy per group is small
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    return Partial(*_fused(q, k, v, scaling, causal=True))


def _fused(q: Tensor, k: Tensor, v: Tensor, scaling: float, *, causal: bool) -> tuple[Tensor, Tensor]:
    """torch's own flash or memory-efficient kernel; returns out [B, H, T, D] and lse [B, H, T] float32."""
    ops = torch.ops.aten
    if q.device.type == "cpu":
        out, lse = ops._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scaling)
    elif q.dtype.itemsize == 2 and _has_flash(q.device):
        out, lse, *_ = ops._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scaling)
    else:
        out, lse, *_ = ops._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal, scale=scaling)
    return out, lse[..., : q.shape[2]].float()  # the memory-efficient kernel pads it to a multiple of 32 rows


@cache
def _has_flash(device: torch.device) -> bool:
    """Whether torch's flash kernel runs there: builds for Windows lack it, and it needs compute capability 8.0."""
    return torch.backends.cuda.is_flash_attention_available() and torch.cuda.get_device_capability(device) >= (8, 0)


def partial_reference(q: Tensor, k: Tensor, v: Tensor, scaling: float, bias: Tensor | None = None) -> Partial:
    """Slow twin of `partial` and `causal_partial`: float64 matmuls, an additive bias [T, S] or none."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(groups, 1) for x in (k, v))
    scores = scaling * q.double() @ k.transpose(-1, -2)
    if bias is not None:
        scores = scores + bias.double()
    lse = scores.logsumexp(-1)
    return Partial(((scores - lse[..., None]).exp() @ v).to(q.dtype), lse.float())


def attend_reference(q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
    """Slow twin of `attend`: one masked softmax in float64."""
    num_new, total = q.shape[2], k.shape[2]
    bias = functional.pad(causal_bias(num_new, q.device), (total - num_new, 0))
    return partial_reference(q, k, v, scaling, bias).out


def merge(*parts: Partial) -> Tensor:
    """The attention over the union of disjoint parts: weights exp(lse - max), [B, H, T, D].

    Sums in float32, with at most two such tensors of the size of a part at a time: a long pass has many rows.
    """
    lse = torch.stack([part.lse for part in parts])  # [P, B, H, T]
    weights = torch.softmax(lse, 0)[..., None]
    merged = weights[0] * parts[0].out
    for weight, part in zip(weights[1:], parts[1:], strict=True):
        merged += weight * part.out
    return merged.to(parts[0].out.dtype)


def add_part(found: Partial, part: Partial) -> Partial:
    """The union of two disjoint parts, in float32 because many are added."""
    lse = torch.logaddexp(found.lse, part.lse)
    return Partial(merge(found, part), lse)


def union(parts: Sequence[Partial]) -> Partial:
    """The union of disjoint parts, each of one or several in its batch, the first of them in float32.

    Takes a few kernel launches however many there are.
    All steps are elementwise: a row's sums do not depend on the number of rows.
    """
    if len(parts) <= 2 and all(len(part.lse) == 1 for part in parts):
        return parts[0] if len(parts) == 1 else add_part(*parts)
    lses = torch.cat([part.lse for part in parts])  # [P, H, T]
    most = lses.amax(0, keepdim=True)
    weights = (lses - most).exp_()
    total = _sum(weights)
    outs = torch.cat([part.out for part in parts]).mul_(weights[..., None])  # [P, H, T, D] float32
    return Partial(_sum(outs) / total[..., None], most + total.log())


def _sum(x: Tensor) -> Tensor:
    """Sum over the first dimension, kept as 1, by adding halves until one is left."""
    while len(x) > 1:
        half = len(x) // 2
        added = x[:half] + x[half : 2 * half]
        x = torch.cat((added, x[2 * half :])) if len(x) % 2 else added
    return x
