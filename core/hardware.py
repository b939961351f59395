"""What the machine has: processors, memory, devices. Reads, never decides."""

import contextlib
import ctypes
import gc
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class Gpu:
    """One CUDA device."""

    name: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """What planning needs to know."""

    cpu: str
    num_cores: int
    ram_bytes: int
    free_ram_bytes: int
    gpus: tuple[Gpu, ...]


def this_machine() -> Machine:
    """Look at the machine we run on."""
    gpus = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        gpus.append(Gpu(torch.cuda.get_device_name(index), total, free))
    total_ram, free_ram = _ram_bytes()
    return Machine(_cpu_name(), _num_cores(), total_ram, free_ram, tuple(gpus))


def gpus_in_words(count: int) -> str:
    """no GPU, one GPU, 3 GPUs."""
    return "no GPU" if count == 0 else "one GPU" if count == 1 else f"{count} GPUs"


def _num_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # absent on macOS and Windows
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _ram_bytes() -> tuple[int, int]:
    """Total and available RAM. Where the system does not say what is available, the total stands for both."""
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        rows = dict(line.split(":", 1) for line in meminfo.read_text(encoding="utf-8").splitlines() if ":" in line)
        total = int(rows["MemTotal"].split()[0]) * 1024
        return total, int(rows.get("MemAvailable", rows["MemTotal"]).split()[0]) * 1024
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return total, total
    return 8 << 30, 8 << 30


def free_memory_bytes() -> int:
    """RAM that is free now."""
    return _ram_bytes()[1]


def cap_memory(device: torch.device, gib: float | None) -> None:
    """Let this process take at most `gib` of a CUDA device; None: all of it. On a processor nothing is enforced."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        share = 1.0 if gib is None else min(1.0, gib * (1 << 30) / total)
        torch.cuda.set_per_process_memory_fraction(share, device)


def return_memory() -> None:
    """Give back what nobody uses any more, to the system and to the devices. Cost: a full garbage collection.

    glibc keeps freed blocks below 32 MB for itself: of a model of 240 MB nothing went back before it was asked to.
    """
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # absent in other C libraries
        if trim is not None:
            trim(0)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory this process has used: on CUDA the allocator's peak, else the peak resident set (0 if unknown)."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return _status_bytes("VmHWM")


def used_memory_bytes(device: torch.device) -> int:
    """Memory this process uses now: on CUDA what the allocator gave out, else the resident set (0 if unknown)."""
    return int(torch.cuda.memory_allocated(device)) if device.type == "cuda" else _status_bytes("VmRSS")


def _status_bytes(field: str) -> int:
    status = Path("/proc/self/status")
    if not status.is_file():
        return 0
    rows = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines() if ":" in line)
    return int(rows[field].split()[0]) * 1024


def reset_peak_memory() -> None:
    """Start a new peak for `peak_memory_bytes`, where the system can (Linux, CUDA)."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):  # not Linux, or not allowed: the peak stays that of the whole process
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
