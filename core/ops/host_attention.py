"""Attention by the processor to blocks in host memory, while the device computes.

A link is slower than host memory, so the host attends to a share of the blocks in place, and only the queries and a
partial result with its log-sum-exp cross the link. One thread does this; an event orders it against the computing
stream. The compiled kernel attends to all blocks in one call, which holds no lock of the interpreter and leaves a core
to the thread that launches. On a CPU that event has always passed: the slow twin. Knows neither caches nor shares.
"""

import math
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

import torch
from torch import Tensor

from core.ops import streams
from core.ops.attention import Masses, Partial, union, widened
from core.ops.kernel import kernel_here
from core.ops.native import CHUNKS
from core.ops.reach import Asked, partials_as
from core.ops.scores import kept_as, masses_of
from core.ops.threads import most_threads


class Answer(NamedTuple):
    """What the host has worked out."""

    partial: Partial  # out [1, H, T, D] and lse [1, H, T], both float32
    masses: Masses | None  # of each block, if chunks were asked for; else nothing was counted


def attend_blocks(
    q: Tensor, blocks: Tensor, scaling: float, softcap: float | None = None, chunk_size: int | None = None
) -> Answer:
    """Unmasked attention of every query to every row of every block: the slow twin of `SmallRows.blocks`.

    Args:
        q: [1, H, T, D] float32 and blocks: [N, 2, H_kv, R, D], keys before values, both in host memory.
        softcap: bound of the scores; None: none.
        chunk_size: keys of a chunk whose masses are counted; None: no masses.
    """
    partial, _ = partials_as(Asked(softcap=softcap))
    parts, counted = [], []
    for k, v in blocks.unsqueeze(2):
        k, v = widened(k, torch.float32), widened(v, torch.float32)
        parts.append(partial(q, k, v, scaling))
        if chunk_size is not None:
            folded = q.reshape(k.shape[1], -1, q.shape[3])
            counted.append(masses_of(folded, k, parts[-1].lse, scaling, chunk_size, softcap))
    return Answer(union(parts), Masses(*map(torch.cat, zip(*counted, strict=True))) if counted else None)


class HostAttention:
    """One thread that attends while the device computes.

    Each use is `ask`, then `answer`; an earlier, unanswered request is dropped. Blocks must not change in between.
    The thread begins with the first use and ends with the object.

    Host memory, pinned for CUDA: queries and results of `most_rows` rows in float32, and room for the masses of the
    largest pass so far, at most twice as much as they take.
    """

    def __init__(self, num_heads: int, head_dim: int, most_rows: int, device: torch.device) -> None:
        self._device, self._streams = device, streams.of(device)
        rows = num_heads * most_rows
        sizes = (rows * head_dim, rows * head_dim, rows)
        self._q, self._out, self._lse = (self._streams.pinned(size, torch.float32) for size in sizes)
        self._room = self._streams.pinned(0, torch.float32)  # of masses
        self._asked = self._streams.event()
        self._kernel, self._threads = kernel_here(), max(1, most_threads() - 1)  # one core launches
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="host attention")
        self._running: Future[Answer] | None = None
        self.seconds = 0.0  # of the latest attention, from the arrival of its queries on

    def ask(
        self, q: Tensor, blocks: Tensor, scaling: float, softcap: float | None = None, chunk_size: int | None = None
    ) -> None:
        """Start attention of q [1, H, T, D] of the device to blocks [N, 2, H_kv, R, D] in host memory.

        Args:
            chunk_size: count what every row attends to by chunks of so many keys; None: do not.
        """
        if self._running is not None:  # from a pass that failed
            wait([self._running])
        here = self._q[: q.numel()].view(q.shape)
        current = self._streams.current()
        self._streams.copy(here, q.float().contiguous(), current)
        self._asked.record(current)
        masses = None if chunk_size is None else self._room_for(q, blocks, chunk_size)
        self._running = self._thread.submit(self._attend, here, blocks, scaling, softcap, masses)

    def _room_for(self, q: Tensor, blocks: Tensor, chunk_size: int) -> Masses:
        """Pinned memory for masses; it grows by powers of two, to which torch rounds pinned memory anyway."""
        _, _, kv_heads, size, _ = blocks.shape
        rows = (len(blocks), kv_heads, q.shape[1] // kv_heads * q.shape[2])
        lses, chunks, kept = math.prod(rows), size // chunk_size, kept_as(q)
        needed = lses + -(-lses * chunks * kept.itemsize // 4)
        if len(self._room) < needed:
            self._room = self._streams.pinned(1 << (needed - 1).bit_length(), torch.float32)
        shares = self._room[lses:needed].view(kept)[: lses * chunks].view(*rows, chunks)
        return Masses(shares, self._room[:lses].view(rows))

    def _attend(
        self, q: Tensor, blocks: Tensor, scaling: float, softcap: float | None, masses: Masses | None
    ) -> Answer:
        """Runs on the thread. The event also shows that earlier results were copied to the device."""
        self._asked.synchronize()
        started = time.perf_counter()
        into = Partial(self._out[: q.numel()].view(q.shape), self._lse[: q[..., 0].numel()].view(q.shape[:3]))
        chunk = blocks.shape[3] // masses.shares.shape[3] if masses else None
        counts = chunk is None or chunk in CHUNKS
        if self._kernel is not None and counts and self._kernel.takes(q, blocks, blocks):
            self._kernel.blocks(q, blocks, scaling, into, softcap, self._threads, masses)
        else:
            with torch.inference_mode():
                partial, counted = attend_blocks(q, blocks, scaling, softcap, chunk)
                for result, found in zip((*into, *(masses or ())), (*partial, *(counted or ())), strict=True):
                    result.copy_(found)
        self.seconds = time.perf_counter() - started
        return Answer(into, masses)

    def answer(self) -> Answer:
        """Wait for the thread; its results on the device, valid until the next `ask`.

        Raises:
            Whatever the thread raised.
        """
        running, self._running = self._running, None
        assert running is not None, "nothing was asked"
        (out, lse), masses = running.result()
        partial = Partial(self._brought(out), self._brought(lse))
        return Answer(partial, masses and Masses(*map(self._brought, masses)))

    def _brought(self, result: Tensor) -> Tensor:
        if not self._streams.asynchronous:
            return result
        here = torch.empty(result.shape, dtype=result.dtype, device=self._device)
        self._streams.copy(here, result, self._streams.current())
        return here
