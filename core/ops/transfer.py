"""Rows that cross between host memory and a device while the device computes.

A ring of device buffers receives pieces of host tensors in the order of their use, as far ahead as it has room; one
more buffer takes device rows to the host. Copies of each direction run on their own stream; events order them against
the computing stream, and nothing waits for the whole device. On a CPU the same code copies at once: the slow twin.
"""

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from core.ops import streams

PICKED_BYTES = 8 << 20  # of each buffer for chosen rows; the processor fills one while the other is copied


class HostRows:
    """Uninitialised host memory for rows; pinned for a GPU, because only then copies run beside computing.

    If the driver refuses, the memory stays pageable, slower and just as exact; `refused` says why.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        device_streams = streams.of(device)
        self.rows = torch.empty(tuple(shape), dtype=dtype)
        self.refused = device_streams.pin(self.rows)
        if not self.refused:
            weakref.finalize(self, device_streams.unpin, self.rows).atexit = False  # at exit the driver is closed first


class Pinning(NamedTuple):
    """Whether host memory is pinned, and if not all of it, why."""

    value: str
    because: str


def pinning(memories: Sequence[HostRows]) -> Pinning:
    """Whether the memories of several layers are pinned."""
    refused = [memory.refused for memory in memories if memory.refused]
    if not refused:
        return Pinning("pinned", "copies run beside computing")
    if len(refused) == len(memories):
        return Pinning("pageable", refused[0])
    part = f"{len(memories) - len(refused)} of {len(memories)} layers are pinned; then {refused[0]}"
    return Pinning("partly pinned", part)


class PrefetchRing:
    """Brings equally shaped host pieces to the device, takes device rows to the host, and picks rows there.

    A pass is `begin(groups)`, then for each group of pieces in order `take()`, use it, `release()`. Pieces must not
    change on the host between `begin` and their `release`.

    Args:
        shape: of a piece. group: pieces that are brought at once, at most.
    Device memory: `num_slots` groups to bring and one piece to store; on a CPU none to store.
    Host memory: two pinned buffers for chosen rows.
    """

    def __init__(
        self, shape: Sequence[int], dtype: torch.dtype, device: torch.device, num_slots: int = 3, group: int = 1
    ) -> None:
        own = self._streams = streams.of(device)
        self._bringing, self._storing = own.stream(), own.stream()
        self.group = group
        self._slots = [torch.empty((group, *shape), dtype=dtype, device=device) for _ in range(num_slots)]
        self._arrived = [own.event() for _ in self._slots]
        self._released = [own.event() for _ in self._slots]
        for slot, released in zip(self._slots, self._released, strict=True):
            released.record(own.current())  # earlier work of the device may still use this memory
            own.share(slot, self._bringing)
        self._packed = torch.empty(tuple(shape), dtype=dtype, device=device) if own.asynchronous else None
        if self._packed is not None:
            own.share(self._packed, self._storing)
        self._computed, self._read, self._stored = own.event(), own.event(), own.event()
        self._sources: list[Tensor] = []  # device rows on their way to the host, not yet known to be read
        self._buffers: list[Tensor] = []  # for chosen rows, from the first use on
        self._copied, self._turn = [own.event() for _ in range(2)], 0
        self._groups: Sequence[Tensor] = ()  # each [<= group, *shape]
        self._sent = self._taken = 0
        self._in_use = False  # a group was taken and not released
        self.bytes_brought = self.bytes_stored = 0  # host to device and back, in total

    def begin(self, groups: Sequence[Tensor]) -> None:
        """The groups of a pass, in order of use; drops what is left of the pass before. Copies begin at once."""
        if self._in_use:  # the pass before failed, and the device may still be reading
            self._let_go()
        self._bringing.wait_event(self._stored)  # the host pieces may still be written by `store`
        self._groups, self._sent, self._taken = groups, 0, 0
        for _ in self._slots:
            self._send()

    def _send(self) -> None:
        if self._sent == len(self._groups):
            return
        index, pieces = self._sent % len(self._slots), self._groups[self._sent]
        self._bringing.wait_event(self._released[index])
        self._streams.copy(self._slots[index][: len(pieces)], pieces, self._bringing)
        self._arrived[index].record(self._bringing)
        self.bytes_brought += pieces.nbytes
        self._sent += 1

    def take(self) -> Tensor:
        """The next group, on the device; valid until `release`."""
        assert self._taken < self._sent, f"group {self._taken} of {len(self._groups)} was not announced"
        index = self._taken % len(self._slots)
        self._streams.current().wait_event(self._arrived[index])
        self._in_use = True
        return self._slots[index][: len(self._groups[self._taken])]

    def release(self) -> None:
        """The program no longer needs the last group: its buffer takes the next one."""
        self._let_go()
        self._taken += 1
        self._send()

    def _let_go(self) -> None:
        self._released[self._taken % len(self._slots)].record(self._streams.current())
        self._in_use = False

    def store(self, into: Tensor, parts: Sequence[tuple[Any, Tensor]]) -> None:
        """Copy device rows into a host piece beside computing.

        Args:
            parts: where in the piece, and the rows for that place. Do not write or free them before `reclaim`; the
                ring keeps a reference until then.
        """
        self.bytes_stored += into.nbytes
        if self._packed is None:
            for where, rows in parts:
                into[where].copy_(rows)
            return
        self._computed.record(self._streams.current())
        self._storing.wait_event(self._computed)
        for where, rows in parts:
            self._streams.copy(self._packed[where], rows, self._storing)
        self._read.record(self._storing)
        self._streams.copy(into, self._packed, self._storing)
        self._stored.record(self._storing)
        self._sources += [rows for _, rows in parts]

    def reclaim(self) -> None:
        """Give the stored rows back to the program: later computation waits until they have been read."""
        if self._sources:
            self._streams.current().wait_event(self._read)
            self._sources.clear()

    def settle(self) -> None:
        """Wait until everything stored has arrived, before the processor reads it."""
        self._stored.synchronize()

    def pick(self, rows: Tensor, chosen: Tensor, into: Tensor) -> None:
        """Copy rows [R, W] with numbers `chosen` [N] int64, both in host memory, into device rows [N, W].

        All stores must have arrived. The processor gathers rows into two pinned buffers in turn; it waits only for
        earlier copies out of the buffer that is filled next.
        """
        if not self._streams.asynchronous:
            torch.index_select(rows, 0, chosen, out=into)
            return
        width = rows.shape[1]
        if not self._buffers:
            size = max(PICKED_BYTES // rows.itemsize, width)
            self._buffers = [self._streams.pinned(size, rows.dtype) for _ in self._copied]
        portion = self._buffers[0].numel() // width
        for start in range(0, len(chosen), portion):
            numbers = chosen[start : start + portion]
            buffer = self._buffers[self._turn][: len(numbers) * width].view(-1, width)
            copied, self._turn = self._copied[self._turn], 1 - self._turn
            copied.synchronize()
            torch.index_select(rows, 0, numbers, out=buffer)
            current = self._streams.current()
            self._streams.copy(into[start : start + portion], buffer, current)
            copied.record(current)
