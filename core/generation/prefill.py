"""Brings the full cache to a prompt: chunk by chunk through all layers, or in large blocks layer by layer.

Chunk by chunk, every chunk needs all earlier keys and values of the layers in host memory, so link traffic grows with
the square of the prompt; layer by layer they come once a block. Both write the same rows, landmarks and queries.
Knows nothing of conversations or callers.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing
from functools import partial
from typing import NamedTuple

import torch

from core.caches.full import FullCache
from core.caches.layer_storage import ResidentLayer
from core.caches.oom_fallback import OomFallback, give_back
from core.caches.tokens import Context
from core.generation.events import PrefillProgress
from core.models.cached_model import CachedModel
from core.models.layerwise import DecoderLayers


class Step(NamedTuple):
    """A chunk went through all layers, or through one."""

    kept: int  # tokens that the cache has seen
    done: int  # `kept` plus the work on a block that does not count yet, in tokens through all layers
    cost: float  # of `done`, in the unit of `reading_cost`


def reading_cost(tokens: float) -> float:
    """The time to read so many tokens, in units of one token at an empty cache.

    Attention makes late chunks slower than early ones: with t + t^2 / 2K, K = 8192 on the bundled model, the estimate
    is within a few percent after two chunks; a linear one starts four times too low at 128K.
    """
    return tokens + tokens * tokens / 16384


def progress_of(step: Step, total: int, reused: int, elapsed: float) -> PrefillProgress:
    """A step as an event: `reused` of `total` tokens were cached before, at no cost; `elapsed`: seconds."""
    read = step.cost - reading_cost(reused)
    remaining = max(0.0, reading_cost(total) - step.cost) * elapsed / read if read > 0 else None
    return PrefillProgress(
        done_tokens=step.done,
        ahead_tokens=step.done - step.kept,
        total_tokens=total,
        reused_tokens=reused,
        elapsed_seconds=elapsed,
        remaining_seconds=remaining,
    )


class Prefill:
    """Reads prompts through the target's model.

    Args:
        layers: of the target, if they can be called one by one; None: chunk by chunk only.
        chunk: tokens of a pass.
        block: tokens that go through a layer before the next one begins; at most one chunk: chunk by chunk.
        lent: a context around reading by layers, in which other parts free memory.
        shrunk: called with the new `block` after the device ran out of memory.
    """

    def __init__(
        self,
        model: CachedModel,
        full: FullCache,
        oom_fallback: OomFallback,
        *,
        layers: DecoderLayers | None,
        chunk: int,
        block: int,
        lent: Callable[[], AbstractContextManager[None]],
        shrunk: Callable[[int], None],
    ) -> None:
        self._model, self._full, self._oom_fallback, self._layers = model, full, oom_fallback, layers
        self._chunk, self._block, self._lent, self._shrunk = chunk, block if layers else 0, lent, shrunk

    def steps(self, context: Context, start: int, total: int) -> Iterator[Step]:
        """Read tokens [start, total) of `context`, where the cache has seen [0, start).

        Closing the iterator between two steps leaves the cache at `kept` of the last one.

        Raises:
            NotEnoughMemory: the device is full, and nothing can move to the host.
        """
        by_layers = self._full.resident_layers < len(self._full.shape.full_layers) and total - start > self._chunk
        if by_layers and self._block > self._chunk:
            with self._lent(), closing(self._by_layers(context, total)) as steps:
                yield from steps
        while (done := self._full.length) < total:
            span = range(done, min(done + self._chunk, total))
            self._oom_fallback.retry(
                partial(self._model.feed, context, span, 1), partial(self._full.truncate, span.start)
            )
            yield Step(span.stop, span.stop, reading_cost(span.stop))

    def _by_layers(self, context: Context, total: int) -> Generator[Step]:
        """Read block by block, smaller ones if the device is full; ends early if even two chunks are too many."""
        work: ResidentLayer | None = None
        while (done := self._full.length) < total and self._block > self._chunk:
            try:
                work = work or self._full.workspace(total)
                yield from self._read_block(context, range(done, min(done + self._block, total)), work)
                continue
            except torch.OutOfMemoryError:
                work = None  # retry outside this block, where the error's references are gone
            give_back(self._full.shape.device)
            half = self._block // 2 // self._chunk * self._chunk
            self._block = half if half > self._chunk else 0
            self._shrunk(self._block)

    def _read_block(self, context: Context, block: range, work: ResidentLayer | None) -> Generator[Step]:
        assert self._layers is not None
        num_layers, device = self._full.shape.num_layers, self._full.shape.device
        before, cost = len(block) * num_layers, reading_cost(block.start)
        left = before
        reading = self._full.layerwise(len(block), work)
        try:
            hidden = self._layers.embed(torch.tensor(context.span(block.start, block.stop), device=device))
            for layer in range(num_layers):
                reading.enter(layer)
                for start in range(block.start, block.stop, self._chunk):
                    stop = min(start + self._chunk, block.stop)
                    positions = reading.begin(start, stop - start)
                    part = hidden[:, start - block.start : stop - block.start]
                    self._layers.step(layer, part, positions, reading)
                    left -= stop - start
                    cost += (reading_cost(stop) - reading_cost(start)) / num_layers
                    if stop == block.stop:
                        reading.leave(layer)
                    if left == 0:
                        reading.commit()
                    yield Step(self._full.length, block.start + (before - left) // num_layers, cost)
        finally:
            reading.close()
