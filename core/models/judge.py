"""A model + a cache = the law of the next token. Whether it proposes or judges is decided by who asks."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from core.caches.base import KVCache
from core.models.seam import forward
from core.tokens import Context


class PassMeter:
    """Passes, seconds and key/value bytes of one judge since the last reset.

    On CUDA, seconds are read from events when they are asked for, so that measuring never waits during decoding.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.reset()

    def reset(self) -> None:
        """Forget everything measured."""
        self.passes = self.tokens = self.kv_bytes = 0
        self._seconds = 0.0
        self._pending: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def measure(self, num_tokens: int, kv_bytes: int) -> Iterator[None]:
        """Count one pass over `num_tokens` new tokens that reads `kv_bytes`."""
        self.passes += 1
        self.tokens += num_tokens
        self.kv_bytes += kv_bytes
        if self._cuda:
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            yield
            stop.record()
            self._pending.append((start, stop))
        else:
            started = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - started

    @property
    def seconds(self) -> float:
        """Time spent in passes. On CUDA waits for the last one."""
        for start, stop in self._pending:
            stop.synchronize()
            self._seconds += start.elapsed_time(stop) / 1e3
        self._pending.clear()
        return self._seconds


class Judge:
    """One model looking through one cache. Several judges may share a model, and a pass belongs to exactly one."""

    def __init__(self, name: str, model: nn.Module, cache: KVCache, device: torch.device) -> None:
        self.name, self.model, self.cache, self.device = name, model, cache, device
        self.meter = PassMeter(device)

    def logits(self, context: Context, keep: int) -> Tensor:
        """Feed what the cache has not seen of `context`; logits after each of its last `keep` tokens, [keep, V].

        Raises:
            ContextTooSmall: the cache is full.
        """
        *catch_up, newest = self.cache.missing(len(context))
        for span in catch_up:
            self.feed(context, span, 1)
        assert len(newest) >= keep, f"{keep} laws wanted, {len(newest)} tokens are new to {self.name}"
        return self.feed(context, newest, keep)

    def feed(self, context: Context, span: range, keep: int) -> Tensor:
        """One pass over context[span], which must follow what the cache has seen; logits [keep, V]."""
        tokens = torch.tensor(context.span(span.start, span.stop), device=self.device)
        positions = self.cache.begin(span.start, len(span))
        with self.meter.measure(len(span), self.cache.nbytes):
            logits = forward(self.model, tokens, positions, self.cache, keep)
        self.cache.commit(len(span))
        return logits
