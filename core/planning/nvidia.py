"""NVIDIA GPUs as their driver lists them, and which build of torch suits them.

Standard library only, because launch.py uses it before anything is installed. No network, no torch, no GPU memory.
"""

import contextlib
import csv
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

SYSTEM, PROCESSOR = sys.platform, platform.machine().lower()
SMI_SECONDS = 10.0  # starting several GPUs takes a driver some of these seconds
WSL_SMI = Path("/usr/lib/wsl/lib/nvidia-smi")  # not on every PATH there
DRIVER_MODULE = Path("/sys/module/nvidia/version")
FIELDS = ("name", "driver_version", "uuid", "memory.free", "compute_cap")
REPAIR = "python launch.py repair"
Version = tuple[int, ...]


# -------------------- the driver's answer


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverGpu:
    """One GPU in nvidia-smi's list."""

    name: str
    driver: Version
    uuid: str  # without "GPU-"
    free_bytes: int | None  # None: not reported
    capability: Version | None  # compute capability, for example (8, 9)


@dataclass(frozen=True, slots=True)
class DriverAnswer:
    """The answer of nvidia-smi."""

    gpus: tuple[DriverGpu, ...] = ()
    failure: str = ""  # why an existing nvidia-smi gave no answer; empty: it answered, or does not exist


