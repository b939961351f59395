"""Bandwidth of a link: a plain copy from host memory to a device, timed."""

import time

import torch

from core.ops.transfer import HostRows

LINK_BYTES = 64 << 20  # size of the timed copy: larger than processor caches; 2.6 ms at 25 GB/s


def link_rate(device: torch.device, size_bytes: int) -> tuple[float, str]:
    """Bytes per second of a plain copy from host memory to a device, the median of five; why it was not pinned."""
    memory = HostRows((size_bytes,), torch.uint8, device)
    there, here = memory.rows.fill_(1), torch.empty(size_bytes, dtype=torch.uint8, device=device)
    seconds = []
    for _ in range(6):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        here.copy_(there, non_blocking=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - started)
    return size_bytes / sorted(seconds[1:])[2], memory.refused
