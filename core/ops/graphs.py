"""CUDA graphs: a function of fixed buffers is recorded once and replayed, so that a pass costs one launch.

With few rows a pass of a large model has hundreds of small kernels, and starting them takes longer than their work. A
recorded function may depend on nothing but tensors at fixed places: what varies goes in as tensors, and lengths are
bucketed. On a CPU there is nothing to record; there the same function can be called on the same fixed buffers, which is
the twin that tests compare. Knows functions and tensors, nothing of models or caches.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress

import torch
from torch import Tensor

from core.ops.attention import Partial, merge, partial
from core.ops.backend import PartialAttend

log = logging.getLogger(__name__)

WARM_UP = 2  # calls before recording: libraries allocate their workspaces in them
MOST_GRAPHS = 32  # kept at a time: an answer uses about twenty, and each takes the driver's memory
# What one takes per layer of the model. Not measured here: others report 24 MiB for a whole pass of a 48-layer model
# (vLLM, issue 50780), and 0.36 GiB for 16 partial ones.
LAYER_BYTES = 1 << 19
MOST_ROWS = 32  # new tokens of a recorded pass; longer ones are worth their launches
# Rows up to a multiple of these are attended to by the fast kernel, the rest under a mask. Shorter steps waste less on
# the mask, longer ones are recorded less often while an answer grows.
SHORT_STEP, LONG_STEP, LONG = 256, 1024, 8192


def graph_bytes(num_layers: int) -> int:
    """An estimate of what the driver takes for as many recorded passes of a model as are kept."""
    return MOST_GRAPHS * num_layers * LAYER_BYTES


PoolId = tuple[int, int]  # of memory that graphs share, as torch names it


class Graphs:
    """Recorded functions by key. With `record` off they are called instead: the slow twin.

    A recording holds on to whatever its function reads and writes, so it has to be forgotten before that memory can go.
    """

    def __init__(self, device: torch.device, *, record: bool = True) -> None:
        assert device.type == "cuda" or not record, "only CUDA records"
        self._device, self._record = device, record
        self._kept: OrderedDict[Hashable, _Recorded] = OrderedDict()
        self._stream = torch.cuda.Stream(device) if record else None  # type: ignore[no-untyped-call]
        self._new_pool()
        self.failure = ""  # why nothing is recorded any more; empty: all is well
        self.recording_seconds = 0.0  # spent on recordings so far, work launched before them apart

    @property
    def num_kept(self) -> int:
        """Recorded functions."""
        return len(self._kept)

    def _new_pool(self) -> None:
        # torch frees a pool's memory once none of its graphs is left, and until then asserts that nobody begins another
        # one in it (create_or_incref_pool, releasePool: c10/cuda/CUDACachingAllocator.cpp)
        self._pool: PoolId | None = torch.cuda.graph_pool_handle() if self._record else None

    def forget(self, name: str) -> None:
        """Drop what was recorded under keys that begin with a name: the tensors that it works on are about to go.

        Only the last one to go takes the memory along that the recordings share: what one pass computes in, once.
        """
        self._drop([key for key in self._kept if isinstance(key, tuple) and key[0] == name])

    def _drop(self, keys: list[Hashable]) -> None:
        if keys and self._record:
            torch.cuda.current_stream(self._device).synchronize()  # one of them may be running
        for key in keys:
            del self._kept[key]
        if keys and not self._kept:
            self._new_pool()

    def prepare(self, key: Hashable, function: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], Tensor] | None:
        """A call of function(*inputs) that runs as one launch; None where it could not be recorded.

        Takes the inputs in at once, and records where the key is new (a few calls' time). The result is a copy.

        Args:
            key: must name function, and the shapes of inputs.
            function: reads and writes only tensors that stay where they are, and does not wait for the device.
                Calling it twice must do the same as once.
        """
        if self.failure:
            return None
        kept = self._kept.get(key)
        if kept is None:
            if self._record:
                torch.cuda.synchronize(self._device)  # what was launched before has its own time
            started = time.perf_counter()
            try:
                kept = _Recorded(function, [x.clone() for x in inputs], self._stream, self._pool)
            except RuntimeError as error:  # out of memory among them
                self.failure = f"recording failed: {str(error).splitlines()[0]}"
                log.warning("CUDA graphs are off, %s", self.failure)
                self._drop(list(self._kept))
                return None
            finally:
                self.recording_seconds += time.perf_counter() - started
            self._kept[key] = kept
            if len(self._kept) > MOST_GRAPHS:
                self._drop([next(iter(self._kept))])
        else:
            kept.take(inputs)
        self._kept.move_to_end(key)
        return kept


class _Recorded:
    """One function with its inputs at fixed places."""

    def __init__(
        self,
        function: Callable[..., Tensor],
        inputs: list[Tensor],
        stream: torch.cuda.Stream | None,
        pool: PoolId | None,
    ) -> None:
        self._function, self._inputs = function, inputs
        self._graph: torch.cuda.CUDAGraph | None = None
        if stream is None or pool is None:
            return
        current = torch.cuda.current_stream(stream.device)
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    function(*inputs)
        finally:
            current.wait_stream(stream)
        self._graph, self._out = record(function, inputs, stream, pool)

    def take(self, inputs: tuple[Tensor, ...]) -> None:
        """Other values, the same shapes."""
        for fixed, given in zip(self._inputs, inputs, strict=True):
            assert fixed.shape == given.shape, f"recorded for {tuple(fixed.shape)}, given {tuple(given.shape)}"
            fixed.copy_(given)

    def __call__(self) -> Tensor:
        """Replay. Graphs share their memory, so the result is copied before another one runs."""
        if self._graph is None:
            return self._function(*self._inputs)
        self._graph.replay()
        return self._out.clone()


def record(
    function: Callable[..., Tensor], inputs: list[Tensor], stream: torch.cuda.Stream, pool: PoolId
) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A graph of function(*inputs), and where each replay puts the result.

    However it ends, the thread is on the stream that it was on, and the allocator is not recording. `torch.cuda.graph`
    promises neither: where recording broke off its `__exit__` ends in the middle, at a `capture_end` that raises.
    """
    torch.cuda.synchronize(stream.device)
    torch.cuda.empty_cache()  # while it records, the allocator asks the device alone
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        try:
            # Another thread may use CUDA meanwhile: only this one's calls are recorded
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")  # type: ignore[arg-type]  # a NewType
            out = function(*inputs)
            graph.capture_end()
        except BaseException:
            _abandon(graph, stream.device, pool)
            raise
    return graph, out


def _abandon(graph: torch.cuda.CUDAGraph, device: torch.device, pool: PoolId) -> None:
    """End recording wherever it broke off; whatever was done already refuses to be done twice."""
    with suppress(RuntimeError):  # raises too where the recording is of no use: then the stream alone is free
        graph.capture_end()
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device.index, pool)
    try:
        graph.pool()
    except RuntimeError:  # then resetting it does not release the pool (capture_ended_ in ATen/cuda/CUDAGraph.h)
        with suppress(RuntimeError):
            torch._C._cuda_releasePool(device.index, pool)
    graph.reset()


