"""Streams and events: they order copies against computing.

On CUDA this is a thin layer over torch; a processor computes and copies at once, in program order. All code that moves
tensors between streams gets its streams from `of`, so that tests can simulate a device there.
"""

import contextlib
import logging
from typing import Any

import torch
from torch import Tensor

from core.ops.host_memory import near

log = logging.getLogger(__name__)


class Done:
    """A stream without work, and an event that has passed; those of CUDA are torch's."""

    def record(self, stream: Any) -> None:
        """Mark the work that the stream has been given so far; replaces the earlier mark. An event's."""

    def synchronize(self) -> None:
        """Block the host until the mark is passed; one that was never recorded counts as passed. An event's."""

    def wait_event(self, event: Any) -> None:
        """Later work waits for the mark that `event` has now. A stream's."""


class Streams:
    """The streams, events and memory operations of a device: of a processor, whose work is done when a call returns."""

    asynchronous = False  # whether the host runs ahead of the device

    def current(self) -> Any:
        """The stream that computes."""
        return Done()

    def stream(self) -> Any:
        """A new stream beside the computing one."""
        return Done()

    def event(self) -> Any:
        """A new event."""
        return Done()

    def copy(self, into: Tensor, source: Tensor, stream: Any) -> None:
        """Copy as part of the stream's work. With pageable memory the host waits for the copy."""
        into.copy_(source)

    def share(self, memory: Tensor, stream: Any) -> None:
        """Reserve freed memory of the computing stream until `stream` has finished with it."""

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        """A small buffer of host memory, pinned for a GPU: uninitialised, [size]."""
        return torch.empty(size, dtype=dtype)

    def mapped(self, rows: Tensor) -> Tensor:
        """A copy of rows in host memory, as a tensor of the device, which reads it there: slow, and without room."""
        return rows

    def pin(self, rows: Tensor) -> str:
        """Lock host memory in place; returns why that failed, "" on success. Of large memory: it locks whole pages."""
        return "there is no GPU to pin it for"

    def unpin(self, rows: Tensor) -> None:
        """Unlock it after all work given to the device is done."""


class PinnedArray:
    """Pinned bytes [n], as torch takes them for memory of a GPU; they live as long as the tensor made of this."""

    def __init__(self, rows: Tensor) -> None:
        self.rows, place = rows, (rows.data_ptr(), False)
        self.__cuda_array_interface__ = {"shape": (len(rows),), "typestr": "|u1", "data": place, "version": 3}


class CudaStreams(Streams):
    """torch's streams and events of one GPU."""

    asynchronous = True

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def current(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def stream(self) -> Any:
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def event(self) -> Any:
        return torch.cuda.Event()  # type: ignore[no-untyped-call]

    def copy(self, into: Tensor, source: Tensor, stream: Any) -> None:
        with torch.cuda.stream(stream):
            into.copy_(source, non_blocking=True)

    def share(self, memory: Tensor, stream: Any) -> None:
        memory.record_stream(stream)

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        """From torch's own pinned pages: the driver refuses to register a page twice, and heap memory shares pages."""
        return torch.empty(size, dtype=dtype, pin_memory=True)

    def mapped(self, rows: Tensor) -> Tensor:
        """The driver gives pinned memory one address for both sides, and torch takes any array by its address.

        Where one of them refuses, the rows lie on the device.
        """
        try:
            here = self.pinned(rows.nbytes, torch.uint8)
            here.view(rows.dtype).copy_(rows.flatten())
            return torch.as_tensor(PinnedArray(here), device=self._device).view(rows.dtype).view(rows.shape)
        except RuntimeError as error:
            log.warning("Embeddings take room on the GPU, which cannot read them in host memory: %s", error)
            return rows.to(self._device)

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


def of(device: torch.device) -> Streams:
    """The streams of a device."""
    return CudaStreams(device) if device.type == "cuda" else Streams()


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
