"""Places host memory that a GPU copies from on the GPU's side of the machine; gives back what was freed.

This is a preference given to Linux, for memory that nobody has touched yet; where it cannot be met, the memory lies
where it would have lain. On machines with several NUMA nodes a GPU reaches another node's memory through the link
between the processors.

Pinned memory has no large pages. Pinning would have fewer of them to visit (64 GiB are 16 million ordinary pages), but
touching memory for the first time took 6 to 15 s a GiB with them and 1.7 to 3.5 without (a virtual machine with 2 busy
cores, 2026-11-23); `python -m tests.gpu.checklist --steps pinning` measures both on the machine at hand.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

SYSTEM = Path("/sys")
LARGE_PAGE = 2**21  # bytes
MADV_HUGEPAGE = 14


@contextmanager
def near(device: torch.device) -> Iterator[None]:
    """Inside, memory that this thread touches first lies on the GPU's node, as long as that node has some."""
    beside, before = _processors_beside(device), _allowed()
    if sys.platform != "linux" or not beside & before:
        yield
        return
    os.sched_setaffinity(0, beside & before)  # of this thread only
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _allowed() -> set[int]:
    return os.sched_getaffinity(0) if sys.platform == "linux" else set()


def _processors_beside(device: torch.device) -> set[int]:
    """The processors of the GPU's NUMA node; empty if there is only one node or nothing is known."""
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


def in_large_pages(rows: torch.Tensor) -> None:
    """Ask for pages of 2 MB under `rows` [...], which nobody has touched yet. Only Linux has them to give.

    A processor that streams keys and values, or weights, looks up fewer pages, and asks for rows ahead across their
    borders (a row of 8,960 x 1,536 weights in Q4_K takes 0.85 of the time).
    """
    if sys.platform == "linux" and rows.device.type == "cpu":
        first = -(-rows.data_ptr() // LARGE_PAGE) * LARGE_PAGE
        pages = (rows.data_ptr() + rows.nbytes - first) // LARGE_PAGE
        if pages > 0:
            ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(pages * LARGE_PAGE), MADV_HUGEPAGE)


def trim_heap() -> None:
    """Return freed memory to the system.

    glibc keeps freed blocks below 32 MB for itself: without this call it returned nothing of a model of 240 MB.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # absent in other C libraries
        if trim is not None:
            trim(0)
