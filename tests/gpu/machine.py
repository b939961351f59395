"""Steps about the machine: what it is, and whether the tests for a GPU pass on it."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import torch

from core.ops.compilers import find_compiler
from core.ops.kernel import small_rows
from core.ops.kernel_build import NoKernel
from core.planning.hardware import this_machine
from tests.gpu.checklist import ROOT, Here
from tests.gpu.conftest import PART

NOT_HERE = "not on a processor"
PACKAGES = ("torch", "transformers", "bitsandbytes", "flash-attn", "triton", "pytest", "hypothesis", "psutil")
ASKED = (
    "name,driver_version,memory.total,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,"
    "pcie.link.width.max,clocks.max.sm,clocks.max.memory,power.limit,persistence_mode,compute_mode"
)
SUITE_PROCESSES = 4
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")


def versions(here: Here) -> None:
    """What the machine is; compiles the kernel, which all other steps need."""
    add = here.report.add
    add("python", sys.version)
    add("system", platform.platform())
    add("packages", {name: _version(name) for name in PACKAGES})
    add("machine", this_machine())
    add("threads", torch.get_num_threads())
    add("compiler", find_compiler())
    add("compiled kernel", _kernel())
    add(
        "huge pages",
        {f.name: f.read_text().strip() for f in HUGE_PAGES.glob("*") if f.is_file() and os.access(f, os.R_OK)},
    )
    meminfo = Path("/proc/meminfo")
    add("memory", [row for row in meminfo.read_text().splitlines() if "Huge" in row] if meminfo.is_file() else [])
    add("locked memory", _locked())
    add("environment", {name: value for name, value in os.environ.items() if name.startswith(("CUDA_", "PYTORCH_"))})
    add("nvidia-smi", smi(f"--query-gpu={ASKED}", "--format=csv"))
    add("topology", smi("topo", "-m"))
    if here.device == "cpu":
        add("cuda", NOT_HERE)
        return
    found = torch.cuda.get_device_properties(0)
    add("cuda", {"runtime": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "properties": str(found)})
    add("capability", torch.cuda.get_device_capability(0))
    add("built for", torch.cuda.get_arch_list())


def _kernel() -> str:
    try:
        return f"works, matrix units for {sorted(map(str, small_rows().by_matrices))}"
    except NoKernel as reason:
        return str(reason)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _locked() -> str:
    try:
        import resource
    except ImportError:  # Windows
        return "no limit is known"
    return str(resource.getrlimit(resource.RLIMIT_MEMLOCK))


def smi(*arguments: str) -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "nvidia-smi is not here"
    found = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=60)
    return found.stdout or found.stderr


def suite(here: Here) -> None:
    """`pytest -m gpu`, where pytest is installed, in several processes: a small test mostly launches."""
    if importlib.util.find_spec("pytest") is None:
        here.report.add("pytest", "not installed")
        return
    # An older pytest does as well, and a warning of another torch is no failure of ours
    options = ["-m", "gpu", "-q", "-W", "default", "-o", "minversion=1.0", "-p", "no:cacheprovider", "--durations=5"]
    command = [sys.executable, "-m", "pytest", *options, "tests/gpu/test_gpu.py"]
    parts, wrong = here.sized(SUITE_PROCESSES, 2), []
    threads = str(max(1, (os.cpu_count() or 1) // parts))
    with ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(parts)]
        running = []
        for part, log in enumerate(logs):
            own = {**os.environ, PART: f"{part}/{parts}", "OMP_NUM_THREADS": threads}
            running.append(subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=own))
        for part, (process, log) in enumerate(zip(running, logs, strict=True)):
            code = process.wait()
            log.seek(0)
            lines = log.read().strip().splitlines()
            kept = lines[-120:] if code else [line for line in lines[-8:] if "s call" in line or "s setup" in line]
            last = lines[-1] if lines else ""
            here.report.add(f"pytest, part {part + 1} of {parts}", {"code": code, "last line": last, "lines": kept})
            wrong += [last] if code else []
    if wrong:
        raise AssertionError(f"pytest failed: {'; '.join(wrong)}")
