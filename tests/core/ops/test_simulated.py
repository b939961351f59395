"""The stand-in for a GPU is itself held to what CUDA does: late, in order within a stream, and only events between."""

from collections.abc import Callable

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from core.ops.transfer import HostRows
from tests.core.ops.simulated import DEVICE, SimulatedDevice, simulated


def test_what_is_computed_is_poison_until_somebody_reads_which_counts() -> None:
    x = torch.arange(4.0)
    with simulated(SimulatedDevice()) as device:
        y = (x + 1) * 2
        y[1:] += 1
        with _disable_current_modes():
            assert y.isnan().all() and len(device.computing.queue) > 0
        assert float(y.sum()) == 2 + 5 + 7 + 9
        assert device.waits.total() == 1 and not device.computing.queue
        int(x[0]), x.tolist(), x.cpu(), x.nonzero(), x[x > 0], torch.equal(x, x), bool((x > 0).any())
        assert device.waits.total() == 8
        assert x[1:].sum().shape == () and device.waits.total() == 8


@pytest.mark.parametrize("waits", [False, True])
def test_copies_of_a_side_stream_come_late_unless_an_event_is_waited_for(waits: bool) -> None:
    with simulated(SimulatedDevice()) as device:
        memory = HostRows((4,), torch.float32, DEVICE)
        memory.rows.fill_(3.0)
        slot, side, ready, arrived = torch.zeros(4, device=DEVICE), device.stream(), device.event(), device.event()
        ready.record(device.current())
        side.wait_event(ready)
        device.copy(slot, memory.rows, side)
        arrived.record(side)
        if waits:
            device.current().wait_event(arrived)
        assert float(slot.sum()) == (12.0 if waits else 0.0)


def test_a_copy_that_does_not_wait_may_come_too_early() -> None:
    """The slot is read for the first piece when the second one is copied into it."""
    with simulated(SimulatedDevice(eager=["side 1"])) as device:
        memory = HostRows((2, 4), torch.float32, DEVICE)
        memory.rows.copy_(torch.tensor([[1.0] * 4, [2.0] * 4]))
        slot, side, arrived = torch.empty(4, device=DEVICE), device.stream(), device.event()
        arrived.record(device.current())
        side.wait_event(arrived)
        device.copy(slot, memory.rows[0], side)
        arrived.record(side)
        device.current().wait_event(arrived)
        first = slot * 1
        device.copy(slot, memory.rows[1], side)
        assert first.tolist() == [2.0] * 4


@pytest.mark.parametrize("refused", ["", "no"])
def test_the_host_reads_poison_until_it_has_waited_but_for_pageable_memory(refused: str) -> None:
    with simulated(SimulatedDevice(refused=refused)) as device:
        memory, x, stored = HostRows((4,), torch.float32, DEVICE), torch.ones(4, device=DEVICE), device.event()
        assert x.device == DEVICE and memory.rows.device != DEVICE
        with pytest.raises(AssertionError, match="on the host and on the device"):
            x + memory.rows
        device.copy(memory.rows, x, device.current())
        stored.record(device.current())
        assert memory.rows.isnan().all() == (not refused)
        stored.synchronize()
        assert memory.rows.tolist() == [1.0] * 4
        device.copy(x, memory.rows, device.current())
        memory.rows.fill_(2.0)
        assert x.tolist() == [1.0 if refused else 2.0] * 4


def test_new_memory_may_be_written_to_for_its_last_owner() -> None:
    with simulated(SimulatedDevice()) as device:
        memory, side, arrived = HostRows((4,), torch.float32, DEVICE), device.stream(), device.event()
        memory.rows.fill_(1.0)
        slot = torch.empty(4, device=DEVICE)
        device.copy(slot, memory.rows, side)
        device.finish(side.queue[-1])
        arrived.record(side)
        device.current().wait_event(arrived)
        assert (slot * 1).isnan().all()


def freed_beside(device: SimulatedDevice, shared: bool = False) -> None:
    memory, side, x = HostRows((4,), torch.float32, DEVICE), device.stream(), torch.ones(4, device=DEVICE)
    if shared:
        device.share(x, side)
    device.copy(memory.rows, x, side)
    del x
    torch.ones(4, device=DEVICE)


def forgotten_pinned(device: SimulatedDevice) -> None:
    rows, x = torch.empty(4), torch.zeros(4, device=DEVICE)
    device.pin(rows)
    device.copy(x, rows, device.current())
    del rows
    torch.ones(4, device=DEVICE)
    device.synchronize()


@pytest.mark.parametrize(
    ("program", "eager", "fault"),
    [
        (freed_beside, [], "given back before side 1 had used them"),
        (forgotten_pinned, [], "given back before copies had used it"),
        (forgotten_pinned, ["computing"], "given back and never unpinned"),
    ],
)
def test_memory_given_back_too_soon_is_a_fault(
    program: Callable[[SimulatedDevice], None], eager: list[str], fault: str
) -> None:
    with pytest.raises(AssertionError, match=fault), simulated(SimulatedDevice(eager=eager)) as device:
        program(device)
    with simulated(SimulatedDevice()) as device:
        freed_beside(device, shared=True)
