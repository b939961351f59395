"""The compiler that makes the kernel, the library that it leaves, and whose threads the library computes in."""

import importlib.util
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from core.ops import compilers, kernel_build, threads
from core.ops.attention import attend
from core.ops.compilers import Compiler, find_compiler
from core.ops.kernel import small_rows
from core.ops.kernel_build import NoKernel, can_compile
from core.ops.kernel_structs import LinearSizes, packed
from core.ops.native import SmallRows
from core.ops.threads import OpenMP, Threads, runtime_file, torch_openmp


@pytest.mark.parametrize(
    ("system", "there", "found"),
    [
        ("linux", ("g++", "clang++", "ziglang"), "g++"),
        ("linux", ("clang++", "ziglang"), "clang++"),
        ("linux", ("ziglang",), "ziglang"),
        ("linux", (), None),
        ("darwin", ("g++", "clang++", "ziglang"), "ziglang"),  # g++ there may open a window that offers to install it
        ("win32", ("g++",), None),
    ],
)
def test_the_system_s_compiler_comes_first_under_linux_and_the_package_s_elsewhere(
    system: str, there: tuple[str, ...], found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(compilers.shutil, "which", lambda name: name if name in there else None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name in there else None)
    chosen = find_compiler()
    assert (chosen and found) == found and (chosen is None or found in chosen.command)


@pytest.mark.parametrize(("system", "expected"), [("darwin", b"Apple M3"), ("win32", b"AMD64 Intel64 Family 6")])
def test_systems_without_proc_tell_their_processor(
    system: str, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(kernel_build.Path, "is_file", lambda self: False)
    monkeypatch.setattr(kernel_build.platform, "machine", lambda: "AMD64")
    monkeypatch.setattr(kernel_build.platform, "processor", lambda: "Intel64 Family 6")
    told = subprocess.CompletedProcess([], 0, stdout=b"Apple M3")
    monkeypatch.setattr(kernel_build.subprocess, "run", lambda *_, **__: told)
    assert kernel_build._processor() == expected


def test_each_processor_and_compiler_has_a_library_and_two_programs_at_once_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made by stand-ins that note when they compile."""
    made, cache, log = [], tmp_path / "cache", tmp_path / "log"
    for processor, version in ((b"a", "1"), (b"b", "1"), (b"a", "2"), (b"a", "1")):
        stand_in = tmp_path / f"compiler{version}"
        stand_in.write_text(
            f'#!/bin/bash\n[ "$1" = --version ] && echo {version} || '
            f'{{ echo begun >> {log}; sleep 0.2; echo made > "${{@: -1}}"; }}\n'
        )
        stand_in.chmod(0o755)
        monkeypatch.setattr(kernel_build, "find_compiler", lambda command=str(stand_in): Compiler((command,), ("-O3",)))
        monkeypatch.setattr(kernel_build, "_processor", lambda own=processor: own)
        with ThreadPoolExecutor() as both:
            (library,) = set(both.map(kernel_build.compiled, [cache] * 2))
        made.append(library)
        assert library.read_text() == "made\n"
    assert len(set(made)) == 3 and made[0] == made[3] and log.read_text() == "begun\n" * 3
    assert len([file for file in cache.iterdir() if file.suffix != ".lock"]) == 3, "nothing else is left"


def test_where_there_is_a_compiler_there_is_a_kernel_and_one_that_fails_leaves_no_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not can_compile():
        pytest.skip("no compiler here")
    small_rows()  # NoKernel skips all other tests of it
    bad = tmp_path / "bad.cpp"
    bad.write_text("this is not C++", encoding="utf-8")
    monkeypatch.setattr(kernel_build, "SOURCE", bad)
    with pytest.raises(NoKernel):
        small_rows(tmp_path / "cache")
    assert not list(tmp_path.rglob(f"*{kernel_build.SUFFIX}"))


@pytest.mark.usefixtures("kernel")
def test_a_kernel_that_computes_something_else_is_refused_and_a_right_one_is_checked_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copy = Path(shutil.copy(kernel_build.compiled(kernel_build.cache_folder()), tmp_path))
    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(SmallRows, "__call__", lambda self, q, k, v, scaling: attend(q, k, v, 1.01 * scaling))
            with pytest.raises(NoKernel, match="wrong results"):
                small_rows(tmp_path)
        small_rows(tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr("core.ops.kernel._check", lambda _: pytest.fail("it was checked already"))
            small_rows(tmp_path)
        with copy.open("ab") as changed:
            changed.write(b"x")


# -------------------- torch's threads, or its own

OWN = Path(torch.__file__).parent / "lib" / "libgomp.so.1"
OTHER = "/elsewhere/scikit_learn.libs/libgomp-e985bcbb.so.1.0.0"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ((OWN, OTHER, OWN, "/lib/libc.so.6"), OWN),  # as where scikit-learn is loaded, too
        (("/conda/lib/libomp.so",), Path("/conda/lib/libomp.so")),
        (("/a/libgomp.so.1", "/b/libgomp.so.1"), None),
    ],
)
def test_the_runtime_is_torch_s_though_another_package_brings_its_own(
    files: tuple[str | Path, ...], found: Path | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "".join(f"7feb2fad0000-7feb2fb00000 r-xp 00000000 00:00 0     {file}\n" for file in files) + "7f-8\n"
    )
    assert runtime_file(maps) == found
    lib = tmp_path / "torch" / "lib"  # without such a list it is the one beside torch
    lib.mkdir(parents=True)
    monkeypatch.setattr(threads.torch, "__file__", str(lib.parent / "__init__.py"))
    assert runtime_file(tmp_path / "none") is None
    for name in ("libiomp5md.dll", "libiomp5md.lib", "torch_cpu.dll"):
        (lib / name).touch()
    assert runtime_file(tmp_path / "none") == lib / "libiomp5md.dll"


def test_its_own_threads_compute_the_same(
    kernel: SmallRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Where a runtime does not load."""
    use_threads = request.getfixturevalue("threads")
    monkeypatch.setattr(Threads, "adapts", False)
    with monkeypatch.context() as patched:
        patched.setattr(threads, "runtime_file", lambda: tmp_path / "libgomp.so.1")
        assert not any(getattr(torch_openmp(), name) for name, _ in OpenMP._fields_)
    own = SmallRows(Path(shutil.copy(kernel.library._name, tmp_path / "other.so")), OpenMP())  # beside the first
    x, weight = torch.randn(7, 300), torch.randn(1000, 300)
    q, k, v = torch.randn(1, 6, 9, 64), *torch.randn(2, 1, 3, 3000, 64)
    panels = packed(weight, kernel.panel)
    layer = LinearSizes(panels.data_ptr(), None, 300, 1000, 0)
    product, attended, wrong = kernel.product(x, layer), kernel(q, k, v, 0.125), []

    def compute() -> None:
        wrong.extend("product" for _ in range(40) if not torch.equal(own.product(x, layer), product))
        wrong.extend("attention" for _ in range(1) if not torch.equal(own(q, k, v, 0.125), attended))

    for number in (1, 2, 3, 5, 2):
        use_threads(number)
        compute()
        callers = [threading.Thread(target=compute) for _ in range(2)]  # one has the threads, one computes alone
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert not wrong
