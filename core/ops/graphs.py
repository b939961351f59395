"""CUDA graphs: a function of fixed buffers is recorded once and replayed, so that a pass costs one launch.

With few rows a pass of a large model has hundreds of small kernels, and launching them takes longer than their work.
A recorded function may depend only on tensors at fixed places: everything that varies is a tensor, and lengths are
bucketed. A CPU records nothing; there the same function can be called on the same fixed buffers, which is the slow
twin of the tests. Knows functions and tensors, not models or caches.
"""

import gc
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from core.ops.attention import Partial, merge, partial
from core.ops.backend import PartialAttend

log = logging.getLogger(__name__)

WARM_UP = 2  # calls before recording, in which libraries allocate their workspaces
MOST_GRAPHS = 32  # graphs kept at a time: an answer uses about twenty, and each takes the driver's memory
# Memory of one graph per layer of the model. Not measured here: others report 24 MiB for a whole pass of a 48-layer
# model (vLLM, issue 50780), and 0.36 GiB for 16 partial ones.
LAYER_BYTES = 1 << 19
MOST_ROWS = 32  # new tokens of a recorded pass; launches cost little in longer ones
# The fast kernel attends to rows up to a multiple of these, masked attention to the rest. Shorter steps waste less on
# the mask; longer steps need fewer recordings while an answer grows.
SHORT_STEP, LONG_STEP, LONG = 256, 1024, 8192


def graph_bytes(num_layers: int) -> int:
    """An estimate of the driver memory for as many recorded passes of a model as are kept."""
    return MOST_GRAPHS * num_layers * LAYER_BYTES


PoolId = tuple[int, int]  # of the memory that graphs share, as torch names it


class Graphs:
    """Recorded functions by key. With `record` off they are called instead: the slow twin.

    A recording keeps references to whatever its function reads and writes: forget it before that memory can be freed.
    """

    def __init__(self, device: torch.device, *, record: bool = True) -> None:
        assert device.type == "cuda" or not record, "only CUDA records"
        self._device, self._record = device, record
        self._kept: OrderedDict[Hashable, _Recorded] = OrderedDict()
        self._stream = torch.cuda.Stream(device) if record else None  # type: ignore[no-untyped-call]
        self._new_pool()
        self.failure = ""  # why recording has stopped; empty: it works
        self.shared = False  # whether other processes record the same: then what fails here ends the pass
        self._for_memory = False  # whether it has stopped because memory was lacking
        self.recording_seconds = 0.0  # spent on recordings so far, without the work launched before them

    @property
    def num_kept(self) -> int:
        """Number of recorded functions."""
        return len(self._kept)

    def _new_pool(self) -> None:
        # torch frees a pool's memory once none of its graphs is left, and asserts until then that no graph begins in it
        # (create_or_incref_pool, releasePool: c10/cuda/CUDACachingAllocator.cpp)
        self._pool: PoolId | None = torch.cuda.graph_pool_handle() if self._record else None

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kept

    def drop(self, key: Hashable) -> None:
        """Drop one recording, if it is there."""
        self._drop([key] if key in self._kept else [])

    def forget(self, name: str) -> None:
        """Drop the recordings whose keys begin with a name: their tensors are about to be freed.

        The memory that recordings share, the workspace of one pass, is freed with the last of them.
        """
        self._drop([key for key in self._kept if isinstance(key, tuple) and key[0] == name])

    def _drop(self, keys: list[Hashable]) -> None:
        if keys and self._record:
            torch.cuda.current_stream(self._device).synchronize()  # one of them may be running
        for key in keys:
            del self._kept[key]
        if keys and not self._kept:
            self._new_pool()

    def try_again(self) -> None:
        """Record again if what was lacking was memory: others may have freed it."""
        if self._for_memory:
            self.failure, self._for_memory = "", False

    def prepare(self, key: Hashable, function: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], Tensor] | None:
        """A call of function(*inputs) that runs as one launch; None where it could not be recorded.

        A failure gives up all recordings; one for lack of memory until `try_again`, any other for good. It is raised
        where recordings are `shared`.

        Copies the inputs at once, and records if the key is new (the time of a few calls). The result is a copy.

        Args:
            key: must identify function, and the shapes of inputs.
            inputs: on the device, or pinned in host memory.
            function: reads and writes only tensors that stay where they are, and does not wait for the device.
                Calling it twice must have the same effect as once.
        """
        if self.failure:
            return None
        kept = self._kept.get(key)
        if kept is None:
            if self._record:
                torch.cuda.synchronize(self._device)  # so that earlier work does not count as recording
            started = time.perf_counter()
            try:
                fixed = [x.to(self._device, copy=True) for x in inputs]
                kept = _Recorded(function, fixed, self._stream, self._pool)
            except RuntimeError as error:  # includes out of memory
                if self.shared:
                    raise
                self.failure = f"recording failed: {str(error).splitlines()[0]}"
                self._for_memory = isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)
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
        """Copy in other values of the same shapes."""
        for fixed, given in zip(self._inputs, inputs, strict=True):
            assert fixed.shape == given.shape, f"recorded for {tuple(fixed.shape)}, given {tuple(given.shape)}"
            fixed.copy_(given, non_blocking=True)

    def __call__(self) -> Tensor:
        """Replay. Graphs share their memory, so the result is copied before another one runs."""
        if self._graph is None:
            return self._function(*self._inputs)
        self._graph.replay()
        return self._out.clone()


