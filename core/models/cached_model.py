"""A model and a cache give the distribution of the next token. The caller decides whether it proposes or verifies."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from core.caches.base import KVCache
from core.caches.tokens import Context
from core.models.graphed import GraphedPasses
from core.models.hf_attention import forward
from core.models.short_pass import short_pass_of
from core.ops.graphs import MOST_ROWS, Graphs
from core.ops.native import MOST_TOKENS
from core.ops.streams import to_device
from core.ops.threads import process_threads

# Around every pass: the model's name, the new tokens' start, the tokens, and whether it is going to be recorded rather
# than replayed. Other processes do the same.
Lead = Callable[[str, int, Sequence[int], bool], AbstractContextManager[None]]

RECENT = 0.2  # weight of the newest pass in seconds_by_rows


class PassMeter:
    """Passes, seconds, and key/value bytes in total and over the link, of one model since the last reset.

    On CUDA, seconds come from events, so that measuring never waits during decoding.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._by_rows: dict[int, float] = {}
        self._threads = process_threads().changes  # when the costs began to be measured
        self.reset()

    def reset(self) -> None:
        """Reset all counts; costs of passes stay known."""
        self.passes = self.tokens = self.kv_bytes = self.link_bytes = 0
        self.by_rows: Counter[int] = Counter()  # passes by their number of new tokens
        self._seconds = 0.0
        self._pending: list[tuple[int, torch.cuda.Event, torch.cuda.Event]] = []  # oldest first

    def forget_costs(self) -> None:
        """Forget the costs of passes, because they will change."""
        self._by_rows.clear()

    @contextmanager
    def measure(self, num_tokens: int, kv_bytes: int, link_bytes: int = 0) -> Iterator[None]:
        """Count one pass over `num_tokens` new tokens that reads `kv_bytes`, `link_bytes` of them from the host."""
        self._count(num_tokens, kv_bytes, link_bytes)
        if self._cuda:
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            yield
            stop.record()
            self._pending.append((num_tokens, start, stop))
        else:
            started, threads = time.perf_counter(), process_threads().changes
            yield
            self._took(num_tokens, time.perf_counter() - started, threads)

    def took(self, num_tokens: int, kv_bytes: int, seconds: float, threads: int) -> None:
        """Count a pass that took so long: on a processor, of somebody else's measuring.

        Args:
            threads: `Threads.changes` when it began.
        """
        self._count(num_tokens, kv_bytes, 0)
        self._took(num_tokens, seconds, threads)

    def _count(self, num_tokens: int, kv_bytes: int, link_bytes: int) -> None:
        self.passes += 1
        self.by_rows[num_tokens] += 1
        self.tokens += num_tokens
        self.kv_bytes += kv_bytes
        self.link_bytes += link_bytes

    def _took(self, num_tokens: int, seconds: float, threads: int) -> None:
        self._seconds += seconds
        self._forget_others()
        if threads != self._threads:
            return  # a pass that waited, until fewer threads were chosen
        known = self._by_rows.get(num_tokens, seconds)
        # Other work on the machine makes single passes slower, never faster.
        self._by_rows[num_tokens] = known + RECENT * (min(seconds, 2 * known) - known)

    def _collect(self) -> None:
        if self._pending:
            self._pending[-1][2].synchronize()  # and so all before it
        for num_tokens, start, stop in self._pending:
            self._took(num_tokens, start.elapsed_time(stop) / 1e3, self._threads)
        self._pending.clear()

    @property
    def seconds(self) -> float:
        """Time spent in passes. On CUDA it waits for the last pass, as drawing from its result has done already."""
        self._collect()
        return self._seconds

    @property
    def seconds_by_rows(self) -> Mapping[int, float]:
        """Recent seconds of a pass by its number of new tokens."""
        self._collect()
        self._forget_others()
        return self._by_rows

    def _forget_others(self) -> None:
        """Forget costs with another number of threads: before it was lowered, threads waited for other programs."""
        if self._threads != process_threads().changes:
            self._threads = process_threads().changes
            self._by_rows.clear()