# -------------------- buckets


def padded_rows(num_new: int) -> int:
    """How many rows a recorded pass over `num_new` tokens has: the next power of two."""
    return 1 << (num_new - 1).bit_length()


def whole_rows(held: int) -> int:
    """How many of the rows held are attended to without a mask."""
    step = LONG_STEP if held >= LONG else SHORT_STEP
    return held // step * step


def masked_rows(whole: int, padded: int) -> int:
    """How many rows behind them a mask must reach over, so that it serves every length of the bucket."""
    return (LONG_STEP if whole >= LONG else SHORT_STEP) - 1 + padded


def hidden_rows(start: Tensor, num_new: int, first: int, count: int) -> Tensor:
    """Which of the rows [first, first + count) new tokens may not look at, [num_new, count] bool.

    Args:
        start: [] int64 on the device: the row of the first new token; it sees that row and all before.
    """
    row = torch.arange(first, first + count, device=start.device)
    return row > (start + torch.arange(num_new, device=start.device))[:, None]


def attend_bucketed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scaling: float,
    whole: int,
    hidden: Tensor,
    attend: PartialAttend = partial,
) -> Tensor:
    """Causal attention whose length is not known when it is recorded.

    Args:
        q: [1, H, T, D]; k, v: [1, H_kv, R, D], finite beyond the rows in use too.
        whole: rows at the front that every query sees.
        hidden: [T, B] bool: which of the rows [whole, whole + B) each query may not see.
        attend: attention to the rows at the front.
    Returns:
        [1, H, T, D].
    """
    tail = slice(whole, whole + hidden.shape[1])
    masked = masked_partial(q, k[:, :, tail], v[:, :, tail], scaling, hidden)
    if whole == 0:
        return masked.out.to(q.dtype)
    front = attend(q, k[:, :, :whole], v[:, :, :whole], scaling)
    return merge(front, masked)


def masked_partial(q: Tensor, k: Tensor, v: Tensor, scaling: float, hidden: Tensor) -> Partial:
    """Attention to few rows under a mask, by plain matmuls in float32 (or wider); shapes as in `attend_bucketed`.

    Every query must see at least one row.
    """
    batch, heads, num_new, dim = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    folded = (q.to(wide) * scaling).reshape(batch, k.shape[1], -1, dim)  # [B, H_kv, G * T, D]
    scores = (folded @ k.to(wide).transpose(-1, -2)).view(batch, heads, num_new, -1)
    scores = scores.masked_fill(hidden, float("-inf"))
    lse = scores.logsumexp(-1)  # [B, H, T]
    weights = (scores - lse[..., None]).exp().view(*folded.shape[:3], -1)
    return Partial((weights @ v.to(wide)).view(batch, heads, num_new, dim), lse.float())
