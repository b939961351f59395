"""The environment of launch.py: what is missing, what pip says, which torch a GPU and its driver get."""

import sys
import tempfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import launch
from app.cli import environment
from core.ops.compilers import Compiler
from core.planning import nvidia
from tests.fake_driver import answer, pretend, put_smi


def test_requirements_are_checked_with_versions_and_markers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = tmp_path / "plain-2.13.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: plain\nVersion: 2.13.0+cpu\n")
    (tmp_path / "half-1.0.dist-info").mkdir()  # what an interrupted installation leaves
    monkeypatch.syspath_prepend(tmp_path)
    met = ["plain==2.13.0", "plain>=2,<3", "gone; python_version < '3'"]
    unmet = ["plain==2.14.0", "gone", "half", "half>=1"]
    assert [line for line in met if not environment.is_met(Requirement(line))] == []
    assert [line for line in unmet if environment.is_met(Requirement(line))] == []


def test_torch_is_pinned_wherever_it_is_required() -> None:
    files = sorted(environment.ROOT.glob("requirements*.txt"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    requirements = [Requirement(line.partition(" #")[0]) for line in lines if line and not line.startswith("#")]
    pins = [str(requirement.specifier) for requirement in requirements if requirement.name == "torch"]
    assert pins == ["==2.13.0"]
    assert all(requirement.specifier for requirement in requirements)
    named = {requirement.name for requirement in requirements}
    extras = {extra for requirement in requirements for extra in requirement.extras}
    assert extras == {"crypto"} and "cryptography" in named, "extras are not looked for in an own environment"


@pytest.mark.parametrize(
    ("complaints", "sentence"),
    [
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)': /simple/torch/\n"
            "ERROR: Could not find a version that satisfies the requirement torch==2.13.0 (from versions: none)\n"
            "ERROR: No matching distribution found for torch==2.13.0\n",
            "The package index cannot be reached",
        ),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n", "disk is full"),
        ("ERROR: No matching distribution found for torch==2.13.0\n", "Try another Python"),
        ("Segmentation fault\n", "pip could not install the requirements: Segmentation fault."),
        ("", "no reason given"),
    ],
)
def test_what_pip_complains_about_becomes_a_sentence(complaints: str, sentence: str) -> None:
    assert sentence in str(environment.explain_pip(complaints))


# -------------------- torch for this machine's GPU


class Pip:
    """In place of a Python with pip: notes what it was asked to install."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.python, self._log, self._refused = folder / "python", folder / "log", folder / "refused"
        self.python.write_text(
            f'#!/bin/sh\necho "$@" >> "{self._log}"\n'
            f'while read -r word; do case "$*" in *"$word"*) echo "ERROR: No $word" >&2; exit 1;; esac; done'
            f' < "{self._refused}"\n'
        )
        self.python.chmod(0o755)
        self._refused.write_text("")

    def refuse(self, word: str) -> None:
        """Fail where the command line contains a word."""
        self._refused.write_text(f"{word}\n")

    @property
    def asked(self) -> list[str]:
        """What followed the options that every installation has."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        common = "-m pip install --no-input --disable-pip-version-check "
        assert all(line.startswith(common) for line in lines)
        return [line.removeprefix(common) for line in lines]


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    """A `.venv` whose Python is a stand-in, on Linux, without a GPU."""
    pip, venv = Pip(tmp_path / "pip"), tmp_path / "venv"
    venv.mkdir()
    monkeypatch.setattr(environment, "VENV", venv)
    monkeypatch.setattr(environment, "VENV_PYTHON", pip.python)
    monkeypatch.setattr(environment, "STAMP", venv / "stamp")
    monkeypatch.setattr(environment, "venv_works", lambda: True)
    monkeypatch.setattr(environment, "installed_lean", lambda *_: False)  # as with the public index
    monkeypatch.setattr(environment, "system_compiler", lambda: Compiler(("g++",), ()))
    monkeypatch.delenv(environment.TORCH_WHEELS_VARIABLE, raising=False)
    pretend(monkeypatch, tmp_path / "bin")
    return pip


PLACE = environment.TORCH_WHEELS
INSTALLED_LEAN = environment.installed_lean
BY_HASH = "--no-deps --require-hashes -r"
TORCH, REST = f"{BY_HASH} {environment.TORCH_LOCK}", f"-r {environment.REQUIREMENTS}"
LOCKED = [f"{BY_HASH} {environment.LOCK}", REST]
RTX = "as NVIDIA GeForce RTX 4090 was found"
UPDATE = "Update the NVIDIA driver to {} or newer, then run: python launch.py repair"


