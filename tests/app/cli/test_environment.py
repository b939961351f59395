"""The environment of launch.py: what is missing, what pip says, which torch a GPU and its driver get."""

import importlib.util
import re
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import launch
from app.cli import environment
from core.errors import NotPossibleHere
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
    asked = [*met, "plain==2.14.0", "gone", "half", "half>=1"]
    assert [line for line in asked if environment.is_met(Requirement(line))] == met


def test_torch_is_pinned_wherever_it_is_required() -> None:
    files = sorted(environment.ROOT.glob("requirements*.txt"))
    requirements = [Requirement(line) for file in files for line in environment.required(file) if line[0] != "-"]
    assert [str(one.specifier) for one in requirements if one.name == "torch"] == ["==2.13.0"]
    assert environment.torch_version() == "2.13.0" and nvidia.BUILDS_OF == "2.13", "the known builds are its own"
    assert all(one.specifier for one in requirements)
    extras = {extra for one in requirements for extra in one.extras}
    assert extras == {"crypto"} and "cryptography" in {one.name for one in requirements}, "no extras are looked for"


def test_the_lock_files_hold_one_version_by_hash_of_everything_that_is_required() -> None:
    text, versions = "".join(file.read_text(encoding="utf-8") for file in environment.LOCKS), dict[str, list[str]]()
    for entry in re.split(r"\n(?=[a-z0-9])", text.replace("\\\n", "")):
        if match := re.match(r"([a-z0-9][a-z0-9.-]*)==(\S+)", entry):
            assert "--hash=sha256:" in entry, f"{match[1]} has no hash"
            versions.setdefault(match[1], []).append(match[2])
    assert len(versions) > 50
    for need in map(Requirement, environment.required(environment.REQUIREMENTS)):
        pinned = versions.get(canonicalize_name(need.name), [])
        assert any(need.specifier.contains(version) for version in pinned), f"{need}: {pinned} in the lock"


@pytest.mark.parametrize(
    ("complaints", "sentence"),
    [
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)': /simple/torch/\n"
            "ERROR: No matching distribution found for torch==2.13.0\n",
            "The package index cannot be reached",
        ),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'SSLError(SSLCertVerificationError(1, "
            "'[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed')': /simple/torch/\n",
            "global.cert",
        ),
        ("ERROR: Exception:\nTraceback (most recent call last):\nReadTimeoutError: Read timed out.\n", "Connect to"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n", "Start again"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n", "disk is full"),
        ("ERROR: No matching distribution found for torch==2.13.0\n", "Try another Python"),
        ("Segmentation fault\n", "pip could not install the requirements: Segmentation fault."),
        ("", "no reason given"),
    ],
)
def test_what_pip_complains_about_becomes_a_sentence(complaints: str, sentence: str) -> None:
    assert sentence in str(environment.explain_pip(complaints))


def test_without_an_index_the_hint_is_to_start_once_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    error = environment.explain_pip("ERROR: No matching distribution found for torch==2.13.0\n")
    assert error.hint.startswith("Start once without --offline")


@pytest.mark.parametrize(("found", "told"), [(None, "apt install python3-venv"), (object(), "see that there is room")])
def test_an_environment_that_cannot_be_made_is_told_with_what_it_lacks(
    found: object, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = tmp_path / "-m ensurepip"
    venv.touch()  # no folder can be made here
    monkeypatch.setattr(environment, "VENV", venv)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: found)
    with pytest.raises(NotPossibleHere, match=told):
        environment.make_venv()


# -------------------- torch for this machine's GPU


