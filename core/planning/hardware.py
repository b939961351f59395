"""The machine's processors, memory and devices. Reads, never decides."""

import gc
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from core.ops.host_memory import trim_heap
from core.ops.kernel_build import can_compile
from core.ops.threads import own_cores
from core.planning.nvidia import DriverAnswer, UnusedGpu, ask_driver, unused_gpu

# Of a GPU, with the first call to it; until then the driver calls it free (NVIDIA H200, 2026-11-26)
CONTEXT_BYTES = 550_000_000
CPU_INFO = Path("/proc/cpuinfo")
CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One CUDA device."""

    name: str
    total_bytes: int
    free_bytes: int


ABILITIES = {  # what Linux calls each, of x86 and of ARM
    "AVX2": {"avx2"},
    "AVX-512": {"avx512bw"},
    "VNNI": {"avx512_vnni", "avx_vnni"},
    "bf16": {"avx512_bf16", "bf16"},
    "AMX": {"amx_int8"},
    "NEON": {"asimd"},
    "dot products": {"asimddp"},
    "i8mm": {"i8mm"},
}


@dataclass(frozen=True, slots=True)
class Machine:
    """What planning needs to know about a machine."""

    cpu: str
    num_cores: int
    ram_bytes: int
    free_ram_bytes: int
    gpus: tuple[Gpu, ...]
    unused_gpu: UnusedGpu | None = None  # a GPU that torch cannot use, if there is no usable one
    compiles: bool = False  # whether the compiled kernel is available, which widens 16 bits in registers
    abilities: tuple[str, ...] = ()  # of the processor, for products of few bits; empty: unknown


def this_machine() -> Machine:
    """Inspect this machine. Of several GPUs only the current one gets a CUDA context."""
    gpus, unused = _gpus()
    total_ram, free_ram = _ram_bytes()
    return Machine(cpu_name(), len(own_cores()), total_ram, free_ram, gpus, unused, can_compile(), abilities())


def resolve_device(name: str) -> torch.device:
    """The device of a plan's name ("cpu", "cuda"), with its index, which some torch calls require."""
    return torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else torch.device(name)


def _gpus() -> tuple[tuple[Gpu, ...], UnusedGpu | None]:
    """GPUs that torch computes on, up to the first unusable one; if there is none, one that it cannot use."""
    # If CUDA is not ready, the count may come from the driver alone, even if that is too old to compute
    count, gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0, []
    answer = ask_driver() if count > 1 else DriverAnswer()
    free = {gpu.uuid: gpu.free_bytes and max(0, gpu.free_bytes - CONTEXT_BYTES) for gpu in answer.gpus}
    for index in range(count):
        properties = torch.cuda.get_device_properties(index)
        if not has_kernels((properties.major, properties.minor), torch.cuda.get_arch_list()):
            break
        free_bytes = free.get(str(properties.uuid)) if index != torch.cuda.current_device() else None
        if free_bytes is None:  # asking CUDA itself would take CONTEXT_BYTES for as long as this process lives
            free_bytes, _ = torch.cuda.mem_get_info(index)
        gpus.append(Gpu(properties.name, properties.total_memory, free_bytes))
    return tuple(gpus), None if gpus else unused_gpu(torch_lists=count > 0)


def has_kernels(capability: tuple[int, int], compiled_for: Sequence[str]) -> bool:
    """Whether a build of torch can compute on a GPU.

    Args:
        compiled_for: `torch.cuda.get_arch_list()`: sm_86 runs on 8.6 to 8.9, compute_90 on 9.0 and all newer ones.
    """
    for name in compiled_for:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", name)
        if match is None:
            continue
        built = (int(match[2]), int(match[3]))
        if built <= capability and (match[1] == "compute" or built[0] == capability[0]):
            return True
    return not compiled_for


def cpu_name() -> str:
    """The processor, as the system names it."""
    names = _cpu_info("model name")
    return names[0] if names else platform.processor() or platform.machine()


def abilities(info: Path = CPU_INFO) -> tuple[str, ...]:
    """Names of the processor's instructions for products of few bits; empty where the system does not list them."""
    flags = {flag for flags in _cpu_info("flags", "Features", info=info) for flag in flags.split()}
    return tuple(name for name, needed in ABILITIES.items() if flags & needed)


def _cpu_info(*fields: str, info: Path = CPU_INFO) -> list[str]:
    """What Linux tells of each core in these fields."""
    if not info.is_file():
        return []
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line.partition(":")[2].strip() for line in lines if line.startswith(fields)]


def _ram_bytes() -> tuple[int, int]:
    """Total and available RAM, at most what the control groups of this process allow."""
    memory = psutil.virtual_memory()
    total, available = int(memory.total), int(memory.available)
    for limit, used in _group_limits():
        total, available = min(total, limit), min(available, max(0, limit - used))
    return total, available


def _group_limits() -> list[tuple[int, int]]:
    """Limit and use, in bytes, of each control group around this process that limits memory; Linux only.

    Containers are limited by these, which the system's own numbers ignore. Pages of files that can be dropped at once
    do not count as used.
    """
    if not OWN_CGROUPS.is_file():
        return []
    limits = []
    for line in OWN_CGROUPS.read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            mount, names = CGROUPS, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount, names = CGROUPS / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        folder = mount / path.lstrip("/")
        for group in (folder, *folder.parents):
            if not group.is_relative_to(mount):
                break
            limit = _figure(group / names[0])
            if limit is not None:
                reclaimable = _figure(group / "memory.stat", names[2]) or 0
                limits.append((limit, max(0, (_figure(group / names[1]) or 0) - reclaimable)))
    return limits


def _figure(file: Path, row: str = "") -> int | None:
    """The number in a file of the system, or in its row of this name; None: there is none, or no limit ("max")."""
    try:
        lines = file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # the top has no limit, and a container cannot see the levels above it
        return None
    words = next((line.split() for line in lines if line.startswith(row)), [])
    return next((int(word) for word in words if word.isdecimal()), None)


def free_memory_bytes() -> int:
    """RAM that is free now."""
    return _ram_bytes()[1]


def cap_memory(device: torch.device, gib: float | None) -> None:
    """Let this process take at most `gib` of a CUDA device; None: all of it. No effect on a processor.

    Args:
        device: with its index, see `resolve_device`.
    """
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        share = 1.0 if gib is None else min(1.0, gib * (1 << 30) / total)
        torch.cuda.set_per_process_memory_fraction(share, device)


def return_memory() -> None:
    """Return unused memory to the system and to the devices. Cost: a full garbage collection."""
    gc.collect()
    trim_heap()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory this process has used: on CUDA the allocator's peak, else the peak resident set (0 if unknown)."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    kib = _figure(Path("/proc/self/status"), "VmHWM:")  # Linux
    return 1024 * kib if kib else int(getattr(psutil.Process().memory_info(), "peak_wset", 0))  # Windows


def used_memory_bytes(device: torch.device) -> int:
    """Memory this process uses now: on CUDA the allocator's allocations, else the resident set."""
    return int(torch.cuda.memory_allocated(device) if device.type == "cuda" else psutil.Process().memory_info().rss)
