"""Reads prompts into the full cache: chunk by chunk through all layers, or in large blocks layer by layer.

Chunk by chunk, every chunk brings all earlier rows of layers in host memory over the link; layer by layer they come
once a block. Both write the same rows, landmarks and queries.
"""

import threading
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

import torch

from core.caches.layer_storage import ResidentLayer
from core.caches.oom_fallback import give_back
from core.caches.running_state import LIKELY_QUESTION
from core.caches.tokens import Context, common_prefix
from core.generation.events import PrefillProgress
from core.generation.levels import Levels
from core.models.layerwise import DecoderLayers

# A token at this position costs twice as much as the first one, on the bundled model. On others it is a quarter of this
# up to many times as much, which the first chunks show.
USUAL_DOUBLING = 8192.0
LEAST_DOUBLING, MOST_DOUBLING = USUAL_DOUBLING / 8, USUAL_DOUBLING * 64
LEAST_READ = 1024  # tokens of a reading that predicts others: the time of a question is mostly its passes' fixed cost
PRIOR_CHUNKS = 0.1  # weight of the usual value, in chunks: it may be wrong by a factor, a chunk by a third


class Work(NamedTuple):
    """What was read: tokens, and pairs of a token with one before it."""

    tokens: float
    pairs: float


def work_of(tokens: float) -> Work:
    """The work of reading so many tokens into an empty cache."""
    return Work(tokens, tokens * tokens / 2)


class Step(NamedTuple):
    """A chunk went through all layers, or through one."""

    kept: int  # tokens that the cache has seen
    done: int  # `kept` plus the work on a block that does not count yet, in tokens through all layers
    work: Work  # of `done`


class ReadingPace:
    """What the chunks of one engine have cost: a least-squares fit of seconds to tokens and pairs.

    The usual relation of the two weighs PRIOR_CHUNKS chunks, so that one slow chunk changes little.
    """

    def __init__(self) -> None:
        self._tt = self._tp = self._pp = self._ts = self._ps = 0.0  # sums over chunks of tokens, pairs and seconds
        self._largest = 0.0  # tokens of a chunk
        self._unit: float | None = None  # seconds a token at an empty cache, in the newest reading
        self._unit_of_texts: float | None = None  # the same, in the newest reading of a text

    def learn(self, before: Work, after: Work, seconds: float) -> None:
        """Add a chunk that took this long."""
        tokens, pairs = after.tokens - before.tokens, after.pairs - before.pairs
        self._tt += tokens * tokens
        self._tp += tokens * pairs
        self._pp += pairs * pairs
        self._ts += tokens * seconds
        self._ps += pairs * seconds
        self._largest = max(self._largest, tokens)

    @property
    def doubling(self) -> float:
        """The position at which a token costs twice what the first one costs."""
        prior = PRIOR_CHUNKS * self._largest**2
        a, b, d = self._tt + prior, self._tp - prior * USUAL_DOUBLING, self._pp + prior * USUAL_DOUBLING**2
        per_token, per_pair = d * self._ts - b * self._ps, a * self._ps - b * self._ts  # each times the determinant
        if per_token <= 0 or per_pair <= 0:
            return USUAL_DOUBLING
        return min(max(per_token / per_pair, LEAST_DOUBLING), MOST_DOUBLING)

    def remaining(self, reused: Work, done: Work, total: Work, seconds: float) -> float | None:
        """Seconds for the rest, after `seconds` for what is done; None: nothing was ever read."""
        doubling = self.doubling

        def cost(start: Work, end: Work) -> float:
            return end.tokens - start.tokens + (end.pairs - start.pairs) / doubling

        read = cost(reused, done)
        if read > 0 and seconds > 0:
            self._unit = seconds / read
            if done.tokens - reused.tokens >= LEAST_READ:
                self._unit_of_texts = self._unit
        return None if self._unit is None else max(0.0, cost(done, total)) * self._unit

    def whole(self, num_tokens: int) -> float | None:
        """Seconds to read a text of so many tokens into an empty cache; None: no text was read yet."""
        work = work_of(num_tokens)
        return None if self._unit_of_texts is None else (work.tokens + work.pairs / self.doubling) * self._unit_of_texts