def record(
    function: Callable[..., Tensor], inputs: list[Tensor], stream: torch.cuda.Stream, pool: PoolId
) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A graph of function(*inputs), and the tensor that each replay writes.

    However it ends, the thread is back on its stream and the allocator is not recording. `torch.cuda.graph` promises
    neither: after a failed recording its `__exit__` stops halfway, at a `capture_end` that raises.
    """
    torch.cuda.synchronize(stream.device)
    torch.cuda.empty_cache()  # during recording the allocator gets all memory from the device
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream), _no_collection():
        try:
            # Other threads may use CUDA meanwhile: only this thread's calls are recorded
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")  # type: ignore[arg-type]  # a NewType
            out = function(*inputs)
            graph.capture_end()
        except BaseException:
            _abandon(graph, stream.device, pool)
            raise
    return graph, out


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection inside: unlocking memory that it finds waits for the device, which spoils a recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _abandon(graph: torch.cuda.CUDAGraph, device: torch.device, pool: PoolId) -> None:
    """End recording wherever it failed; a step that was done already raises, which is ignored."""
    with suppress(RuntimeError):  # also raises if the recording is unusable; the stream is free even then
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
    """How many of the held rows need no mask."""
    step = LONG_STEP if held >= LONG else SHORT_STEP
    return held // step * step


def masked_rows(whole: int, padded: int) -> int:
    """How many rows behind the whole ones a mask must cover to serve every length of the bucket."""
    return (LONG_STEP if whole >= LONG else SHORT_STEP) - 1 + padded


def hidden_rows(start: Tensor, num_new: int, first: int, count: int) -> Tensor:
    """Which of the rows [first, first + count) new tokens may not attend to, [num_new, count] bool.

    Args:
        start: [] int64 on the device: the row of the first new token, which attends to that row and all before.
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
    """Causal attention whose length is not known at recording.

    Args:
        q: [1, H, T, D]; k, v: [1, H_kv, R, D], finite even beyond the rows in use.
        whole: rows at the front that every query attends to.
        hidden: [T, B] bool: which of the rows [whole, whole + B) each query may not attend to.
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

    Every query must attend to the first row.
    """
    batch, heads, num_new, dim = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    folded = (q.to(wide) * scaling).reshape(batch, k.shape[1], -1, dim)  # [B, H_kv, G * T, D]
    scores = (folded @ k.to(wide).transpose(-1, -2)).view(batch, heads, num_new, -1)
    scores = scores.masked_fill(hidden, float("-inf"))
    logs = scores.log_softmax(-1)  # one launch, of which log-sum-exp takes seven
    lse = scores[..., 0] - logs[..., 0]  # [B, H, T]
    weights = logs.exp().view(*folded.shape[:3], -1)
    return Partial((weights @ v.to(wide)).view(batch, heads, num_new, dim), lse.float())
