"""Asks the system for large pages of host memory, and gives back what was freed.

Memory that is pinned for a GPU has none. Pinning would have fewer of them to visit (64 GiB are 16 million ordinary
pages), but touching memory for the first time took 6 to 15 s a GiB with them and 1.7 to 3.5 without (a virtual machine
with 2 busy cores, 2026-11-23); `python -m tests.gpu.checklist --steps pinning` measures both on the machine at hand.
"""

import ctypes
import sys

import torch

LARGE_PAGE = 2**21  # bytes
MADV_HUGEPAGE = 14


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
