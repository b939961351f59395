"""What nvidia-smi tells, however it tells it, and which build of torch follows."""

import time
from pathlib import Path

import pytest
import torch

from core.planning import nvidia
from core.planning.nvidia import (
    DriverAnswer,
    InstalledTorch,
    TorchBuild,
    UnusedGpu,
    ask_driver,
    choose_build,
    compare,
    installed_torch,
    unused_gpu,
)
from tests.fake_driver import ADA, BLACKWELL, CARD, KEPLER, PASCAL, answer, pretend, put_smi

CPU_BUILD, CUDA_13 = InstalledTorch("2.13.0+cpu", None), InstalledTorch("2.13.0+cu130", (13, 0))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where programs are looked for, on Linux."""
    pretend(monkeypatch, tmp_path / "bin")
    return tmp_path / "bin"


# -------------------- asking


def test_gpus_are_told_with_driver_memory_and_capability(folder: Path) -> None:
    unknown, warning = f"{CARD}, 581.42, GPU-1, [N/A], [N/A]", "WARNING: infoROM is corrupted at gpu 0000:3B:00.0"
    known = answer("570.133.07"), answer("570.133.07", BLACKWELL, "NVIDIA RTX PRO 6000", 1)
    put_smi(folder, *known, unknown, "", warning, code=14)
    first, second, third = ask_driver().gpus
    assert (first.name, first.driver, first.capability) == (CARD, (570, 133, 7), (8, 9))
    assert first.free_bytes == 23000 << 20
    assert (second.uuid, second.capability) == ("00000000-0000-0000-0000-000000000001", (12, 0))
    assert (third.free_bytes, third.capability) == (None, None)


@pytest.mark.parametrize(
    ("lines", "code", "failure"),
    [
        (("No devices were found",), 6, ""),
        (("NVIDIA-SMI has failed because it could not reach the driver.", "More."), 9, "fails: NVIDIA-SMI has failed"),
        ((), 1, "fails with exit code 1"),
        (("Hello",), 0, "not understood: 'Hello'"),
        ((f"{CARD}, beta, GPU-1, 1, 8.9",), 0, "not understood"),
    ],
)
def test_a_program_that_fails_is_told_and_no_device_is_no_failure(
    folder: Path, lines: tuple[str, ...], code: int, failure: str
) -> None:
    assert ask_driver() == DriverAnswer(), "no program"
    put_smi(folder, *lines, code=code)
    found = ask_driver()
    assert failure in found.failure and bool(found.failure) is bool(failure) and found.gpus == ()
    assert "\n" not in found.failure


def test_a_program_that_hangs_is_left_and_one_that_is_none_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_smi(folder, hangs=True)
    started = time.monotonic()
    monkeypatch.setattr(nvidia, "SMI_SECONDS", 0.3)
    assert ask_driver() == DriverAnswer(failure="does not answer within 0.3 seconds")
    assert time.monotonic() - started < 30, "it was waited for"
    put_smi(folder).write_bytes(b"\x7fELF no program")
    assert "cannot be started" in ask_driver().failure


# -------------------- choosing


@pytest.mark.parametrize(
    ("system", "processor", "driver", "capability", "build"),
    [
        ("linux", "amd64", "579.99", ADA, "cu126"),
        ("linux", "amd64", "525.60.13", ADA, "cu126"),
        ("linux", "amd64", "525.60.11", ADA, "its driver 525.60.11 is too old"),
        ("win32", "amd64", "528.33", ADA, "cu126"),
        ("win32", "amd64", "527.41", ADA, "its driver 527.41 is too old"),
        ("linux", "amd64", "590.44.01", BLACKWELL, "cu130"),
        ("linux", "amd64", "575.57.08", BLACKWELL, "Update the NVIDIA driver to 580 or newer"),
        ("linux", "amd64", "580.95.05", PASCAL, "cu126"),
        ("linux", "amd64", "470.256.02", KEPLER, "no kernels for its compute capability, 3.5. Use --device cpu."),
        ("linux", "amd64", "580.95.05", "[N/A]", "cu130"),
        ("win32", "arm64", "581.42", ADA, "there is no CUDA build of torch"),
        ("freebsd14", "amd64", "581.42", ADA, "there is no CUDA build of torch"),
    ],
)
def test_the_build_is_the_newest_that_system_driver_and_gpu_allow(
    system: str,
    processor: str,
    driver: str,
    capability: str,
    build: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nvidia, "SYSTEM", system)
    monkeypatch.setattr(nvidia, "PROCESSOR", processor)
    put_smi(folder, answer(driver, capability))
    suited = choose_build(ask_driver().gpus)
    if isinstance(suited, TorchBuild):
        assert suited.name == build
    else:
        assert build in f"{suited.problem} {suited.hint}"


# -------------------- what is installed


@pytest.mark.parametrize(
    ("version", "code", "found"),
    [
        ("2.13.0", "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n", CPU_BUILD),
        ("2.13.0", "__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\n", CUDA_13),
        ("2.13.0+cu126", None, InstalledTorch("2.13.0+cu126", (12, 6))),
        ("2.13.0+cpu", None, CPU_BUILD),
    ],
)
def test_the_build_is_read_from_its_files(
    version: str, code: str | None, found: InstalledTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wheels of the public index do not name their build in their version."""
    about = tmp_path / f"torch-{version}.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    if code is not None:
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "version.py").write_text(f"from typing import Optional\n{code}")
    monkeypatch.syspath_prepend(tmp_path)
    assert installed_torch() == found


def test_the_torch_of_these_tests_is_read_as_it_tells_itself() -> None:
    cuda = nvidia.version_of(torch.version.cuda) if torch.version.cuda else None
    assert installed_torch() == InstalledTorch(torch.__version__, cuda)


# -------------------- both together


def test_a_driver_that_does_not_answer_is_told(folder: Path) -> None:
    put_smi(folder, "Failed to initialize NVML: Driver/library version mismatch", code=18)
    found = compare(ask_driver(), CPU_BUILD)
    assert found is not None and found.hint.startswith("Restart this computer")
    assert "nvidia-smi is there and fails: Failed to initialize NVML" in found.because


def test_a_driver_known_to_be_new_enough_is_not_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = folder.parent / "version"
    monkeypatch.setattr(nvidia, "DRIVER_MODULE", module)
    put_smi(folder, answer("570.133.07"))

    def problem(installed: InstalledTorch, version: str) -> str:
        module.write_text(f"{version}\n")
        monkeypatch.setattr(nvidia, "installed_torch", lambda: installed)
        found: UnusedGpu | None = unused_gpu()
        return found.problem if found else ""

    assert "driver 570.133.07 is too old" in problem(CUDA_13, "570.133.07")
    assert problem(CUDA_13, "580.65.06") == ""
    assert problem(CPU_BUILD, "580.65.06"), "no driver suits a build without CUDA"
    for hidden in ("", "-1"):  # on purpose
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert problem(CPU_BUILD, "580.65.06") == ""