NO_GPU, OLD = "from your package index, as no NVIDIA GPU was found.", "the CPU build for now, {}, but its driver {} is "
FITS, SILENT = "the build for CUDA {}, {} and it has driver {}.", "the CPU build for now, as nvidia-smi is there and "
TOO_OLD = "too old for torch 2.13. "


@pytest.mark.parametrize(
    ("system", "smi", "device", "build", "line"),
    [
        ("linux", None, "auto", None, NO_GPU),
        ("win32", None, "auto", None, NO_GPU),
        ("darwin", "580.65.06", "auto", None, NO_GPU),
        ("linux", "580.65.06", "cpu", None, "from your package index, as --device cpu was given."),
        ("linux", "470.82.01", "auto", "cpu", OLD.format(RTX, "470.82.01") + TOO_OLD + UPDATE.format("525.60.13")),
        ("win32", "472.12", "auto", "cpu", OLD.format(RTX, "472.12") + TOO_OLD + UPDATE.format("528.33")),
        ("linux", "550.54.14", "auto", "cu126", FITS.format("12.6", RTX, "550.54.14")),
        ("win32", "551.61", "auto", "cu126", FITS.format("12.6", RTX, "551.61")),
        ("linux", "580.65.06", "cuda", "cu130", FITS.format("13.0", RTX, "580.65.06")),
        ("win32", "581.42", "auto", "cu130", FITS.format("13.0", RTX, "581.42")),
        ("linux", "fails", "auto", "cpu", f"{SILENT}fails: No driver."),
        ("linux", "hangs", "auto", "cpu", f"{SILENT}does not answer within"),
    ],
)
def test_the_first_start_installs_the_torch_that_gpu_and_driver_need(
    system: str,
    smi: str | None,
    device: str,
    build: str | None,
    line: str,
    pip: Pip,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The public index has CPU builds for Windows and CUDA 13 for Linux: neither serves a GPU with an older driver."""
    monkeypatch.setattr(nvidia, "SYSTEM", system)
    if smi == "hangs":
        monkeypatch.setattr(nvidia, "SMI_SECONDS", 0.3)
        put_smi(tmp_path / "bin", hangs=True)
    elif smi == "fails":
        put_smi(tmp_path / "bin", "No driver.", code=9)
    elif smi is not None:
        put_smi(tmp_path / "bin", answer(smi))
    environment.fill_venv(device)
    own = TORCH if build in (None, "cpu") else f"--no-deps torch==2.13.0+{build}"
    own = f"--index-url {PLACE}/{build} {own}" if build else own
    assert pip.asked == [own, *LOCKED], "torch alone from PyTorch's wheels, all else from the user's index"
    (told,) = capfd.readouterr().err.splitlines()
    assert told.startswith(f"torch: {line}")
    assert environment.STAMP.read_text() == environment.digest()


@pytest.mark.parametrize(("device", "is_there"), [("cpu", True), ("auto", True), ("auto", False)])
def test_without_a_gpu_torch_without_its_libraries_is_taken_where_somebody_has_it(
    pip: Pip, device: str, is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "installed_lean", INSTALLED_LEAN)
    monkeypatch.setattr(nvidia, "SYSTEM", "linux")
    monkeypatch.setattr(tempfile, "tempdir", str(scratch := tmp_path / "scratch"))
    scratch.mkdir()
    if not is_there:
        pip.refuse("scratch")
    environment.fill_venv(device)
    asked = pip.asked
    assert asked.pop(0).startswith(f"{BY_HASH} {scratch}")
    assert asked == ([] if is_there else [TORCH]) + LOCKED


@pytest.mark.parametrize(("cuda", "there"), [("'13.0'", True), ("'12.6'", False), ("None", False)])
def test_the_libraries_for_cuda_come_by_hash_where_torch_is_the_public_index_s(
    pip: Pip, cuda: str, there: bool
) -> None:
    told = environment.VENV / "lib" / "site-packages" / "torch" / "version.py"
    told.parent.mkdir(parents=True)
    told.write_text(f"__version__ = '2.13.0'\ncuda: str | None = {cuda}\n")
    environment.fill_venv("cpu")
    assert pip.asked == [TORCH, *([f"{BY_HASH} {environment.CUDA_LOCK}"] if there else []), *LOCKED]


def test_a_compiler_comes_by_hash_where_the_system_has_none(
    pip: Pip, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "system_compiler", lambda: None)
    environment.fill_venv("cpu")
    assert pip.asked == [TORCH, *LOCKED, f"{BY_HASH} {environment.COMPILER_LOCK}"]
    assert "no C++ compiler" not in capfd.readouterr().err
    pip.refuse("requirements-compiler")
    environment.fill_venv("cpu")
    assert "note: there is no C++ compiler, so answers take longer. pip could not" in capfd.readouterr().err
    assert environment.STAMP.read_text() == environment.digest(), "all else is there"


def test_the_known_builds_are_those_of_the_pinned_torch() -> None:
    version = environment.torch_version()
    assert version is not None and version.startswith(f"{nvidia.BUILDS_OF}.")


CPU, CUDA_13 = nvidia.InstalledTorch("2.13.0+cpu", None), nvidia.InstalledTorch("2.13.0", (13, 0))
RUN = "Run: python launch.py repair"


@pytest.mark.parametrize(
    ("installed", "driver", "line"),
    [
        (CPU, "581.42", f"torch 2.13.0+cpu is a build without CUDA. {RUN}"),
        (CUDA_13, "570.133.07", f"its driver 570.133.07 is too old for torch 2.13.0, built with CUDA 13.0. {RUN}"),
        (CPU, "470.82.01", f"its driver 470.82.01 is {TOO_OLD}{UPDATE.format('525.60.13')}"),
        (CUDA_13, "581.42", None),
        (CPU, None, None),
    ],
)
def test_the_first_line_of_a_start_tells_of_a_gpu_that_torch_cannot_use(
    installed: nvidia.InstalledTorch,
    driver: str | None,
    line: str | None,
    pip: Pip,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(nvidia, "installed_torch", lambda: installed)
    if driver is not None:
        put_smi(tmp_path / "bin", answer(driver))
    monkeypatch.setattr(launch, "prepare_environment", lambda *_, **__: None)
    monkeypatch.setattr(launch, "hand_over", lambda args: print("handed over", file=sys.stderr) or 0)
    expected = [] if line is None else [f"note: NVIDIA GeForce RTX 4090 is not used: {line}"]
    for argv in ([], ["ask", "a.pdf", "-q", "Who?"], ["doctor", "--offline"]):
        assert launch.main(argv) == 0
        assert capfd.readouterr().err.splitlines() == [*expected, "handed over"]
    for argv in (["--device", "cpu"], ["doctor", "--device", "cpu"], ["models"], ["--remote", "http://127.0.0.1:1"]):
        assert launch.main(argv) == 0
        assert capfd.readouterr().err == "handed over\n", "nobody asked for a GPU"
    assert pip.asked == []


@pytest.fixture
def broken(pip: Pip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    """A ready `.venv` in which this runs, with a CPU build beside a GPU."""
    monkeypatch.setattr(sys, "executable", str(pip.python))
    monkeypatch.setattr(sys, "prefix", str(environment.VENV))
    environment.STAMP.write_text(environment.digest())
    monkeypatch.setattr(nvidia, "installed_torch", lambda: nvidia.InstalledTorch("2.13.0+cpu", None))
    put_smi(tmp_path / "bin", answer("551.61"))
    return pip


def test_repair_installs_the_build_that_suits_the_gpu(broken: Pip, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch.main(["repair"]) == 0
    assert broken.asked == [f"--index-url {PLACE}/cu126 --no-deps torch==2.13.0+cu126", REST]
    assert environment.STAMP.read_text() == environment.digest()
    first, last = capfd.readouterr().err.splitlines()
    assert "is a build without CUDA. Installing torch 2.13.0+cu126 in" in first and "Start with" in last


@pytest.mark.parametrize(("refused", "stamp"), [("+cu126", True), ("requirements.txt", False)])
def test_a_repair_that_fails_leaves_what_works_or_what_the_next_start_completes(
    refused: str, stamp: bool, broken: Pip, capfd: pytest.CaptureFixture[str]
) -> None:
    broken.refuse(refused)
    assert launch.main(["repair"]) == 1
    assert capfd.readouterr().err.splitlines()[-1].startswith("error: ")
    assert environment.STAMP.exists() is stamp and environment.venv_ready() is stamp