class Pip:
    """In place of pip: notes what is to be installed, and fails where that has one of the refused words."""

    def __init__(self) -> None:
        self._asked, self._refused = list[str](), tuple[str, ...]()

    def refuse(self, *words: str) -> None:
        self._refused = words

    def install(self, _python: Path, *what: str | Path) -> None:
        self._asked.append(" ".join(map(str, what)))
        for word in self._refused:
            if word in f"install {self._asked[-1]}":
                raise NotPossibleHere(f"pip could not install it: No {word}.", hint="Try again.")

    @property
    def asked(self) -> list[str]:
        """Since the last look."""
        asked, self._asked = self._asked, []
        return asked


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    """A `.venv` without pip, on Linux, without a GPU."""
    pip, venv = Pip(), tmp_path / "venv"
    venv.mkdir()
    (venv / "python").touch()
    changed = {
        "VENV": venv,
        "VENV_PYTHON": venv / "python",
        "STAMP": venv / "stamp",
        "pip_install": pip.install,
        "venv_works": lambda: True,
        "installed_lean": lambda *_: False,  # as with the public index
        "system_compiler": lambda: Compiler(("g++",), ()),
    }
    for name, value in changed.items():
        monkeypatch.setattr(environment, name, value)
    monkeypatch.delenv(environment.TORCH_WHEELS_VARIABLE, raising=False)
    pretend(monkeypatch, tmp_path / "bin")
    return pip


INSTALLED_LEAN = environment.installed_lean
BY_HASH = "--no-deps --require-hashes -r"
TORCH, REST = f"{BY_HASH} {environment.TORCH_LOCK}", f"-r {environment.REQUIREMENTS}"
LOCKED = [f"{BY_HASH} {environment.LOCK}", REST]
REPAIR = "python launch.py repair"
RTX = "as NVIDIA GeForce RTX 4090 was found"
NO_GPU = "the smallest that is to be had, as no NVIDIA GPU was found."
FITS = "the build for CUDA {}, " + RTX + " and it has driver {}."
OLD = "the CPU build for now, " + RTX + ", but its driver {0} is too old for torch 2.13. "
OLD += "Update the NVIDIA driver to {1} or newer, then run: " + REPAIR