class ReadingClock:
    """Turns the steps of one reading into events; `reused` of `total` tokens were cached before, at no cost."""

    def __init__(self, pace: ReadingPace, reused: int, total: int) -> None:
        self._pace, self._reused, self._total = pace, reused, total
        self._started, self._elapsed, self._before = time.perf_counter(), 0.0, work_of(reused)

    def tick(self, step: Step) -> PrefillProgress:
        """The event of a step that has just ended."""
        elapsed = time.perf_counter() - self._started if step.work != work_of(self._reused) else 0.0
        if elapsed:
            self._pace.learn(self._before, step.work, elapsed - self._elapsed)
        self._before, self._elapsed = step.work, elapsed
        return PrefillProgress(
            done_tokens=step.done,
            ahead_tokens=step.done - step.kept,
            total_tokens=self._total,
            reused_tokens=self._reused,
            elapsed_seconds=elapsed,
            remaining_seconds=self._pace.remaining(work_of(self._reused), step.work, work_of(self._total), elapsed),
        )


class Prefill:
    """Reads prompts through the target's model, and knows which tokens the caches hold.

    Args:
        layers: of the target, if they can be called one by one; None: chunk by chunk only.
        pace: what readings have cost.
    """

    def __init__(self, levels: Levels, layers: DecoderLayers | None, pace: ReadingPace) -> None:
        self._levels, self._full, self._layers, self._pace = levels, levels.full, layers, pace
        self._chunk = levels.placement.plan.prefill_chunk  # tokens of a pass
        self._seen: list[int] = []  # tokens whose keys and values the full cache holds: the first `full.length` count

    @property
    def _block(self) -> int:
        """Tokens that go through a layer before the next one begins; at most one chunk: chunk by chunk."""
        return self._levels.placement.plan.prefill_block.value

    @property
    def held_tokens(self) -> list[int]:
        """The tokens whose keys and values the full cache holds."""
        return self._seen[: self._full.length]

    def cached_prefix(self, prompt_ids: Sequence[int]) -> int:
        """Number of leading tokens of this prompt that need not be read again."""
        known = self.held_tokens
        return self._full.rewindable(common_prefix(known, list(prompt_ids[: len(known)])))

    def rewind(self, length: int) -> int:
        """Forget the conversation from `length` on, or earlier where windows are gone; returns the tokens left."""
        self._levels.rewind(length)
        left = min(length, self._full.length)
        del self._seen[left:]
        return left

    def settle(self, tokens: Sequence[int]) -> None:
        """Set the committed tokens [S]; caches keep at most all but the newest."""
        length = min(self._full.length, len(tokens) - 1)
        self._seen = list(tokens[:length])
        self.rewind(length)

    def read(
        self, prompt_ids: Sequence[int], cancel: threading.Event | None, boundary: int
    ) -> Generator[PrefillProgress, None, PrefillProgress]:
        """See `core.engine.Engine.read`."""
        full, window, total = self._full, self._levels.chunks.query_window, len(prompt_ids) - 1
        context, boundary = Context(list(prompt_ids)), min(boundary, total)
        if not boundary and full.shape.recurrent:  # running states are kept where a book may end
            boundary = max(0, total - LIKELY_QUESTION)
        reused = self.rewind(min(self.cached_prefix(prompt_ids), total))
        self._levels.parts.count_votes(False)
        voting = max(0, total - window)  # queries from here on vote for chunks
        if reused > voting and not full.can_choose(voting, total):  # computed again
            reused = self.rewind(voting)
        if reused and reused in (boundary, total):
            full.remember_queries(window)
        clock = ReadingClock(self._pace, reused, total)
        progress = clock.tick(Step(reused, reused, work_of(reused)))
        yield progress
        for end in [end for end in (boundary, total) if end > reused]:
            with closing(self._steps(context, end)) as steps:
                while not (cancel and cancel.is_set()) and (step := next(steps, None)):
                    self._seen[len(self._seen) :] = prompt_ids[len(self._seen) : step.kept]
                    if step.kept == end:
                        full.remember_queries(window)
                    progress = clock.tick(step)
                    yield progress
        return progress

    def _steps(self, context: Context, total: int) -> Generator[Step]:
        """Read `context` up to `total` tokens. Closing it between two steps leaves the cache at `kept` of the last one.

        Raises:
            NotEnoughMemory: the device is full, and nothing can move to the host.
        """
        away = self._full.resident_layers < len(self._full.shape.full_layers)
        if away and min(self._block, total - self._full.length) > self._chunk:
            with self._levels.lent(), closing(self._by_layers(context, total)) as steps:
                yield from steps
        while (done := self._full.length) < total:
            span = range(done, min(done + self._chunk, total))
            self._levels.oom_fallback.retry(
                partial(self._levels.parts.full.feed, context, span, 1), partial(self._full.truncate, span.start)
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
            self._levels.placement.block_shrunk(half if half > self._chunk else 0)

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
