"""A stand-in for nvidia-smi on the PATH: a GPU and driver of choice, one that fails, one that hangs."""

import os
from pathlib import Path

import pytest

from core.planning import nvidia

ADA, BLACKWELL, PASCAL, KEPLER = "8.9", "12.0", "6.1", "3.5"
CARD = "NVIDIA GeForce RTX 4090"


def answer(driver: str, capability: str = ADA, name: str = CARD, index: int = 0) -> str:
    return f"{name}, {driver}, GPU-00000000-0000-0000-0000-{index:012d}, 23000, {capability}"


def put_smi(folder: Path, *lines: str, code: int = 0, hangs: bool = False) -> Path:
    """Write a program that prints lines and ends with a code."""
    folder.mkdir(parents=True, exist_ok=True)
    printed = "".join(f"echo '{line}'\n" for line in lines)
    program = folder / "nvidia-smi"
    program.write_text(
        '#!/bin/sh\ncase "$1" in --query-gpu=*) ;; *) exit 2;; esac\n'
        f"{'exec sleep 60' if hangs else printed}\nexit {code}\n"
    )
    program.chmod(0o755)
    return program


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let core.planning.nvidia find only the programs in a folder, and take this system for Linux on a PC."""
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr(nvidia, "SYSTEM", "linux")
    monkeypatch.setattr(nvidia, "PROCESSOR", "x86_64")
    monkeypatch.setattr(nvidia, "WSL_SMI", folder / "none")
    monkeypatch.setattr(nvidia, "DRIVER_MODULE", folder / "none")
    monkeypatch.setattr(nvidia, "SMI_SECONDS", 5.0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
