"""How many threads the kernel for few rows computes with, beside whatever else runs on the machine.

Its steps take fractions of a millisecond, and each ends when the last thread does. Where another program has one of the
cores, that thread does not run for milliseconds, and all others wait for it. So the kernel uses the cores that others
leave free: what the processor did in the last quarter of a second, less what this process did. One rule serves both
directions, without trials: a thread that would wait is given up, and comes back when its core is idle again. Torch's
own operations get the same number (`Threads.lend`): in decoding they are as small, and in reading, whose steps take
longer, two threads beside a busy program took 11 s for 16,384 tokens where one took 6.6 (2 cores, 3.5 s without it).
"""

import ctypes
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

CGROUPS = Path("/sys/fs/cgroup")
LOOK_SECONDS = 0.25  # between two looks; the system counts in hundredths of a second
# Cores: a thread is kept if others leave this much less than a core for it. A program that wants a whole core beside us
# gets two thirds of one while we use all of two; that must cost a thread, and a browser's bursts must not.
SPARE = 0.4


class Used(NamedTuple):
    """Seconds since any fixed moment: by the clock, idle ones of all cores together, and what this process used."""

    clock: float
    idle: float
    own: float


def used_now() -> Used:
    """Of the cores that this process may run on.

    Raises:
        OSError, psutil.Error, NotImplementedError: the system does not tell, or counts nothing (some sandboxes).
    """
    mine = own_cores()
    cores = psutil.cpu_times(percpu=True)
    if max(mine) >= len(cores) or not any(map(any, cores)):  # cores without a line of their own cannot be told apart
        raise NotImplementedError
    idle = sum(core.idle + getattr(core, "iowait", 0.0) for number, core in enumerate(cores) if number in mine)
    return Used(time.perf_counter(), idle, time.process_time())


def own_cores() -> set[int]:
    """Numbers of the cores that this process may run on."""
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def quota() -> float:
    """How many cores a container may keep busy, as Linux's control groups tell it; infinity: there is no limit."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(OSError, ValueError):
            most, period = " ".join((CGROUPS / name).read_text(encoding="ascii") for name in names).split()
            if most.isdecimal():  # else "max", or -1
                return int(most) / int(period)
    return math.inf


def free_cores(before: Used, now: Used, cores: float) -> float:
    """How many of so many cores other programs left free between two looks."""
    seconds = now.clock - before.clock
    others = cores - (now.idle - before.idle + now.own - before.own) / seconds
    return cores - min(max(others, 0.0), cores)


@lru_cache(maxsize=1)
def process_threads() -> "Threads":
    """The one that looks at the machine for this process."""
    return Threads()


class _Lent(NamedTuple):
    """What torch's number of threads was lowered to, and what it was before."""

    lowered: int
    most: int


THREADS_AT_START = torch.get_num_threads()  # as the process began, before any was lent
_lent = _Lent(0, 0)  # of the process: a thread that begins meanwhile takes the lower number for its own


def most_threads() -> int:
    """Torch's number of threads as the user has it: before it was lowered here."""
    number = torch.get_num_threads()
    return max(number, _lent.most) if number == _lent.lowered else number


def set_most_threads(number: int) -> None:
    """Set torch's number of threads as a user would: whatever it was lowered to before is no longer a loan."""
    global _lent
    _lent = _Lent(0, 0)
    torch.set_num_threads(number)


def _use(number: int) -> None:
    """Let torch's operations in this thread use so many threads."""
    global _lent
    if number == torch.get_num_threads():
        return
    most = most_threads()
    if number < most:
        _lent = _Lent(number, most)
    torch.set_num_threads(number)


class Threads:
    """The number of threads for a small parallel step; torch's own number is the most.

    Args:
        look: tells what was used; tests replace it and `clock`.
    """

    adapts = True  # of all; tests compute without

    def __init__(
        self,
        look: Callable[[], Used] = used_now,
        clock: Callable[[], float] = time.perf_counter,
        cores: float | None = None,
    ) -> None:
        self._look, self._clock = look, clock
        self._cores = min(len(own_cores()), quota()) if cores is None else cores
        self._free = self._cores
        self.changes = 0  # of the number: what passes took before tells nothing of those that follow
        self._last = 0
        self._before = self._try_look()
        self._next = clock() + LOOK_SECONDS

    def now(self) -> int:
        """At least 1. Looks at the machine four times a second at most; between two looks it costs 0.2 us."""
        if not Threads.adapts:
            return torch.get_num_threads()
        most = most_threads()
        if most == 1:
            return most
        if self._clock() >= self._next:
            self._next = self._clock() + LOOK_SECONDS
            before, self._before = self._before, self._try_look()
            if before and self._before:
                self._free = free_cores(before, self._before, self._cores)
        number = max(1, min(most, math.floor(self._free + SPARE)))
        if number != self._last:
            self.changes, self._last = self.changes + bool(self._last), number
        return number

    def lend(self) -> None:
        """Let torch's operations of the pass that begins use as many threads."""
        if Threads.adapts:
            _use(self.now())

    def _try_look(self) -> Used | None:
        try:
            return self._look()
        except (OSError, psutil.Error, NotImplementedError):
            return None


RUNTIMES = ("libgomp", "libomp", "libiomp5")  # GNU's, LLVM's and Intel's
ENTRIES = (  # in the order of `OpenMP` in thread_team.h
    "GOMP_parallel",
    "__kmpc_fork_call",
    "__kmpc_push_num_threads",
    "__kmpc_global_thread_num",
    "omp_get_thread_num",
    "omp_get_num_threads",
)
IF_LOADED = getattr(os, "RTLD_NOLOAD", 0) | getattr(os, "RTLD_LAZY", 0)  # Windows has loaded what torch has beside it


class OpenMP(ctypes.Structure):
    """`OpenMP` of thread_team.h: addresses; all null: the kernel has threads of its own."""

    _fields_ = tuple((name.strip("_"), ctypes.c_void_p) for name in ENTRIES)


def torch_openmp() -> OpenMP:
    """The entry points of the runtime that torch has loaded, as far as one can tell."""
    file = runtime_file()
    if file is None:
        return OpenMP()
    try:
        library = ctypes.CDLL(str(file), mode=IF_LOADED)
    except OSError:
        return OpenMP()
    found = [getattr(library, name, None) for name in ENTRIES]
    return OpenMP(*(ctypes.cast(entry, ctypes.c_void_p) if entry else None for entry in found))


def runtime_file(maps: Path = Path("/proc/self/maps")) -> Path | None:
    """The runtime's file; other packages may have loaded their own."""
    folder = Path(torch.__file__).parent
    if maps.is_file():
        lines = maps.read_text(encoding="utf-8").splitlines()
        loaded = {Path(parts[5].strip()) for line in lines if len(parts := line.split(maxsplit=5)) == 6}
        loaded = {file for file in loaded if file.name.startswith(RUNTIMES)}
    else:
        loaded = {
            file for name in RUNTIMES for file in folder.glob(f"lib/{name}*") if file.suffix in (".dylib", ".dll")
        }
    own = {file for file in loaded if folder in file.parents}
    return (own or loaded).pop() if len(own or loaded) == 1 else None
