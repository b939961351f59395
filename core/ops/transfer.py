"""Rows that cross between host memory and a device while the device computes.

A conveyor brings pieces of host tensors through a ring of device buffers, in the order in which they will be used and
as far ahead as the ring has room. On CUDA the copies run on a stream of their own; events order them against the
computing stream, and nothing waits for the whole device. On a CPU the same code copies at once: the slow twin.
"""

import contextlib
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class HostRows:
    """Uninitialised host memory for rows of one layer; pinned for CUDA, as only from there copies run beside computing.

    Ordinary memory is registered in place: torch's own pinned tensors are rounded up to powers of two and are not given
    back to the system. Where the driver refuses, the memory stays pageable, slower and as exact, and says why.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self._device = device
        self.rows = torch.empty(tuple(shape), dtype=dtype)
        self.size_bytes = self.rows.numel() * self.rows.element_size()
        self.refused = _pin(self.rows, device) if device.type == "cuda" else "there is no GPU to pin it for"
        if not self.refused:
            weakref.finalize(self, _unpin, self.rows, device).atexit = False  # the driver goes first then

    def to_device(self, rows: Tensor) -> Tensor:
        """A copy of small host rows on the device, without waiting for what it computes where that is possible."""
        if self._device.type != "cuda" or self.refused:
            return rows.to(self._device)
        return rows.pin_memory().to(self._device, non_blocking=True)


class Pinning(NamedTuple):
    """Whether host memory is pinned, and if not all of it, why."""

    value: str
    because: str


def pinning(memories: Sequence[HostRows]) -> Pinning:
    """How the memories of several layers lie."""
    refused = [memory.refused for memory in memories if memory.refused]
    if not refused:
        return Pinning("pinned", "copies run beside computing")
    if len(refused) == len(memories):
        return Pinning("pageable", refused[0])
    part = f"{len(memories) - len(refused)} of {len(memories)} layers are pinned; then {refused[0]}"
    return Pinning("partly pinned", part)


def _pin(rows: Tensor, device: torch.device) -> str:
    """Lock memory in place; returns why it could not be, "" if it could."""
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    size_bytes = rows.numel() * rows.element_size()
    result = cudart.cudaHostRegister(rows.data_ptr(), size_bytes, 0)
    if not int(result):
        return ""
    # The runtime remembers its last error and would hold it against the next kernel, whatever that is: let it be this.
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device=device)
    return f"{cudart.cudaGetErrorString(result)} while {size_bytes >> 20} MiB were to be pinned"


def _unpin(rows: Tensor, device: torch.device) -> None:
    """The caches that used the rows are gone; copies that are on their way end first."""
    torch.cuda.synchronize(device)
    torch.cuda.cudart().cudaHostUnregister(rows.data_ptr())  # type: ignore[no-untyped-call]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


class Conveyor:
    """Brings equally shaped host pieces to the device, and takes device tensors to the host.

    One pass is `begin(pieces)`, then for each piece in order `take()`, use it, `release()`. Pieces must not change on
    the host between `begin` and their `release`.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device, num_slots: int = 3) -> None:
        self._device = device
        self._slots = [torch.empty(tuple(shape), dtype=dtype, device=device) for _ in range(num_slots)]
        cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]
        self._arrived = [_event() for _ in self._slots] if cuda else []
        self._released = [_event() for _ in self._slots] if cuda else []
        self._stored = _event() if cuda else None
        self._pieces: Sequence[Tensor] = ()
        self._sent = self._taken = 0
        self.bytes_brought = self.bytes_stored = 0  # host to device and back, since it was made

    @property
    def nbytes(self) -> int:
        """Device memory of the ring."""
        return sum(slot.numel() * slot.element_size() for slot in self._slots)

    def begin(self, pieces: Sequence[Tensor]) -> None:
        """The pieces of a pass, in order of use; what is left of the pass before is forgotten. Copies begin at once."""
        self._pieces, self._sent, self._taken = pieces, 0, 0
        for _ in self._slots:
            self._send()

    def _send(self) -> None:
        if self._sent == len(self._pieces):
            return
        index, piece = self._sent % len(self._slots), self._pieces[self._sent]
        if self._stream is None:
            self._slots[index].copy_(piece)
        else:
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(self._released[index])  # an event never recorded holds nobody up
                self._slots[index].copy_(piece, non_blocking=True)
                self._arrived[index].record(self._stream)
        self.bytes_brought += piece.numel() * piece.element_size()
        self._sent += 1

    def take(self) -> Tensor:
        """The next piece, on the device; valid until `release`."""
        assert self._taken < self._sent, f"piece {self._taken} of {len(self._pieces)} was not announced"
        index = self._taken % len(self._slots)
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_event(self._arrived[index])
        return self._slots[index]

    def release(self) -> None:
        """The piece taken last is not needed any more: its buffer takes the next one."""
        if self._stream is not None:
            self._released[self._taken % len(self._slots)].record(torch.cuda.current_stream(self._device))
        self._taken += 1
        self._send()

    def store(self, rows: Tensor, into: Tensor) -> None:
        """Copy device rows into host memory beside computing; `rows` may not be written to afterwards."""
        self.bytes_stored += rows.numel() * rows.element_size()
        if self._stream is None or self._stored is None:
            into.copy_(rows)
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            into.copy_(rows, non_blocking=True)
            self._stored.record(self._stream)
        rows.record_stream(self._stream)

    def settle(self) -> None:
        """Wait until everything stored has arrived, before the processor reads it."""
        if self._stored is not None:
            self._stored.synchronize()
