"""Texts without a model: every token has queries, keys and values of its own, and passes over them through caches."""

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from core.caches.base import KVCache, KVShape
from core.caches.full import FullCache
from core.ops.reach import Asked


class Text:
    """q [L, H, T, D], k and v [L, H_kv, T, D] of its tokens; the first number of a key tells token and salt."""

    def __init__(self, shape: KVShape, salt: int = 0, tokens: int = 1100) -> None:
        self.shape, generator = shape, torch.Generator().manual_seed(salt)
        heads = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
        self.q, self.k, self.v = (
            torch.randn(shape.num_layers, number, tokens, shape.head_dim, generator=generator) for number in heads
        )
        self.k[..., 0] = (torch.arange(tokens) + salt / 16) / 256

    def then(self, other: "Text", at: int) -> Self:
        """This text up to a token, then another one."""
        both = type(self)(self.shape, tokens=0)
        for kind in "qkv":
            setattr(both, kind, torch.cat((getattr(self, kind)[:, :, :at], getattr(other, kind)[:, :, at:]), 2))
        return both

    def rows(self, layer: int, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v of tokens [start, stop) as a layer gets them, each [1, heads, stop - start, D]."""
        q, k, v = (kind[layer, None, :, start:stop] for kind in (self.q, self.k, self.v))
        return q, k, v


class Passed(NamedTuple):
    """What a pass gave: RoPE positions, and by layer the attention of each cache."""

    positions: Tensor
    attention: list[Tensor]


def run_pass(text: Text, count: int, *caches: KVCache, start: int | None = None, asked: Asked | None = None) -> Passed:
    """The same pass over the next tokens through all caches; windowed layers ask for their reach."""
    start = caches[0].length if start is None else start
    positions, seen = [cache.begin(start, count) for cache in caches], []
    for layer in range(text.shape.num_layers):
        q, k, v = text.rows(layer, start, start + count)
        reach = text.shape.reach(layer)
        for cache in caches:
            cache.stage(layer, k, v)
        seen.append(torch.stack([cache.attend(layer, q, 0.4, Asked(reach) if reach else asked) for cache in caches]))
    for cache in caches:
        cache.commit(count)
    return Passed(positions[0], seen)


def read(text: Text, until: int, *caches: KVCache, piece: int = 50) -> None:
    """Read tokens up to a number, piece by piece."""
    for start in range(caches[0].length, until, piece):
        run_pass(text, min(piece, until - start), *caches)


def read_by_layers(text: Text, count: int, full: FullCache, *, chunk: int, asked: Asked | None = None) -> None:
    """Read the next tokens layer by layer, and chunk by chunk within a layer."""
    start, stop = full.length, full.length + count
    reading: Any = full.layerwise(count, full.workspace(stop))
    for layer in range(text.shape.num_layers):
        reading.enter(layer)
        for at in range(start, stop, chunk):
            end = min(at + chunk, stop)
            q, k, v = text.rows(layer, at, end)
            reading.begin(at, end - at)
            reading.stage(layer, k, v)
            reading.attend(layer, q, 0.4, asked)
        reading.leave(layer)
    reading.commit()
    reading.close()