def ask_driver() -> DriverAnswer:
    """Ask nvidia-smi, if it exists, for its GPUs. Waits for at most SMI_SECONDS."""
    program = _smi()
    if program is None:
        return DriverAnswer()
    try:
        code, out = _output([program, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"], SMI_SECONDS)
    except subprocess.TimeoutExpired:
        return DriverAnswer(failure=f"does not answer within {SMI_SECONDS:g} seconds")
    except OSError as error:
        return DriverAnswer(failure=f"cannot be started ({error.strerror})")
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    gpus = tuple(gpu for row in csv.reader(lines, skipinitialspace=True) if (gpu := _understood(row)) is not None)
    if gpus or "No devices were found" in out or not (code or lines):
        return DriverAnswer(gpus)  # beside warnings, and what is said of a GPU that is lost
    if code == 0:
        return DriverAnswer(failure=f"gives an answer that is not understood: {lines[0][:80]!r}")
    return DriverAnswer(failure=f"fails: {lines[0].rstrip('.')}" if lines else f"fails with exit code {code}")


def _smi() -> str | None:
    return shutil.which("nvidia-smi") or (str(WSL_SMI) if WSL_SMI.is_file() else None)


def _output(command: Sequence[str], seconds: float) -> tuple[int, str]:
    """Exit code and output. A program that a broken driver blocks for ever is left running."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        if process.stdout is not None:
            process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it may wait in the kernel, where no signal arrives
            process.wait(1.0)
        raise
    return process.returncode, out


def _understood(row: Sequence[str]) -> DriverGpu | None:
    """One GPU's line; None: it is another one."""
    if len(row) != len(FIELDS) or not (driver := version_of(row[1])):
        return None
    name, _, uuid, free, capability = row
    return DriverGpu(
        name=name,
        driver=driver,
        uuid=uuid.removeprefix("GPU-"),
        free_bytes=_mib(free),
        capability=version_of(capability) or None,
    )


def _mib(text: str) -> int | None:
    return int(text) << 20 if text.isdecimal() else None  # "[N/A]" where a GPU is divided


def version_of(text: str) -> Version:
    """570.133.07 -> (570, 133, 7); empty if it is no version."""
    parts = text.strip().split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


def dotted(version: Version, *, width: int = 1) -> str:
    """(570, 133, 7) -> 570.133.07, as drivers write it with `width` 2."""
    return ".".join(f"{part:0{width}}" for part in version)


# -------------------- builds of torch


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The wheels of torch for one CUDA version, their required drivers and the GPUs they have kernels for."""

    name: str  # of its wheel index, and behind the + of its version
    cuda: Version
    linux_driver: Version  # the oldest supported one
    windows_driver: Version
    oldest: Version  # compute capability
    beyond: Version | None  # the first compute capability without kernels; None: all newer ones have some

    @property
    def driver(self) -> Version:
        """The oldest driver that this system needs for it."""
        return self.windows_driver if SYSTEM == "win32" else self.linux_driver

    def computes_on(self, gpu: DriverGpu) -> bool:
        """Whether it has kernels for a GPU; assumed if the driver does not report the GPU's capability."""
        capability = gpu.capability
        return capability is None or (self.oldest <= capability and (self.beyond is None or capability < self.beyond))


# Which CUDA there are wheels for, and their compute capabilities: RELEASE.md of pytorch/pytorch ("PyTorch CUDA Support
# Matrix" for 2.13; pull request 187075). CUDA 12.8 ended with torch 2.11; 13.2 is called experimental and needs the
# same driver as 13.0. Drivers: NVIDIA, "CUDA Compatibility", minor version compatibility, and the release notes' table.
BUILDS_OF = "2.13"
BUILDS = (
    TorchBuild("cu130", cuda=(13, 0), linux_driver=(580,), windows_driver=(580,), oldest=(7, 5), beyond=None),
    TorchBuild("cu126", (12, 6), linux_driver=(525, 60, 13), windows_driver=(528, 33), oldest=(5, 0), beyond=(10, 0)),
)
# That CUDA wheels exist for
PROCESSORS = {"win32": ("amd64", "x86_64"), "linux": ("x86_64", "amd64", "aarch64", "arm64")}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedGpu:
    """An NVIDIA GPU that torch cannot compute on, and the one action that helps."""

    gpu: str
    problem: str
    hint: str
    known_from: Literal["driver", "torch"] = "driver"  # "torch": driver and installed files gave no sign of it

    @property
    def because(self) -> str:
        """Why the processor computes instead."""
        return f"{self.gpu} is not used: {self.problem}"


def choose_build(gpus: Sequence[DriverGpu]) -> TorchBuild | UnusedGpu:
    """The newest build that the driver is new enough for, with kernels for all GPUs, or else for the first."""
    first = gpus[0]
    if PROCESSOR not in PROCESSORS.get(SYSTEM, ()):
        problem = f"there is no CUDA build of torch for {platform.system()} on {PROCESSOR}."
        return UnusedGpu(gpu=first.name, problem=problem, hint="Use --device cpu.")
    fitting = [build for build in BUILDS if all(map(build.computes_on, gpus))]
    fitting = fitting or [build for build in BUILDS if build.computes_on(first)]
    if not fitting:
        problem = f"torch {BUILDS_OF} has no kernels for its compute capability, {dotted(first.capability or ())}."
        return UnusedGpu(gpu=first.name, problem=problem, hint="Use --device cpu.")
    if (build := next((build for build in fitting if first.driver >= build.driver), None)) is not None:
        return build
    needed = min(build.driver for build in fitting)
    problem = f"its driver {dotted(first.driver, width=2)} is too old for torch {BUILDS_OF}."
    hint = f"Update the NVIDIA driver to {dotted(needed)} or newer, then run: {REPAIR}"
    return UnusedGpu(gpu=first.name, problem=problem, hint=hint)


# -------------------- what is installed, and whether the two meet


@dataclass(frozen=True, slots=True)
class InstalledTorch:
    """The torch of this environment, read from its files."""

    version: str
    cuda: Version | None  # the version it was built with; None: a CPU build

    @property
    def oldest_driver(self) -> Version:
        """The oldest driver it works with, one for a whole CUDA generation. Empty: none is needed, or not known."""
        return next((build.driver for build in BUILDS if self.cuda and build.cuda[0] == self.cuda[0]), ())


def installed_torch() -> InstalledTorch | None:
    """The installed torch, without importing it; None: there is none."""
    try:
        distribution = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return None
    version, cuda = distribution.version, None
    version_file = Path(str(distribution.locate_file("torch/version.py")))
    if version_file.is_file():  # on the public index the version itself does not name the build
        version, cuda = _assigned(version_file, "__version__") or version, cuda_of(version_file)
    elif "+cu" in version:
        name = version.partition("+cu")[2]  # 130
        cuda = f"{name[:-1]}.{name[-1]}"
    return InstalledTorch(version, version_of(cuda) or None if cuda else None)


def cuda_of(told: Path) -> str | None:
    """The version of CUDA that a build of torch is for, from its `version.py`."""
    return _assigned(told, "cuda")


def _assigned(file: Path, name: str) -> str | None:
    """The string that a module assigns to a name; None: there is none."""
    match = re.search(rf"^{name}\b[^=\n]*=\s*['\"](.*)['\"]", file.read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else None


def unused_gpu(*, torch_lists: bool | None = None) -> UnusedGpu | None:
    """Why torch cannot use a GPU of this machine; None: no sign of that.

    Args:
        torch_lists: whether torch, which computes on none, lists one; None: driver and installed files alone are asked.
    Cost: nvidia-smi, if it exists and the driver is not known to be new enough for a build with CUDA.
    """
    installed, hidden = installed_torch(), os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")  # on purpose
    if installed is None or hidden or (torch_lists is None and _surely_meets(installed)):
        return None
    answer = ask_driver()
    known = compare(answer, installed)
    if known is not None or torch_lists is None or not answer.gpus:
        return known
    capability = dotted(answer.gpus[0].capability or ())
    suits = f"torch {installed.version} and driver {dotted(answer.gpus[0].driver, width=2)} should suit it"
    problem, hint = f"torch does not find it, although {suits}.", "Restart this computer."
    if torch_lists:
        problem = f"torch {installed.version} has no kernels for compute capability {capability}."
        hint = f"Run: {REPAIR}"
    return UnusedGpu(gpu=answer.gpus[0].name, problem=problem, hint=hint, known_from="torch")


def _surely_meets(installed: InstalledTorch) -> bool:
    """Whether the driver is new enough, by Linux's file with its version: nvidia-smi may take seconds."""
    if installed.cuda is None or SYSTEM != "linux" or not DRIVER_MODULE.is_file():
        return False
    return version_of(DRIVER_MODULE.read_text(encoding="ascii", errors="replace")) >= installed.oldest_driver


def compare(answer: DriverAnswer, installed: InstalledTorch) -> UnusedGpu | None:
    """Why an installed torch cannot use the driver's GPUs, and what helps; None: it can."""
    if not answer.gpus:
        if not answer.failure:
            return None
        hint = "Restart this computer, or install the NVIDIA driver anew."
        return UnusedGpu(gpu="The NVIDIA GPU", problem=f"nvidia-smi is there and {answer.failure}.", hint=hint)
    first, suited, problem = answer.gpus[0], choose_build(answer.gpus), ""
    if installed.cuda is None:
        problem = f"torch {installed.version} is a build without CUDA."
    elif first.driver < installed.oldest_driver:
        problem = f"its driver {dotted(first.driver, width=2)} is too old for torch {installed.version}, "
        problem += f"built with CUDA {dotted(installed.cuda)}."
    elif any(build.cuda == installed.cuda and not build.computes_on(first) for build in BUILDS):
        problem = f"torch {installed.version} has no kernels for compute capability {dotted(first.capability or ())}."
    if not problem:
        return None
    return (
        suited if isinstance(suited, UnusedGpu) else UnusedGpu(gpu=first.name, problem=problem, hint=f"Run: {REPAIR}")
    )
