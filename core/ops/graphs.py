"""CUDA graphs: a function of fixed buffers is recorded once and replayed, so that a pass costs one launch.

With few rows a pass of a large model has hundreds of small kernels, and starting them takes longer than their work. A
recorded function may depend on nothing but tensors at fixed places: what varies goes in as tensors, and lengths are
bucketed. On a CPU there is nothing to record; there the same function can be called on the same fixed buffers, which is
the twin that tests compare. Knows functions and tensors, nothing of models or caches.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

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


class Graphs:
    """Recorded functions by key. With `record` off they are called instead: the slow twin."""

    def __init__(self, device: torch.device, *, record: bool = True) -> None:
        assert device.type == "cuda" or not record, "only CUDA records"
        self._device, self._record = device, record
        self._kept: OrderedDict[Hashable, _Recorded] = OrderedDict()
        self._pool = torch.cuda.graph_pool_handle() if record else None
        self._stream = torch.cuda.Stream(device) if record else None  # type: ignore[no-untyped-call]
        self.failure = ""  # why nothing is recorded any more; empty: all is well

    @property
    def num_kept(self) -> int:
        """Recorded functions."""
        return len(self._kept)

    def forget(self, name: str) -> None:
        """Drop what was recorded under keys that begin with a name: its tensors lie elsewhere now."""
        if self._record:
            torch.cuda.current_stream(self._device).synchronize()  # one of them may be running
        for key in [key for key in self._kept if isinstance(key, tuple) and key[0] == name]:
            del self._kept[key]

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
            try:
                kept = _Recorded(function, [x.clone() for x in inputs], self._stream, self._pool)
            except RuntimeError as error:  # out of memory among them
                self.failure = f"recording failed: {str(error).splitlines()[0]}"
                log.warning("CUDA graphs are off, %s", self.failure)
                self._kept.clear()
                return None
            self._kept[key] = kept
            if len(self._kept) > MOST_GRAPHS:
                if self._record:
                    torch.cuda.current_stream(self._device).synchronize()  # it may be running
                self._kept.popitem(last=False)
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
        pool: Any,  # torch's handle of the memory that graphs share
    ) -> None:
        self._function, self._inputs = function, inputs
        self._graph: torch.cuda.CUDAGraph | None = None
        if stream is None:
            return
        current = torch.cuda.current_stream(stream.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                function(*inputs)
        current.wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # Another thread may use CUDA meanwhile: only this one's calls are recorded
        with torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self._out = function(*inputs)

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
