"""Which compiler makes the kernel; other compilers and other systems, where the package ziglang is installed."""

import importlib.util
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from core.ops import compilers, kernel_build
from core.ops.compilers import Compiler, find_compiler


@pytest.mark.parametrize(
    ("system", "there", "found"),
    [
        ("linux", ("g++", "clang++", "ziglang"), "g++"),
        ("linux", ("clang++", "ziglang"), "clang++"),
        ("linux", ("ziglang",), "ziglang"),
        ("linux", (), None),
        ("darwin", ("g++", "clang++", "ziglang"), "ziglang"),  # g++ there may open a window that offers to install it
        ("win32", ("g++", "ziglang"), "ziglang"),
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


def test_another_processor_or_compiler_has_a_library_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made by stand-ins that write what they were asked."""
    made = []
    for processor, said in ((b"a", "1"), (b"b", "1"), (b"a", "2"), (b"a", "1")):
        stand_in = tmp_path / f"compiler{said}"
        stand_in.write_text(f'#!/bin/bash\n[ "$1" = --version ] && echo {said} || echo made > "${{@: -1}}"\n')
        stand_in.chmod(0o755)
        monkeypatch.setattr(kernel_build, "find_compiler", lambda command=str(stand_in): Compiler((command,), ("-O3",)))
        monkeypatch.setattr(kernel_build, "_processor", lambda own=processor: own)
        made.append(kernel_build.compiled(tmp_path / "cache"))
        assert made[-1].read_text() == "made\n"
    assert len(set(made)) == 3 and made[0] == made[3]
    assert len([file for file in (tmp_path / "cache").iterdir() if file.suffix != ".lock"]) == 3, "nothing else is left"


def test_two_that_need_the_kernel_at_once_compile_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in, log = tmp_path / "compiler", tmp_path / "log"
    stand_in.write_text(
        f'#!/bin/bash\n[ "$1" = --version ] || {{ echo begun >> {log}; sleep 0.5; echo made > "${{@: -1}}"; }}\n'
    )
    stand_in.chmod(0o755)
    monkeypatch.setattr(kernel_build, "find_compiler", lambda: Compiler((str(stand_in),), ("-O3",)))
    with ThreadPoolExecutor() as both:
        libraries = set(both.map(kernel_build.compiled, [tmp_path / "cache"] * 2))
    assert [library.read_text() for library in libraries] == ["made\n"] and log.read_text() == "begun\n"


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
