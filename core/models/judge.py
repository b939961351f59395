"""A model + a cache = the law of the next token. Whether it proposes or judges is decided by who asks."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from core.caches.base import KVCache
from core.models.graphed import GraphedPasses
from core.models.seam import forward
from core.ops.graphs import Graphs
from core.tokens import Context

RECENT = 0.2  # weight of the newest pass in seconds_by_rows


class PassMeter:
    """Passes, seconds and key/value bytes of one judge since the last reset.

    On CUDA, seconds come from events, so that measuring never waits during decoding.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._by_rows: dict[int, float] = {}
        self.reset()

    def reset(self) -> None:
        """Forget everything counted; what a pass costs stays known."""
        self.passes = self.tokens = self.kv_bytes = 0
        self._seconds = 0.0
        self._pending: list[tuple[int, torch.cuda.Event, torch.cuda.Event]] = []

    def forget_costs(self) -> None:
        """Passes will cost something else from here."""
        self._by_rows.clear()

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
            self._pending.append((num_tokens, start, stop))
        else:
            started = time.perf_counter()
            yield
            self._took(num_tokens, time.perf_counter() - started)

    def _took(self, num_tokens: int, seconds: float) -> None:
        self._seconds += seconds
        known = self._by_rows.get(num_tokens, seconds)
        # Whatever else the machine does makes single passes slower, never faster.
        self._by_rows[num_tokens] = known + RECENT * (min(seconds, 2 * known) - known)

    def _collect(self) -> None:
        for num_tokens, start, stop in self._pending:
            stop.synchronize()
            self._took(num_tokens, start.elapsed_time(stop) / 1e3)
        self._pending.clear()

    @property
    def seconds(self) -> float:
        """Time spent in passes. On CUDA waits for the last one, which drawing from it has waited for already."""
        self._collect()
        return self._seconds

    @property
    def seconds_by_rows(self) -> Mapping[int, float]:
        """Recent seconds of a pass by its number of new tokens."""
        self._collect()
        return self._by_rows


class Judge:
    """One model looking through one cache. Several judges may share a model, and a pass belongs to exactly one."""

    def __init__(
        self,
        name: str,
        model: nn.Module,
        cache: KVCache,
        device: torch.device,
        graphed: GraphedPasses | None = None,
    ) -> None:
        self.name, self.model, self.cache, self.device, self._graphed = name, model, cache, device, graphed
        self.meter = PassMeter(device)

    @property
    def graphs(self) -> Graphs | None:
        """What records its passes, if anything does."""
        return self._graphed.graphs if self._graphed else None

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
        replay = self._graphed.prepare(tokens, positions, keep) if self._graphed else None
        with self.meter.measure(len(span), self.cache.nbytes):
            logits = replay() if replay else forward(self.model, tokens, positions, self.cache, keep)
        self.cache.commit(len(span))
        return logits
