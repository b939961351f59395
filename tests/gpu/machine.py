"""Steps about the machine: what it is, and whether the tests for a GPU pass on it."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from core.planning.hardware import this_machine
from tests.gpu.checklist import ROOT, Here

NOT_HERE = "not on a processor"
PACKAGES = ("torch", "transformers", "bitsandbytes", "flash-attn", "triton", "pytest", "hypothesis", "psutil")
ASKED = (
    "name,driver_version,memory.total,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,"
    "pcie.link.width.max,clocks.max.sm,clocks.max.memory,power.limit,persistence_mode,compute_mode"
)
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")


def device_of(name: str) -> torch.device:
    """ "cpu" or "cuda" as a device; of CUDA with its number, which torch wants in some places."""
    return torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else torch.device(name)


def versions(here: Here) -> None:
    """What the machine is."""
    add = here.report.add
    add("python", sys.version)
    add("system", platform.platform())
    add("packages", {name: _version(name) for name in PACKAGES})
    add("machine", this_machine())
    add("threads", torch.get_num_threads())
    add("compiler", shutil.which("g++"))
    add("huge pages", {f.name: f.read_text().strip() for f in HUGE_PAGES.glob("*") if f.is_file() and _readable(f)})
    meminfo = Path("/proc/meminfo")
    add("memory", [row for row in meminfo.read_text().splitlines() if "Huge" in row] if meminfo.is_file() else [])
    add("locked memory", _locked())
    add("environment", {name: value for name, value in os.environ.items() if name.startswith(("CUDA_", "PYTORCH_"))})
    add("nvidia-smi", _asked(f"--query-gpu={ASKED}", "--format=csv"))
    add("topology", _asked("topo", "-m"))
    if here.device == "cpu":
        add("cuda", NOT_HERE)
        return
    found = torch.cuda.get_device_properties(0)
    add("cuda", {"runtime": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "properties": str(found)})
    add("capability", torch.cuda.get_device_capability(0))
    add("built for", torch.cuda.get_arch_list())


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _readable(file: Path) -> bool:
    return os.access(file, os.R_OK)


def _locked() -> str:
    try:
        import resource
    except ImportError:  # Windows
        return "no limit is known"
    return str(resource.getrlimit(resource.RLIMIT_MEMLOCK))


def _asked(*arguments: str) -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "nvidia-smi is not here"
    found = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=60)
    return found.stdout or found.stderr


def suite(here: Here) -> None:
    """`pytest -m gpu`, where pytest is installed."""
    if importlib.util.find_spec("pytest") is None:
        here.report.add("pytest", "not installed")
        return
    # An older pytest does as well, and a warning of another torch is no failure of ours
    options = ["-m", "gpu", "-q", "-W", "default", "-o", "minversion=1.0", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "tests/gpu/test_gpu.py"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = (found.stdout + found.stderr).strip().splitlines()
    here.report.add("pytest", {"code": found.returncode, "last line": lines[-1] if lines else "", "tail": lines[-120:]})
    if found.returncode:
        raise AssertionError(f"pytest ended with {found.returncode}: {lines[-1] if lines else ''}")
