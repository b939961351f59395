"""Compiles small_rows.cpp on first use, by the system's compiler, for this processor."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("small_rows.cpp")
INCLUDED = tuple(sorted(SOURCE.parent.glob("*.h")))
# The parameter fuses every multiplication with its addition, even where GCC thinks that two operations are faster, so
# that a row's sums do not depend on which of the kernel's loops computes it.
FLAGS = ["-O3", "-march=native", "-ffp-contract=fast", "--param=avoid-fma-max-bits=0", "-fopenmp", "-fPIC"]
FLAGS += ["-std=c++17", "-Wno-psabi"]
COMPILER, COMPILE_SECONDS = "g++", 600


class NoKernel(Exception):
    """Why the kernel is not available; never shown as a problem to the user."""


def can_compile() -> bool:
    """Whether the kernel can be had on this machine, as far as one can tell without trying."""
    return sys.platform == "linux" and shutil.which(COMPILER) is not None


def cache_folder(kind: str = "kernels") -> Path:
    """Where what was made for this machine is kept: triforce-reader in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triforce-reader" / kind


def compiled(folder: Path) -> Path:
    """The library for this processor, compiled unless the folder has it.

    Raises:
        NoKernel, OSError, SubprocessError: it is not to be had.
    """
    compiler = shutil.which(COMPILER)
    if compiler is None or os.name != "posix":
        raise NoKernel(f"no C++ compiler ({COMPILER}) on this machine")
    threads = _thread_library()
    version = subprocess.run([compiler, "-dumpfullversion", "-dumpmachine"], capture_output=True, check=True).stdout
    about = [
        SOURCE.read_bytes(),
        *(header.read_bytes() for header in INCLUDED),
        version,
        _processor(),
        str(threads).encode(),
        " ".join(FLAGS).encode(),
    ]
    library = folder / f"small_rows-{hashlib.sha256(b'|'.join(about)).hexdigest()[:16]}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:  # another process may do the same
            part, built = Path(scratch) / "part.o", Path(scratch) / library.name
            for command in (
                [compiler, *FLAGS, "-c", str(SOURCE), "-o", str(part)],
                [compiler, "-shared", str(part), str(threads), "-o", str(built)],  # only torch's OpenMP runtime
            ):
                subprocess.run(command, capture_output=True, check=True, timeout=COMPILE_SECONDS)
            built.replace(library)
    return library


def _thread_library(maps: Path = Path("/proc/self/maps")) -> Path:
    """The OpenMP runtime that torch has loaded; other packages may have loaded their own."""
    if not maps.is_file():
        raise NoKernel("made for Linux only")
    loaded = {line.split(maxsplit=5)[5] for line in maps.read_text(encoding="utf-8").splitlines() if "libgomp" in line}
    own = {file for file in loaded if Path(torch.__file__).parent in Path(file).parents}
    if len(own or loaded) != 1:
        raise NoKernel("torch does not run on GNU's OpenMP threads here")
    return Path((own or loaded).pop().strip())


def _processor() -> bytes:
    """What -march=native depends on: machines may share a cache folder."""
    lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    return b"".join(sorted({line for line in lines if line.startswith((b"model name", b"flags", b"Features"))}))
