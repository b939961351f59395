"""Where host memory lies that a GPU copies from: on large pages, and on the GPU's side of the machine.

Both are wishes to Linux, for memory that nobody has touched yet; where they cannot be met it lies where it would have
lain. Pinning and translating addresses cost by the page: 64 GiB are 16 million ordinary pages or 32,768 large ones. On
machines with several NUMA nodes memory of another node reaches a GPU through the link between the processors.
"""

import ctypes
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LARGE_PAGE = 2 << 20  # of x86-64, and of aarch64 with pages of 4 KiB
LEAST_BYTES = 33 << 20  # from 32 MiB on glibc maps memory apart from all other; smaller blocks lie among others'
SYSTEM = Path("/sys")


def ask_for_large_pages(rows: Tensor) -> None:
    """Of untouched, contiguous host memory, whatever lies in whole large pages."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    start, stop = rows.data_ptr(), rows.data_ptr() + rows.nbytes
    first, last = -(-start // LARGE_PAGE) * LARGE_PAGE, stop // LARGE_PAGE * LARGE_PAGE
    if advice is not None and rows.nbytes >= LEAST_BYTES:  # which leaves some whole ones
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), ctypes.c_int(advice))


@contextmanager
def near(device: torch.device) -> Iterator[None]:
    """Inside, memory that this thread is the first to touch lies on the node of a GPU, as long as there is some."""
    beside, before = _processors_beside(device), _allowed()
    if sys.platform != "linux" or not beside & before:
        yield
        return
    os.sched_setaffinity(0, beside & before)  # of this thread alone
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _allowed() -> set[int]:
    return os.sched_getaffinity(0) if sys.platform == "linux" else set()


def _processors_beside(device: torch.device) -> set[int]:
    """Those of the GPU's NUMA node; none where there is one node only, or nothing is known."""
    nodes = SYSTEM / "devices/system/node"
    if len(list(nodes.glob("node[0-9]*"))) < 2:
        return set()
    gpu: Any = torch.cuda.get_device_properties(device)
    try:
        address = f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"
        node = (SYSTEM / "bus/pci/devices" / address / "numa_node").read_text(encoding="ascii").strip()  # -1: not known
        listed = (nodes / f"node{node}" / "cpulist").read_text(encoding="ascii").strip()
        spans = [part.partition("-") for part in listed.split(",") if part]  # 0-15,32-47
        return {number for first, _, last in spans for number in range(int(first), int(last or first) + 1)}
    except (AttributeError, OSError, ValueError):  # an older torch, a machine that hides it
        return set()
