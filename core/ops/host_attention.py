"""Attention by the processor to blocks in host memory, while the device computes.

A link is slower than host memory, so the host attends to a share of the blocks in place, and only the queries and a
partial result with its log-sum-exp cross the link. One thread does this; an event orders it against the computing
stream. The compiled kernel attends to all blocks in one call, which holds no lock of the interpreter and leaves a core
to the thread that launches. On a CPU that event has always passed: the slow twin. Knows neither caches nor shares.
"""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache

import torch
from torch import Tensor

from core.ops import streams
from core.ops.attention import Partial, union
from core.ops.kernel_build import NoKernel
from core.ops.native import SmallRows, small_rows
from core.ops.reach import Asked, partials_as
from core.ops.threads import most_threads


def attend_blocks(q: Tensor, blocks: Tensor, scaling: float, softcap: float | None = None) -> Partial:
    """Unmasked attention of every query to every row of every block: the slow twin of `SmallRows.blocks`.

    Args:
        q: [1, H, T, D] float32 and blocks: [N, 2, H_kv, R, D], keys before values, both in host memory.
        softcap: bound of the scores; None: none.
    Returns:
        out [1, H, T, D] and lse [1, H, T], both float32.
    """
    partial, _ = partials_as(Asked(softcap=softcap))
    return union([partial(q, k[None].float(), v[None].float(), scaling) for k, v in blocks])


@cache
def _kernel() -> SmallRows | None:
    """The compiled kernel, if it is to be had. Cost: seconds, once on a machine."""
    try:
        return small_rows()
    except NoKernel:
        return None


class HostAttention:
    """One thread that attends while the device computes.

    Each use is `ask`, then `answer`; an earlier, unanswered request is dropped. Blocks must not change in between.
    The thread begins with the first use and ends with the object.

    Host memory: queries and results of `most_rows` rows in float32, pinned for CUDA.
    """

    def __init__(self, num_heads: int, head_dim: int, most_rows: int, device: torch.device) -> None:
        self._device, self._streams = device, streams.of(device)
        rows = num_heads * most_rows
        sizes = (rows * head_dim, rows * head_dim, rows)
        self._q, self._out, self._lse = (self._streams.pinned(size, torch.float32) for size in sizes)
        self._asked = self._streams.event()
        self._kernel, self._threads = _kernel(), max(1, most_threads() - 1)  # one core launches
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="host attention")
        self._running: Future[Partial] | None = None

    def ask(self, q: Tensor, blocks: Tensor, scaling: float, softcap: float | None = None) -> None:
        """Start attention of q [1, H, T, D] of the device to blocks [N, 2, H_kv, R, D] in host memory."""
        if self._running is not None:  # from a pass that failed
            wait([self._running])
        here = self._q[: q.numel()].view(q.shape)
        current = self._streams.current()
        self._streams.copy(here, q.float().contiguous(), current)
        self._asked.record(current)
        self._running = self._thread.submit(self._attend, here, blocks, scaling, softcap)

    def _attend(self, q: Tensor, blocks: Tensor, scaling: float, softcap: float | None) -> Partial:
        """Runs on the thread. The event also shows that earlier results were copied to the device."""
        self._asked.synchronize()
        into = Partial(self._out[: q.numel()].view(q.shape), self._lse[: q[..., 0].numel()].view(q.shape[:3]))
        if self._kernel is not None and self._kernel.takes(q, blocks, blocks):
            self._kernel.blocks(q, blocks, scaling, into, softcap, self._threads)
            return into
        with torch.inference_mode():
            for result, found in zip(into, attend_blocks(q, blocks, scaling, softcap), strict=True):
                result.copy_(found)
        return into

    def answer(self) -> Partial:
        """Wait for the thread; out [1, H, T, D] and lse [1, H, T] on the device, float32, valid until the next `ask`.

        Raises:
            Whatever the thread raised.
        """
        running, self._running = self._running, None
        assert running is not None, "nothing was asked"
        out, lse = running.result()
        return Partial(self._brought(out), self._brought(lse))

    def _brought(self, result: Tensor) -> Tensor:
        if not self._streams.asynchronous:
            return result
        here = torch.empty(result.shape, dtype=result.dtype, device=self._device)
        self._streams.copy(here, result, self._streams.current())
        return here
