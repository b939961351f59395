"""Compiles small_rows.cpp on first use, for this processor."""

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from filelock import FileLock

from core.ops.compilers import INSTALL, find_compiler

SOURCE = Path(__file__).with_name("small_rows.cpp")
INCLUDED = tuple(sorted(SOURCE.parent.glob("*.h")))
COMPILE_SECONDS = 600
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")


class NoKernel(Exception):
    """Why the kernel is not available; never shown as a problem to the user."""


def can_compile() -> bool:
    """Whether the kernel can be had on this machine, as far as one can tell without trying."""
    return find_compiler() is not None


def cache_folder(kind: str = "kernels") -> Path:
    """Where what was made for this machine is kept: triforce-reader in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triforce-reader" / kind


def compiled(folder: Path) -> Path:
    """The library for this processor, compiled unless the folder has it.

    Raises:
        NoKernel, OSError, SubprocessError: it is not to be had.
    """
    compiler = find_compiler()
    if compiler is None:
        raise NoKernel(f"there is no C++ compiler: {INSTALL}")
    version = subprocess.run([*compiler.command, "--version"], capture_output=True, check=True).stdout
    about = [
        SOURCE.read_bytes(),
        *(header.read_bytes() for header in INCLUDED),
        version,
        _processor(),
        " ".join(compiler.flags).encode(),
    ]
    library = folder / f"small_rows-{hashlib.sha256(b'|'.join(about)).hexdigest()[:16]}{SUFFIX}"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(library.with_suffix(".lock")), tempfile.TemporaryDirectory(dir=folder) as scratch:
            if library.exists():  # another process has compiled it meanwhile
                return library
            built = Path(scratch) / library.name
            caches = {f"ZIG_{kind}_CACHE_DIR": scratch for kind in ("GLOBAL", "LOCAL")}
            subprocess.run(
                [*compiler.command, *compiler.flags, "-shared", str(SOURCE), "-o", str(built)],
                env={**os.environ, **caches},
                capture_output=True,
                check=True,
                timeout=COMPILE_SECONDS,
            )
            built.replace(library)
    return library


def _processor() -> bytes:
    """What the flags for the processor at hand depend on: machines may share a cache folder, or get another's."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = info.read_bytes().splitlines()
        return b"".join(sorted({line for line in lines if line.startswith((b"model name", b"flags", b"Features"))}))
    if sys.platform == "darwin":  # where platform.processor() says no more than arm
        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(asked, capture_output=True, check=True).stdout
    return f"{platform.machine()} {platform.processor()}".encode()