@pytest.mark.parametrize(
    ("smi", "device", "build", "line"),
    [
        (None, "auto", None, NO_GPU),
        ("580.65.06", "cpu", None, "the smallest that is to be had, as --device cpu was given."),
        ("470.82.01", "auto", "cpu", OLD.format("470.82.01", "525.60.13")),
        ("550.54.14", "cuda", "cu126", FITS.format("12.6", "550.54.14")),
        ("fails", "auto", "cpu", "the CPU build for now, as nvidia-smi is there and fails: No driver."),
    ],
)
def test_the_first_start_installs_the_torch_that_gpu_and_driver_need(
    smi: str | None, device: str, build: str | None, line: str,
    pip: Pip, tmp_path: Path, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The public index has CPU builds for Windows and CUDA 13 for Linux: neither serves a GPU with an older driver."""
    if smi is not None:
        fails = smi == "fails"
        put_smi(tmp_path / "bin", "No driver." if fails else answer(smi), code=9 if fails else 0)
    environment.fill_venv(device)
    own = TORCH if build in (None, "cpu") else f"--no-deps torch==2.13.0+{build}"
    own = f"--index-url {environment.TORCH_WHEELS}/{build} {own}" if build else own
    assert pip.asked == [own, *LOCKED], "torch alone from PyTorch's wheels, all else from the user's index"
    (told,) = capfd.readouterr().err.splitlines()
    assert told.startswith(f"torch: {line}")
    assert environment.STAMP.read_text() == environment.digest()


def test_torch_without_the_libraries_of_a_gpu_is_taken_where_somebody_has_it(
    pip: Pip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "installed_lean", INSTALLED_LEAN)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch := tmp_path / "scratch"))
    scratch.mkdir()
    from_pytorch = f"--index-url {environment.TORCH_WHEELS}/cpu --retries 1"
    cases: list[tuple[str, str, list[str], list[str]]] = [
        ("auto", environment.TORCH_WHEELS, [], [BY_HASH]),
        ("cpu", environment.TORCH_WHEELS, [f"install {BY_HASH} {scratch}"], [BY_HASH, from_pytorch]),
        ("auto", environment.TORCH_WHEELS, [str(scratch)], [BY_HASH, from_pytorch, TORCH]),
        ("cpu", "", [str(scratch)], [BY_HASH, TORCH]),
    ]
    for device, index, refused, expected in cases:
        monkeypatch.setenv(environment.TORCH_WHEELS_VARIABLE, index)
        pip.refuse(*refused)
        environment.fill_venv(device)
        asked = [line.partition(f" {scratch}")[0].removesuffix(f" {BY_HASH}") for line in pip.asked]
        assert asked == [*expected, *LOCKED]


def test_libraries_of_cuda_and_a_compiler_come_by_hash_where_they_are_needed(
    pip: Pip, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    told = environment.VENV / "lib" / "site-packages" / "torch" / "version.py"
    told.parent.mkdir(parents=True)
    for cuda, there in (("'13.0'", True), ("'12.6'", False), ("None", False)):
        told.write_text(f"__version__ = '2.13.0'\ncuda: str | None = {cuda}\n")
        environment.fill_venv("cpu")
        assert pip.asked == [TORCH, *([f"{BY_HASH} {environment.CUDA_LOCK}"] if there else []), *LOCKED]
    monkeypatch.setattr(environment, "system_compiler", lambda: None)
    environment.fill_venv("cpu")
    assert pip.asked == [TORCH, *LOCKED, f"{BY_HASH} {environment.COMPILER_LOCK}"]
    assert "no C++ compiler" not in capfd.readouterr().err
    pip.refuse("requirements-compiler")
    environment.fill_venv("cpu")
    assert "note: there is no C++ compiler, so answers take longer. pip could not" in capfd.readouterr().err
    assert environment.STAMP.read_text() == environment.digest(), "all else is there"


CPU, CUDA_13 = nvidia.InstalledTorch("2.13.0+cpu", None), nvidia.InstalledTorch("2.13.0", (13, 0))


@pytest.mark.parametrize(
    ("installed", "driver", "line"),
    [
        (CPU, "581.42", f"torch 2.13.0+cpu is a build without CUDA. Run: {REPAIR}"),
        (CUDA_13, "581.42", None),
        (CPU, None, None),
    ],
)
def test_the_first_line_of_a_start_tells_of_a_gpu_that_torch_cannot_use(
    installed: nvidia.InstalledTorch, driver: str | None, line: str | None,
    pip: Pip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(nvidia, "installed_torch", lambda: installed)
    if driver is not None:
        put_smi(tmp_path / "bin", answer(driver))
    monkeypatch.setattr(launch, "prepare_environment", lambda *_, **__: None)
    handed_over = SimpleNamespace(run=lambda args: print("handed over", file=sys.stderr) or 0)
    monkeypatch.setattr(importlib, "import_module", lambda name: handed_over)

    def told(*argv: str) -> list[str]:
        assert launch.main(argv) == 0
        return capfd.readouterr().err.splitlines()

    for argv in ([], ["ask", "a.pdf", "-q", "Who?"], ["doctor", "--offline"]):
        *notes, last = told(*argv)
        assert last == "handed over" and len(notes) == bool(line)
        assert not line or (notes[0].startswith("note: NVIDIA GeForce RTX 4090 is not used: ") and line in notes[0])
    for argv in (["--device", "cpu"], ["doctor", "--device", "cpu"], ["models"], ["--remote", "http://127.0.0.1:1"]):
        assert told(*argv) == ["handed over"], "nobody asked for a GPU"
    assert pip.asked == []


@pytest.mark.parametrize(
    ("refused", "code", "stamp"), [("", 0, True), ("+cu126", 1, True), ("requirements.txt", 1, False)]
)
def test_repair_installs_the_build_that_suits_the_gpu_or_leaves_what_the_next_start_completes(
    refused: str, code: int, stamp: bool,
    pip: Pip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "prefix", str(environment.VENV))
    environment.STAMP.write_text(environment.digest())
    monkeypatch.setattr(nvidia, "installed_torch", lambda: CPU)
    put_smi(tmp_path / "bin", answer("551.61"))
    pip.refuse(*([refused] if refused else []))
    assert launch.main(["repair"]) == code
    first, *_, last = capfd.readouterr().err.splitlines()
    assert "is a build without CUDA. Installing torch 2.13.0+cu126 in" in first
    assert last.startswith("error: ") if code else "Start with" in last
    build = f"--index-url {environment.TORCH_WHEELS}/cu126 --no-deps torch==2.13.0+cu126"
    assert pip.asked == ([build] if refused == "+cu126" else [build, REST])
    assert environment.STAMP.exists() is stamp and environment.venv_ready() is stamp
