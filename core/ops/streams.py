"""Streams and events: they order copies against computing.

On CUDA this is a thin layer over torch; a processor computes and copies at once, in program order. All code that moves
tensors between streams gets its streams from `of`, so that tests can simulate a device there.
"""

import contextlib
from typing import Any, Protocol

import torch
from torch import Tensor

from core.ops.host_memory import near


class Event(Protocol):
    """A mark in a stream's work. An event that was never recorded counts as passed."""

    def record(self, stream: Any) -> None:
        """Mark the work that the stream has been given so far; replaces the earlier mark."""

    def synchronize(self) -> None:
        """Block the host until the mark is passed."""


class Stream(Protocol):
    """Work of a device, done in order."""

    def wait_event(self, event: Any) -> None:
        """Later work of the stream waits for the mark that `event` has now."""


class Streams(Protocol):
    """The streams, events and memory operations of a device."""

    @property
    def asynchronous(self) -> bool:
        """Whether the host runs ahead of the device."""

    def current(self) -> Stream:
        """The stream that computes."""

    def stream(self) -> Stream:
        """A new stream beside the computing one."""

    def event(self) -> Event:
        """A new event."""

    def copy(self, into: Tensor, source: Tensor, stream: Stream) -> None:
        """Copy as part of the stream's work. With pageable memory the host waits for the copy."""

    def share(self, memory: Tensor, stream: Stream) -> None:
        """Reserve freed memory of the computing stream until `stream` has finished with it."""

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        """A small buffer of host memory, pinned for a GPU: uninitialised, [size]."""

    def pin(self, rows: Tensor) -> str:
        """Lock host memory in place; returns why that failed, "" on success. Of large memory: it locks whole pages."""

    def unpin(self, rows: Tensor) -> None:
        """Unlock it after all work given to the device is done."""


def of(device: torch.device) -> Streams:
    """The streams of a device."""
    return CudaStreams(device) if device.type == "cuda" else AtOnce()


def to_device(numbers: Tensor, device: torch.device) -> Tensor:
    """Copy a few numbers from host memory to the device; the host does not wait for the device's work.

    A copy from pageable memory would wait for all of it.
    """
    if not len(numbers):
        return torch.empty_like(numbers, device=device)
    return pinned(numbers, device).to(device, non_blocking=True)


def pinned(numbers: Tensor, device: torch.device) -> Tensor:
    """A few numbers in host memory, from where the device can copy them while the host goes on."""
    return numbers.pin_memory() if device.type == "cuda" else numbers


class AtOnce:
    """A processor as a device: work is done when the call returns, so nothing waits."""

    asynchronous = False

    def current(self) -> Stream:
        return _Done()

    def stream(self) -> Stream:
        return _Done()

    def event(self) -> Event:
        return _Done()

    def copy(self, into: Tensor, source: Tensor, stream: Stream) -> None:
        into.copy_(source)

    def share(self, memory: Tensor, stream: Stream) -> None:
        """All work is done already."""

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(size, dtype=dtype)

    def pin(self, rows: Tensor) -> str:
        return "there is no GPU to pin it for"

    def unpin(self, rows: Tensor) -> None:
        """Nothing was pinned."""


class _Done:
    """A stream without work, and an event that has passed."""

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
        return torch.cuda.current_stream(self._device)

    def stream(self) -> Stream:
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def event(self) -> Event:
        return torch.cuda.Event()  # type: ignore[no-untyped-call]

    def copy(self, into: Tensor, source: Tensor, stream: Any) -> None:
        with torch.cuda.stream(stream):
            into.copy_(source, non_blocking=True)

    def share(self, memory: Tensor, stream: Any) -> None:
        memory.record_stream(stream)

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        """From torch's own pinned pages: the driver refuses to register a page twice, and heap memory shares pages."""
        return torch.empty(size, dtype=dtype, pin_memory=True)

    def pin(self, rows: Tensor) -> str:
        """Register the memory in place: torch's own pinned tensors are rounded up to powers of two and never freed.

        Registering touches the memory first, so it comes to lie near the GPU.
        """
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        size_bytes = rows.numel() * rows.element_size()
        with near(self._device):
            result = cudart.cudaHostRegister(rows.data_ptr(), size_bytes, 0)
        if not int(result):
            return ""
        # The runtime keeps its last error and would report it at the next kernel: let this call fetch it.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self._device)
        return f"{cudart.cudaGetErrorString(result)} while {size_bytes >> 20} MiB were to be pinned"

    def unpin(self, rows: Tensor) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.cudart().cudaHostUnregister(rows.data_ptr())  # type: ignore[no-untyped-call]