class CachedModel:
    """One model with one cache. Several CachedModels may share a model; every pass belongs to exactly one of them."""

    def __init__(
        self,
        name: str,
        module: nn.Module,
        cache: KVCache,
        device: torch.device,
        lead: Lead | None = None,
        *,
        vocab: int | None = None,
        graphed: GraphedPasses | None = None,
    ) -> None:
        """`vocab`: size of distributions, if it is another model's vocabulary (padded otherwise)."""
        self.name, self.module, self.cache, self.device, self._graphed = name, module, cache, device, graphed
        self._lead = lead
        rows = module.get_input_embeddings().num_embeddings if vocab is not None else None  # type: ignore[operator]
        self._vocab, self._rows = (vocab, rows) if vocab != rows else (None, None)
        self.meter = PassMeter(device)
        self.short = short_pass_of(module) if device.type == "cpu" else None  # for passes of few tokens

    @property
    def graphs(self) -> Graphs | None:
        """The recorder of its passes, if there is one."""
        return self._graphed.graphs if self._graphed else None

    def record(self, sizes: Sequence[int], seen: int) -> None:
        """At an answer's start: record the passes that bring the cache to `seen` tokens, and these sizes behind them.

        Does nothing if passes are not recorded, or by several processes. The cache keeps its contents, as after a pass
        without a `commit`.
        """
        if self._graphed is None or self._lead is not None:
            return
        self._graphed.graphs.try_again()
        sizes, behind = [size for size in sizes if size <= MOST_ROWS], 0
        for span in self.cache.unseen_spans(seen):
            if span:
                self._graphed.record(len(span), behind)
                behind += len(span)
        if behind == 0:
            self.cache.begin(seen, max(sizes))
        for size in sizes:
            self._graphed.record(size, behind)

    def logits(self, context: Context, keep: int) -> Tensor:
        """Feed the unseen tokens of `context`; logits after each of its last `keep` tokens, [keep, V] float32 or wider.

        Raises:
            ContextTooSmall: the cache is full.
        """
        return self.feed(context, self.newest(context, keep), keep)

    def newest(self, context: Context, keep: int) -> range:
        """Feed the unseen tokens of `context` but those of the last pass, which gives at least `keep` logits."""
        *catch_up, newest = self.cache.unseen_spans(len(context))
        for span in catch_up:
            self.feed(context, span, 1)
        assert len(newest) >= keep, f"{keep} distributions wanted, {len(newest)} tokens are new to {self.name}"
        return newest

    def feed(self, context: Context, span: range, keep: int) -> Tensor:
        """One pass over context[span], which must begin where the cache ends; logits [keep, V]."""
        return self.feed_tokens(context.span(span.start, span.stop), span.start, keep)

    def feed_tokens(self, token_ids: Sequence[int], start: int, keep: int, *, anew: bool = False) -> Tensor:
        """One pass over tokens that begin at `start`, where the cache ends; logits [keep, V].

        Args:
            anew: record it again, if it is a recorded one.
        """
        if self.device.type == "cpu":
            process_threads().lend()
        tokens, positions = self.known(token_ids), self.cache.begin(start, len(token_ids))
        measured = self.meter.measure(len(token_ids), self.cache.nbytes, self.cache.link_bytes)
        with self._leading(token_ids, start):
            replay = self._graphed.prepare(tokens, positions, keep, anew=anew) if self._graphed else None
            if replay is None:
                tokens, positions = to_device(tokens, self.device), to_device(positions, self.device)
            with measured:
                if replay is not None:
                    logits = replay()
                elif self.short is not None and len(token_ids) <= MOST_TOKENS:
                    logits = self.short(tokens, positions, self.cache, keep, self.cache.fixed())
                else:
                    logits = forward(self.module, tokens, positions, self.cache, keep)
        self.cache.commit(len(token_ids))
        return self.widened(logits)

    def _leading(self, token_ids: Sequence[int], start: int) -> AbstractContextManager[None]:
        if self._lead is None:
            return nullcontext()
        new = self._graphed is not None and self._graphed.is_new(len(token_ids))
        return self._lead(self.name, start, token_ids, new)

    def known(self, token_ids: Sequence[int]) -> Tensor:
        """The tokens as the model takes them, [T] int64 in host memory."""
        tokens = torch.tensor(token_ids)
        if self._rows is not None:
            tokens = tokens.clamp_max(self._rows - 1)  # padding ids that no tokenizer produces
        return tokens

    def widened(self, logits: Tensor) -> Tensor:
        """Logits of the model over the other model's vocabulary, [T, V] float32 or wider."""
        if logits.dtype.itemsize == 2:  # an output layer of 4 bits gives those
            logits = logits.float()
        if self._vocab is None:
            return logits
        # Vocabularies of the same tokens are padded to different sizes: columns are added, or cut off
        return nn.functional.pad(logits, (0, self._vocab - logits.shape[1]), value=float("-inf"))
