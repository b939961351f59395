"""The stand-in for a GPU is itself held to what CUDA does: late, in order within a stream, and only events between."""

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from core.ops.transfer import HostRows
from tests.core.ops.simulated import DEVICE, SimulatedDevice, simulated


def test_what_is_computed_is_poison_until_somebody_reads() -> None:
    x = torch.arange(4.0)
    with simulated(SimulatedDevice()) as device:
        y = (x + 1) * 2
        y[1:] += 1
        with _disable_current_modes():
            assert y.isnan().all() and len(device.computing.queue) > 0
        before = device.waits.total()
        assert float(y.sum()) == 2 + 5 + 7 + 9
        assert device.waits.total() == before + 1 and not device.computing.queue


def test_copies_of_a_side_stream_come_late_unless_an_event_is_waited_for() -> None:
    for waits in (False, True):
        with simulated(SimulatedDevice()) as device:
            memory = HostRows((4,), torch.float32, DEVICE)
            memory.rows.fill_(3.0)
            slot, side, arrived = torch.zeros(4, device=DEVICE), device.stream(), device.event()
            ready = device.event()
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


def test_the_host_reads_poison_until_it_has_waited() -> None:
    with simulated(SimulatedDevice()) as device:
        memory, x, stored = HostRows((4,), torch.float32, DEVICE), torch.ones(4, device=DEVICE), device.event()
        device.copy(memory.rows, x, device.current())
        stored.record(device.current())
        assert memory.rows.isnan().all()
        stored.synchronize()
        assert memory.rows.tolist() == [1.0] * 4


def test_pageable_memory_is_copied_before_the_call_returns() -> None:
    with simulated(SimulatedDevice(refused="no")) as device:
        memory, x = HostRows((4,), torch.float32, DEVICE), torch.ones(4, device=DEVICE)
        device.copy(memory.rows, x, device.current())
        assert memory.rows.tolist() == [1.0] * 4
        device.copy(x, memory.rows, device.current())
        memory.rows.fill_(2.0)
        assert x.tolist() == [1.0] * 4


def test_host_and_device_do_not_mix() -> None:
    with simulated(SimulatedDevice()):
        memory, x = HostRows((4,), torch.float32, DEVICE), torch.ones(4, device=DEVICE)
        assert x.device == DEVICE and memory.rows.device != DEVICE
        with pytest.raises(AssertionError, match="on the host and on the device"):
            x + memory.rows


def test_new_memory_may_be_written_to_for_its_last_owner() -> None:
    with simulated(SimulatedDevice()) as device:
        memory, slot, side, arrived = HostRows((4,), torch.float32, DEVICE), None, device.stream(), device.event()
        memory.rows.fill_(1.0)
        slot = torch.empty(4, device=DEVICE)
        device.copy(slot, memory.rows, side)
        device.finish(side.queue[-1])
        arrived.record(side)
        device.current().wait_event(arrived)
        assert (slot * 1).isnan().all()


@pytest.mark.parametrize("shared", [False, True])
def test_memory_given_back_under_a_side_stream_is_a_fault(shared: bool) -> None:
    device = SimulatedDevice()

    def program() -> None:
        with simulated(device):
            memory, side = HostRows((4,), torch.float32, DEVICE), device.stream()
            x = torch.ones(4, device=DEVICE)
            if shared:
                device.share(x, side)
            device.copy(memory.rows, x, side)
            del x
            torch.ones(4, device=DEVICE)

    if shared:
        program()
    else:
        with pytest.raises(AssertionError, match="given back before side 1 had used them"):
            program()


@pytest.mark.parametrize(
    ("copied", "fault"), [(False, "given back before copies had used it"), (True, "given back and never unpinned")]
)
def test_pinned_memory_that_is_only_forgotten_is_a_fault(copied: bool, fault: str) -> None:
    device = SimulatedDevice(eager=["computing"] if copied else [])

    def program() -> None:
        with simulated(device):
            rows, x = torch.empty(4), torch.zeros(4, device=DEVICE)
            device.pin(rows)
            device.copy(x, rows, device.current())
            del rows
            torch.ones(4, device=DEVICE)
            device.synchronize()

    with pytest.raises(AssertionError, match=fault):
        program()


def test_every_read_of_the_host_counts() -> None:
    with simulated(SimulatedDevice()) as device:
        x = torch.ones(4, device=DEVICE)
        int(x[0]), x.tolist(), x.cpu(), x.nonzero(), x[x > 0], torch.equal(x, x), bool((x > 0).any())
        assert device.waits.total() == 7
        assert x[1:].sum().shape == () and device.waits.total() == 7
