"""Brings the full cache to a prompt: chunk by chunk through all layers, or in large blocks layer by layer.

Chunk by chunk, every chunk brings all earlier rows of layers in host memory over the link; layer by layer they come
once a block. Both write the same rows, landmarks and queries.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing
from functools import partial

import torch

from core.caches.full import FullCache
from core.caches.layer_storage import ResidentLayer
from core.caches.oom_fallback import OomFallback, give_back
from core.caches.tokens import Context
from core.generation.reading_pace import Step, Work, work_of
from core.models.cached_model import CachedModel
from core.models.layerwise import DecoderLayers


class Prefill:
    """Reads prompts through the target's model.

    Args:
        layers: of the target, if they can be called one by one; None: chunk by chunk only.
        chunk: tokens of a pass.
        block: tokens that go through a layer before the next one begins; at most one chunk: chunk by chunk.
        lent: a context around reading by layers in which other caches free their memory.
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
            yield Step(span.stop, span.stop, work_of(span.stop))

    def _by_layers(self, context: Context, total: int) -> Generator[Step]:
        """Read block by block, smaller ones if the device is full; ends early if even two chunks are too many."""
        room: ResidentLayer | None = None
        while (done := self._full.length) < total and self._block > self._chunk:
            try:
                room = room or self._full.workspace(total)
                yield from self._read_block(context, range(done, min(done + self._block, total)), room)
                continue
            except torch.OutOfMemoryError:
                room = None  # retry outside this block, where the error's references are gone
            give_back(self._full.shape.device)
            half = self._block // 2 // self._chunk * self._chunk
            self._block = half if half > self._chunk else 0
            self._shrunk(self._block)

    def _read_block(self, context: Context, block: range, room: ResidentLayer | None) -> Generator[Step]:
        assert self._layers is not None
        num_layers, device = self._full.shape.num_layers, self._full.shape.device
        before, work = len(block) * num_layers, work_of(block.start)
        left = before
        reading = self._full.layerwise(len(block), room)
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
                    tokens, pairs = (b - a for a, b in zip(work_of(start), work_of(stop), strict=True))
                    work = Work(work.tokens + tokens / num_layers, work.pairs + pairs / num_layers)
                    if stop == block.stop:
                        reading.leave(layer)
                    if left == 0:
                        reading.commit()
                    yield Step(self._full.length, block.start + (before - left) // num_layers, work)
        finally:
            reading.close()
