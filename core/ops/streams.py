"""Streams and events: what orders copies against computing, and nothing else of a device.

On CUDA this is a thin layer over torch's own; a processor computes and copies at once, in the order of the program.
Whatever hands tensors from one stream to another takes both from `of`, so that tests can put a simulated device there.
"""

import contextlib
from typing import Any, Protocol

import torch
from torch import Tensor

from core.ops.host_memory import near


class Event(Protocol):
    """A mark in a stream's work. One that was never recorded counts as passed."""

    def record(self, stream: Any) -> None:
        """Mark what the stream has been given so far, instead of what was marked before."""

    def synchronize(self) -> None:
        """The host waits until the mark is passed."""


class Stream(Protocol):
    """Work of a device, done in order."""

    def wait_event(self, event: Any) -> None:
        """What the stream is given from here on waits for what `event` marks now."""


class Streams(Protocol):
    """What a device offers."""

    @property
    def asynchronous(self) -> bool:
        """Whether the host runs ahead of the device."""

    def current(self) -> Stream:
        """The stream that computes."""

    def stream(self) -> Stream:
        """A new stream beside it."""

    def event(self) -> Event:
        """A new event."""

    def copy(self, into: Tensor, source: Tensor, stream: Stream) -> None:
        """Copy as a part of the stream's work. From or to pageable memory the host waits for what that needs."""

    def share(self, memory: Tensor, stream: Stream) -> None:
        """Freed memory, allocated by the computing stream, is given to others only when `stream` is done with it."""

    def pin(self, rows: Tensor) -> str:
        """Lock host memory in place; returns why it could not be, "" if it could."""

    def unpin(self, rows: Tensor) -> None:
        """Unlock it, when all that the device was given is done."""


def of(device: torch.device) -> Streams:
    """What the device offers."""
    return CudaStreams(device) if device.type == "cuda" else AtOnce()


def to_device(numbers: Tensor, device: torch.device) -> Tensor:
    """A few numbers, from host memory to the device; the host waits for nothing that the device has still to do.

    Copying from pageable memory would wait for all of it.
    """
    if not len(numbers):
        return torch.empty_like(numbers, device=device)
    return numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers.to(device)


class AtOnce:
    """A processor as a device: what it is given is done when the call returns, so there is nothing to wait for."""

    asynchronous = False

    def current(self) -> Stream:
        """The program."""
        return _Done()

    def stream(self) -> Stream:
        """The program again."""
        return _Done()

    def event(self) -> Event:
        """Passed whenever somebody asks."""
        return _Done()

    def copy(self, into: Tensor, source: Tensor, stream: Stream) -> None:
        """At once."""
        into.copy_(source)

    def share(self, memory: Tensor, stream: Stream) -> None:
        """Nobody works later."""

    def pin(self, rows: Tensor) -> str:
        """Never."""
        return "there is no GPU to pin it for"

    def unpin(self, rows: Tensor) -> None:
        """Nothing was pinned."""


class _Done:
    """A stream without work and an event that is passed."""

    def record(self, stream: Any) -> None:
        """All is done."""

    def synchronize(self) -> None:
        """All is done."""

    def wait_event(self, event: Any) -> None:
        """All is done."""


class CudaStreams:
    """torch's streams and events of one GPU."""

    asynchronous = True

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def current(self) -> Stream:
        """Torch's current stream of this thread."""
        return torch.cuda.current_stream(self._device)

    def stream(self) -> Stream:
        """One of torch's pool."""
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def event(self) -> Event:
        """One without timing."""
        return torch.cuda.Event()  # type: ignore[no-untyped-call]

    def copy(self, into: Tensor, source: Tensor, stream: Any) -> None:
        """Asynchronous where host memory is pinned."""
        with torch.cuda.stream(stream):
            into.copy_(source, non_blocking=True)

    def share(self, memory: Tensor, stream: Any) -> None:
        """Told to torch's allocator."""
        memory.record_stream(stream)

    def pin(self, rows: Tensor) -> str:
        """Registered where it lies: torch's own pinned tensors are rounded up to powers of two and never given back.

        Registering is its first touch, so it comes to lie near the GPU.
        """
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        size_bytes = rows.numel() * rows.element_size()
        with near(self._device):
            result = cudart.cudaHostRegister(rows.data_ptr(), size_bytes, 0)
        if not int(result):
            return ""
        # The runtime remembers its last error and would hold it against the next kernel: let it be this one.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self._device)
        return f"{cudart.cudaGetErrorString(result)} while {size_bytes >> 20} MiB were to be pinned"

    def unpin(self, rows: Tensor) -> None:
        """Copies that are on their way end first."""
        torch.cuda.synchronize(self._device)
        torch.cuda.cudart().cudaHostUnregister(rows.data_ptr())  # type: ignore[no-untyped-call]
