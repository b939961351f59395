"""Texts that the engine has read, kept in host memory while another one has its place, so that none is read twice.

Before a prompt is read, what it would push out of the full cache is copied here, and the longest beginning of the
prompt that is here comes back. Rows come back as they were computed. Tokens are compared one by one, so nothing is
taken for something else. Texts with a common beginning share its blocks. Runs on the engine's thread.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from core.caches.query_log import QUERY_LOG
from core.caches.tokens import common_prefix
from core.engine import Engine
from core.generation.decode_loop import LONGEST_ROUND
from core.kv_store.engine_store import Moving, fill, spans_of
from core.planning.hardware import free_memory_bytes

LEAST_TOKENS = 64  # fewer are read as fast as they are copied
WORTH_SHARE = 1 / 16  # of a text: if less of it would be lost, that end is read again when it is needed
FREE_SHARE = 1 / 2  # of the memory that is free beside what the full cache may still touch
BLOCK_TOKENS = 1024
HOST = torch.device("cpu")


class Block(NamedTuple):
    """Consecutive tokens of a text in host memory; keys and values of each layer, [2, H_kv, n, D]."""

    tokens: range
    layers: list[Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """One text that was read."""

    token_ids: list[int]
    blocks: list[Block]
    beside: list[Tensor]  # of each layer, the newest and sampled queries, as `FullCache.beside`
    first_query: int  # the first token whose query is among the newest


class Slots:
    """The kept texts of one engine, the last used one last.

    Args:
        engine: with the rows of all tokens in all layers, see `core.kv_store.engine_store.refusal`.
        free_bytes: tells how much host memory is free.
    """

    def __init__(self, engine: Engine, free_bytes: Callable[[], int] = free_memory_bytes) -> None:
        self._engine, self._free_bytes = engine, free_bytes
        self._texts: list[Text] = []

    def __len__(self) -> int:
        return len(self._texts)

    def bring(
        self, prompt_ids: Sequence[int], cancel: Callable[[], bool] = lambda: False, *, room: int = 0
    ) -> Iterator[Moving]:
        """Before a prompt is read: keep what that would push out, and bring back what is kept of the prompt.

        Yields after every block. `cancel` ends it early; what came counts. `room`: see `Engine.refilled`.
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
        for moving in self._restore(found, shared, room) if shared - held >= LEAST_TOKENS else ():
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
        blocks = known.blocks[: shared // BLOCK_TOKENS] if known is not None else []
        first, layers = len(blocks) * BLOCK_TOKENS, range(cache.shape.num_layers)
        beside = [part for layer in layers for part in cache.beside(layer, total)]
        needed = (total - first) * cache.shape.bytes_per_token + num_bytes(beside)
        if not self._make_room(needed, spared=[text for text in (spared, known) if text is not None]):
            return
        kept = [part.to(HOST, copy=True) for part in beside]
        for span in spans_of(BLOCK_TOKENS, total)[len(blocks) :]:
            rows = (cache.rows(layer, span.start, span.stop) for layer in layers)
            blocks.append(Block(span, [torch.stack([part.to(HOST) for part in pair]) for pair in rows]))
            yield Moving(span.start, total)
        text = Text(token_ids, blocks, kept, cache.queries_start())
        beginnings = [one for one in self._texts if common_prefix(one.token_ids, token_ids) == len(one.token_ids)]
        self._texts = [one for one in self._texts if one is spared or one not in beginnings]
        self._texts.append(text)

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

    def _restore(self, text: Text, length: int, room: int) -> Iterator[Moving]:
        contents = chain(text.beside, (rows for block in text.blocks for rows in block.layers))
        logged = text.first_query + QUERY_LOG
        with self._engine.refilled(text.token_ids[:length], logged=logged, room=room) as cache:
            yield from fill(cache, length, [block.tokens for block in text.blocks], contents)


def size_bytes(texts: Sequence[Text]) -> int:
    """Host memory of texts, blocks that they share counted once."""
    blocks = {id(block): block for text in texts for block in text.blocks}
    return sum(num_bytes(block.layers) for block in blocks.values()) + sum(num_bytes(text.beside) for text in texts)


def num_bytes(tensors: Sequence[Tensor]) -> int:
    """Memory of tensors."""
    return sum(tensor.nbytes for tensor in tensors)
