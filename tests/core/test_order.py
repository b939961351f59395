"""What the search for races (`tests.core.order`) notices on a pretended GPU, and what it lets pass."""

from collections.abc import Callable

import pytest
import torch

from core.ops.transfer import HostRows
from tests.core.cuda_stubs import CUDA, PretendedGpu, pretended_gpu
from tests.core.order import Order, Thread


class Place:
    """Memory on the device and on the host, and a stream beside the computing one."""

    def __init__(self, gpu: PretendedGpu) -> None:
        self.order, self.gpu = gpu.order or Order(), gpu
        self.x, self.memory = torch.ones(4, device=CUDA), HostRows((4,), torch.float32, CUDA)
        self.side = torch.cuda.Stream(CUDA)

    def beside(self, into: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(self.side):
            into.copy_(source, non_blocking=True)

    def mark(self, stream: torch.cuda.Stream | None = None) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(stream or torch.cuda.current_stream(CUDA))
        return event


def stored(place: Place, *, computed: bool = True, arrived: bool = True) -> None:
    """Rows go to the host, which reads them."""
    if computed:
        place.side.wait_event(place.mark())
    place.beside(place.memory.rows, place.x)
    if arrived:
        place.mark(place.side).synchronize()
    place.memory.rows + 1


def brought(place: Place, *, free: bool = True, arrived: bool = True, read: bool = True) -> None:
    """Two pieces come into one buffer, one after the other."""
    place.memory.rows.fill_(2.0)
    if free:
        place.side.wait_event(place.mark())
    for _ in range(2):
        place.beside(place.x, place.memory.rows)
        if arrived:
            torch.cuda.current_stream(CUDA).wait_event(place.mark(place.side))
        place.x * 2
        if read:
            place.side.wait_event(place.mark())


def freed(place: Place, *, shared: bool) -> None:
    place.side.wait_event(place.mark())
    place.beside(place.memory.rows, place.x)
    if shared:
        place.x.record_stream(place.side)
    del place.x


def asked(place: Place, *, waits: bool) -> None:
    """A thread of the host reads what the device sent."""
    place.memory.rows.copy_(place.x, non_blocking=True)
    sent = place.mark()
    work = Thread(place.order).submit(lambda: (waits and sent.synchronize(), place.memory.rows * 2))
    work.result()


def never_unpinned(place: Place) -> None:
    rows = torch.empty(4)
    torch.cuda.cudart().cudaHostRegister(rows.data_ptr(), 16, 0)  # type: ignore[no-untyped-call]
    rows + 1


def halves(place: Place) -> None:
    """Two streams on two parts of one buffer, which meet in no number."""
    rows = torch.zeros(2, 8, device=CUDA)
    place.side.wait_event(place.mark())
    place.beside(rows[:, ::2], torch.ones(2, 4).pin_memory())
    rows[:, 1::2] += 1
    place.mark(place.side).synchronize()


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        (stored, ""),
        (lambda place: stored(place, computed=False), "reads what 0 writes"),
        (lambda place: stored(place, arrived=False), "the host reads what"),
        (brought, ""),
        (lambda place: brought(place, free=False), "writes what 0 writes"),
        (lambda place: brought(place, arrived=False), "0 reads what"),
        (lambda place: brought(place, read=False), "writes what 0 reads"),
        (lambda place: freed(place, shared=True), ""),
        (lambda place: freed(place, shared=False), "memory was given back before"),
        (lambda place: asked(place, waits=True), ""),
        (lambda place: asked(place, waits=False), "the host's thread reads what 0 writes"),
        (never_unpinned, "never unpinned"),
        (halves, ""),
    ],
)
def test_what_nothing_orders_is_a_fault_and_nothing_else(program: Callable[[Place], None], fault: str) -> None:
    order = Order()
    with pretended_gpu(order) as gpu:
        program(Place(gpu))
    assert (fault in order.faults[0]) if fault else not order.faults, order.faults
