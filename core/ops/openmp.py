"""Torch's OpenMP threads, for the compiled kernel: those of two pools would wait for each other's cores."""

import ctypes
import os
from pathlib import Path

import torch

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
