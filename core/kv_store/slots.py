"""Texts that the engine has read, kept in host memory while another one has its place, so that none is read twice.

Before a prompt is read, what it would push out of the full cache is copied here, and the longest beginning of the
prompt that is here comes back. Rows come back as they were computed. Tokens are compared one by one, so nothing is
taken for something else. Texts with a common beginning share its blocks. Runs on the engine's thread.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from core.caches.query_log import QUERY_LOG, QUERY_SAMPLE_STRIDE
from core.caches.tokens import common_prefix
from core.generation.decode_loop import LONGEST_ROUND
from core.kv_store.engine_store import CacheOwner, Moving
from core.planning.hardware import free_memory_bytes

LEAST_TOKENS = 64  # fewer are read as fast as they are copied
WORTH_SHARE = 1 / 16  # of a text: if less of it would be lost, that end is read again when it is needed
FREE_SHARE = 1 / 2  # of the memory that is free beside what the full cache may still touch
BLOCK_TOKENS = 1024  # about; a multiple of what landmarks and samples need
HOST = torch.device("cpu")


class Block(NamedTuple):
    """Consecutive tokens of a text in host memory; per layer k, v [H_kv, n, D], landmarks and sampled queries."""

    size: int
    layers: list[tuple[Tensor, ...]]

    @property
    def nbytes(self) -> int:
        """Host memory."""
        return sum(part.nbytes for layer in self.layers for part in layer)


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """One text that was read."""

    token_ids: list[int]
    blocks: list[Block]
    queries: list[Tensor]  # the newest ones of each layer, [H, QUERY_LOG, D] in ring order
    first_query: int  # the first token whose query is among them

    @property
    def nbytes(self) -> int:
        """Host memory beside the blocks."""
        return sum(ring.nbytes for ring in self.queries)


class Slots:
    """The kept texts of one engine, the last used one last.

    Args:
        engine: with the rows of all tokens in all layers, see `holds_all_rows`.
        free_bytes: tells how much host memory is free.
    """

    def __init__(self, engine: CacheOwner, free_bytes: Callable[[], int] = free_memory_bytes) -> None:
        self._engine, self._free_bytes = engine, free_bytes
        self._texts: list[Text] = []
        unit = math.lcm(engine.full_cache.chunk_size, QUERY_SAMPLE_STRIDE)
        self._block = unit * max(1, BLOCK_TOKENS // unit)

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def nbytes(self) -> int:
        """Host memory of all kept texts."""
        return size_bytes(self._texts)

    def bring(self, prompt_ids: Sequence[int], cancel: Callable[[], bool] = lambda: False) -> Iterator[Moving]:
        """Before a prompt is read: keep what that would push out, and bring back what is kept of the prompt.

        Yields after every block. `cancel` ends it early; what came counts.
        """
        total, held = len(prompt_ids) - 1, self._engine.cached_prefix(prompt_ids)
        if len(prompt_ids) + LONGEST_ROUND > self._engine.context:
            return  # reading will say so
        found, shared = self._longest(prompt_ids[:total])
        for moving in self._keep(held, spared=found):
            if cancel():
                return
            yield moving
        if found is None:
            return
        self._used(found)
        for moving in self._restore(found, shared) if shared - held >= LEAST_TOKENS else ():
            if cancel():
                return
            yield moving

    def num_kept(self, token_ids: Sequence[int]) -> int:
        """How many of a text's first tokens are kept."""
        return self._longest(token_ids)[1]

    def _used(self, text: Text) -> None:
        self._texts.remove(text)
        self._texts.append(text)

    def _longest(self, token_ids: Sequence[int]) -> tuple[Text | None, int]:
        """The text with the longest common beginning, and its length."""
        wanted = list(token_ids)
        shared = [common_prefix(text.token_ids, wanted) for text in self._texts]
        best = max(range(len(shared)), key=shared.__getitem__, default=None)
        return (self._texts[best], shared[best]) if best is not None and shared[best] else (None, 0)

    # -------------------- out of the cache

    def _keep(self, held: int, spared: Text | None) -> Iterator[Moving]:
        """Copy the cache's text, of which the first `held` tokens stay, unless it is here already or too short."""
        engine, cache = self._engine, self._engine.full_cache
        token_ids = engine.held_tokens
        total = len(token_ids)
        if total - held < max(LEAST_TOKENS, total * WORTH_SHARE):
            return
        known, shared = self._longest(token_ids)
        if total - shared < LEAST_TOKENS:
            if known is not None:
                self._used(known)
            return
        blocks = known.blocks[: shared // self._block] if known is not None else []
        first = len(blocks) * self._block
        queries = [cache.beside(layer, 0)[1] for layer in range(cache.shape.num_layers)]
        needed = (total - first) * (cache.shape.bytes_per_token * 9 // 8) + sum(ring.nbytes for ring in queries)
        if not self._make_room(needed, spared=[text for text in (spared, known) if text is not None]):
            return
        rings = [ring.to(HOST, copy=True) for ring in queries]
        for start in range(first, total, self._block):
            blocks.append(self._copied(start, min(start + self._block, total)))
            yield Moving(start, total)
        text = Text(token_ids, blocks, rings, cache.queries_start())
        beginnings = [one for one in self._texts if common_prefix(one.token_ids, token_ids) == len(one.token_ids)]
        self._texts = [one for one in self._texts if one is spared or one not in beginnings]
        self._texts.append(text)

    def _copied(self, start: int, stop: int) -> Block:
        cache, layers = self._engine.full_cache, []
        for layer in range(cache.shape.num_layers):
            landmarks, _, samples = cache.beside(layer, stop)
            parts = (
                *cache.rows(layer, start, stop),
                landmarks[:, start // cache.chunk_size :],
                samples[:, start // QUERY_SAMPLE_STRIDE :],
            )
            layers.append(tuple(part.to(HOST, copy=True).contiguous() for part in parts))
        return Block(stop - start, layers)

    def _make_room(self, needed: int, spared: Sequence[Text]) -> bool:
        """Drop the longest unused texts until so many bytes have room. False: they never will; nothing is dropped."""
        room, drop = int(self._room() * FREE_SHARE), 0
        others = [text for text in self._texts if text not in spared]
        while needed > room + size_bytes(self._texts) - size_bytes([*others[drop:], *spared]):
            if drop == len(others):
                return False
            drop += 1
        self._texts = [text for text in self._texts if text not in others[:drop]]
        return True

    def _room(self) -> int:
        """Free host memory beside the rows that the full cache has not touched yet, in bytes."""
        cache = self._engine.full_cache
        on_host = cache.shape.device.type == "cpu"
        untouched = (cache.capacity - cache.length) * cache.shape.bytes_per_token if on_host else 0
        return max(0, self._free_bytes() - untouched)

    # -------------------- back into the cache

    def _restore(self, text: Text, length: int) -> Iterator[Moving]:
        with self._engine.refilled(text.token_ids[:length], logged=text.first_query + QUERY_LOG) as cache:
            for layer, ring in enumerate(text.queries):
                cache.beside(layer, length)[1].copy_(ring)
            for block in text.blocks[: -(-length // self._block)]:
                start, size = cache.length, min(block.size, length - cache.length)
                for layer, (k, v, *beside) in enumerate(block.layers):
                    landmarks, _, samples = cache.beside(layer, start + size)
                    starts = (start // cache.chunk_size, start // QUERY_SAMPLE_STRIDE)
                    for into, at, part in zip((landmarks, samples), starts, beside, strict=True):
                        into[:, at:].copy_(part[:, : max(0, into.shape[1] - at)])
                    cache.stage(layer, *(rows[None, :, :size].to(cache.shape.device) for rows in (k, v)))
                cache.commit(size)
                yield Moving(cache.length, length)


def size_bytes(texts: Sequence[Text]) -> int:
    """Host memory of texts, blocks that they share counted once."""
    blocks = {id(block): block for text in texts for block in text.blocks}
    return sum(block.nbytes for block in blocks.values()) + sum(text.nbytes for text in texts)
