"""Host memory for a GPU: what is asked of Linux when it is pinned, seen by a driver that is not there."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from core.ops import host_memory
from core.ops.transfer import HostRows

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux is asked")
CUDA = torch.device("cuda", 0)


class Driver:
    """Pins nothing; notes what held at that moment."""

    def __init__(self) -> None:
        self.seen: list[set[int]] = []  # processors that the calling thread may run on

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int) -> int:
        self.seen.append(os.sched_getaffinity(0))
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return made


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the machine have NUMA nodes with these processors, and the GPU lie on one of them."""

    def make(*nodes: str, gpu: str = "1") -> None:
        for number, processors in enumerate(nodes):
            folder = tmp_path / f"devices/system/node/node{number}"
            folder.mkdir(parents=True)
            (folder / "cpulist").write_text(processors + "\n", encoding="ascii")
        device = tmp_path / "bus/pci/devices/0000:81:00.0"
        device.mkdir(parents=True)
        (device / "numa_node").write_text(gpu + "\n", encoding="ascii")
        properties = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x81, pci_device_id=0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        monkeypatch.setattr(host_memory, "SYSTEM", tmp_path)

    return make


def test_memory_is_touched_first_from_the_gpu_s_own_node(driver: Driver, machine: Callable[..., None]) -> None:
    own = os.sched_getaffinity(0)
    if len(own) < 2:
        pytest.skip("one processor")
    last = max(own)
    machine(f"0-{last - 1}", f"{last}-{last},{last + 100}-{last + 107}")
    HostRows((4,), torch.float32, CUDA)
    assert driver.seen == [{last}]
    assert os.sched_getaffinity(0) == own, "and the thread is where it was"


@pytest.mark.parametrize(
    ("nodes", "gpu"), [(["0-999"], "0"), (["0-999", "1000-1001"], "-1"), (["0-999", "1000-1001"], "1")]
)
def test_where_no_node_is_known_or_none_of_its_processors_allowed_nothing_moves(
    driver: Driver, machine: Callable[..., None], nodes: list[str], gpu: str
) -> None:
    """One node; a GPU whose node is not told; a process that may not run there."""
    own = os.sched_getaffinity(0)
    machine(*nodes, gpu=gpu)
    HostRows((4,), torch.float32, CUDA)
    assert driver.seen == [own] and os.sched_getaffinity(0) == own
