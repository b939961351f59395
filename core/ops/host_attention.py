"""Attention by the processor to blocks in host memory, while the device computes.

A link is slower than host memory, so the host attends to a share of the blocks in place, and only the queries and a
partial result with its log-sum-exp cross the link. One thread does this; an event orders it against the computing
stream. On a CPU that event has always passed: the slow twin. Knows neither caches nor shares.
"""

from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch
from torch import Tensor

from core.ops import streams
from core.ops.attention import Partial, partial
from core.ops.transfer import HostRows

# Rows of 16 bits are widened in tiles that stay in the processor's caches: without 16-bit matrix units torch's fused
# kernel reads them at 0.1 to 0.3 GB/s a core (9 rows, D = 128), tiles in float32 at 1 to 3, float32 rows at 4.7.
TILE_BYTES = 2 << 20
LEAST_TILE = 64  # rows


def attend_blocks(q: Tensor, blocks: Tensor, scaling: float) -> Partial:
    """Unmasked attention of every query to every row of every block; no block is copied as a whole.

    Args:
        q: [1, H, T, D] and blocks: [N, 2, H_kv, R, D], keys before values, both in host memory and of one dtype.
    Returns:
        out [1, H, T, D] and lse [1, H, T], both float32.
    """
    if q.dtype == torch.float32:
        many = q.expand(len(blocks), -1, -1, -1)
        found = partial(many, blocks[:, 0], blocks[:, 1], scaling)
        return _union(found.out, found.lse)
    return _attend_tiles(q, blocks, scaling)


def _attend_tiles(q: Tensor, blocks: Tensor, scaling: float) -> Partial:
    _, _, kv_heads, size, dim = blocks.shape
    tile = max(LEAST_TILE, TILE_BYTES // (kv_heads * dim * torch.float32.itemsize))
    folded = (q.float() * scaling).reshape(kv_heads, -1, dim)  # [H_kv, G * T, D]: K and V are read once
    outs, lses = [], []
    for k, v in blocks:
        for start in range(0, size, tile):
            rows = slice(start, start + tile)
            scores = folded @ k[:, rows].float().transpose(-1, -2)  # [H_kv, G * T, tile]
            lse = scores.logsumexp(-1)
            outs.append(scores.sub_(lse[..., None]).exp_() @ v[:, rows].float())
            lses.append(lse)
    return _union(torch.stack(outs).view(-1, *q.shape[1:]), torch.stack(lses).view(-1, *q.shape[1:3]))


def _union(outs: Tensor, lses: Tensor) -> Partial:
    """Merge disjoint parts, out [P, H, T, D] and lse [P, H, T]."""
    lse = lses.logsumexp(0, keepdim=True)
    return Partial(((lses - lse).exp()[..., None] * outs).sum(0, keepdim=True), lse)


class HostAttention:
    """One thread that attends while the device computes.

    Each use is `ask`, then `answer`; an earlier, unanswered request is dropped. Blocks must not change in between.
    The thread begins with the first use and ends with the object.

    Host memory: queries and results of `most_rows` rows, pinned for CUDA.
    """

    def __init__(self, num_heads: int, head_dim: int, most_rows: int, dtype: torch.dtype, device: torch.device) -> None:
        self._device, self._streams = device, streams.of(device)
        rows = num_heads * most_rows
        self._q = HostRows((rows * head_dim,), dtype, device)
        self._out = HostRows((rows * head_dim,), torch.float32, device)
        self._lse = HostRows((rows,), torch.float32, device)
        self._asked = self._streams.event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="host attention")
        self._running: Future[Partial] | None = None

    def ask(self, q: Tensor, blocks: Tensor, scaling: float) -> None:
        """Start attention of q [1, H, T, D] of the device to blocks [N, 2, H_kv, R, D] in host memory."""
        if self._running is not None:  # from a pass that failed
            wait([self._running])
        here = self._q.rows[: q.numel()].view(q.shape)
        current = self._streams.current()
        self._streams.copy(here, q.contiguous(), current)
        self._asked.record(current)
        self._running = self._thread.submit(self._attend, here, blocks, scaling)

    def _attend(self, q: Tensor, blocks: Tensor, scaling: float) -> Partial:
        """Runs on the thread. The event also shows that earlier results were copied to the device."""
        self._asked.synchronize()
        with torch.inference_mode():
            found = attend_blocks(q, blocks, scaling)
            out = self._out.rows[: q.numel()].view(q.shape)
            lse = self._lse.rows[: found.lse.numel()].view(found.lse.shape)
            out.copy_(found.out)
            lse.copy_(found.lse)
        return Partial(out, lse)

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
