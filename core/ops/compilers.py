"""The C++ compiler that makes small_rows.cpp: the system's, else Clang in the package ziglang.

Imports only the standard library: launch.py asks before anything is installed.
"""

import importlib.util
import platform
import shutil
import sys
from typing import NamedTuple

# What the processor at hand can do. Clang has no -march=native for ARM, and Zig's Clang none for any.
ON_ARM = platform.machine().lower() in ("aarch64", "arm64")
INSTALL = f"{sys.executable} -m pip install -r requirements-compiler.lock"  # what brings one
NATIVE, NATIVE_CLANG = "-march=native", "-mcpu=native" if ON_ARM else "-march=native"
COMMON = ("-O3", "-std=c++17", "-fPIC", "-pthread", "-Wno-psabi")


class Compiler(NamedTuple):
    """A command, and the flags that it needs.

    Every product that is added is fused with its addition, wherever it stands: then a row's sums do not depend on which
    of the kernel's loops computes it. GCC fuses across statements, unless it takes two operations for faster, which the
    parameter forbids; Clang fuses what stands in one expression.
    """

    command: tuple[str, ...]
    flags: tuple[str, ...]


def find_compiler() -> Compiler | None:
    """The compiler to use; None: there is none."""
    return system_compiler() or packaged_compiler()


def system_compiler() -> Compiler | None:
    """The system's own, on Linux: elsewhere the package's is the one to be had everywhere alike."""
    if sys.platform != "linux":
        return None
    if gcc := shutil.which("g++"):
        return Compiler((gcc,), (*COMMON, NATIVE, "-ffp-contract=fast", "--param=avoid-fma-max-bits=0"))
    if clang := shutil.which("clang++"):
        return Compiler((clang,), (*COMMON, NATIVE_CLANG, "-ffp-contract=on"))
    return None


def packaged_compiler() -> Compiler | None:
    """Clang in the package ziglang, with the headers and libraries of C and C++ for this system."""
    if importlib.util.find_spec("ziglang") is None:
        return None
    return Compiler(
        (sys.executable, "-m", "ziglang", "c++"),
        (*COMMON, "-mcpu=native", "-ffp-contract=on", "-fno-sanitize=all", "-g0"),
    )
