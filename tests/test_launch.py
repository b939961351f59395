"""launch.py as a user meets it: in a folder with spaces, from another folder, with and without an environment."""

import ast
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import launch
from core.planning import nvidia
from tests.fake_driver import answer, pretend, put_smi

REPOSITORY = Path(launch.__file__).parent
Run = Callable[..., subprocess.CompletedProcess[str]]

ECHO = """
import json, os, sys
def run(args):
    print("log", file=sys.stderr)
    told = {key: os.environ[key] for key in ("GRADIO_ANALYTICS_ENABLED", "HF_HUB_DISABLE_TELEMETRY")}
    print(json.dumps({**vars(args), **told, "prefix": sys.prefix}, default=str))
    return 0
"""
RAISES = "def run(args):\n    {}\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small project around launch.py whose commands print what they were given. Its path has spaces."""
    root = tmp_path / "a check out"
    (root / "app" / "commands").mkdir(parents=True)
    (root / "core").mkdir()
    for file in ("launch.py", "core/errors.py", "core/planning/nvidia.py"):
        shutil.copy(REPOSITORY / file, root / file)
    (root / "requirements.txt").write_text("pytest>=9  # met by the environment of the tests\n\n")
    (root / "requirements-dev.txt").write_text("pytest>=9\n")
    for file in ("app/server/serve_page.py", "app/cli/ask.py", "app/cli/doctor.py"):
        (root / file).write_text(ECHO)
    return root


@pytest.fixture
def run(checkout: Path, tmp_path: Path) -> Run:
    """Run the checkout's launch.py from a folder that is not its own."""

    def start(*argv: str, python: str = sys.executable, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("VIRTUAL_ENV", "PYTEST"))}
        command = [python, str(checkout / "launch.py"), *argv]
        return subprocess.run(command, cwd=tmp_path, env=clean | environment, capture_output=True, text=True)

    return start


def the_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on stderr of a run that ended in the user's situation."""
    assert done.returncode == 1, done
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("Setting up")]
    assert line.startswith("error: ")
    return line


# -------------------- old Pythons


def test_an_old_python_can_parse_the_file() -> None:
    ast.parse((REPOSITORY / "launch.py").read_text(encoding="utf-8"), feature_version=(3, 8))


def test_an_old_python_gets_one_line() -> None:
    pretend = "import sys, runpy; sys.version_info = (3, 8, 18); runpy.run_path(sys.argv[1], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", pretend, str(REPOSITORY / "launch.py")], capture_output=True, text=True
    )
    assert "needs Python 3.11 or newer, this is Python 3.8" in the_line(done)


# -------------------- arguments


def test_without_a_command_it_is_the_app() -> None:
    args = launch.parse_arguments([])
    assert (args.command, args.host, args.port, args.browser, args.share, args.auth) == (
        None,
        "127.0.0.1",
        7860,
        True,
        False,
        None,
    )


def test_common_options_hold_before_and_after_a_command() -> None:
    for argv in (["--seed", "7", "ask", "a.pdf", "-q", "Who?"], ["ask", "a.pdf", "-q", "Who?", "--seed", "7"]):
        args = launch.parse_arguments(argv)
        assert (args.seed, args.device, args.model, args.context) == (7, "auto", None, None)


def test_ask_takes_files_and_a_question_in_any_order() -> None:
    args = launch.parse_arguments(["ask", "-q", "Who?", "a.pdf", "b.txt", "--temperature", "-1", "--json"])
    assert args.files == [Path("a.pdf"), Path("b.txt")]
    assert (args.question, args.temperature, args.method, args.max_new_tokens) == ("Who?", -1.0, None, 256)
    assert args.json


def test_lists_are_written_with_commas() -> None:
    args = launch.parse_arguments(["bench", "--contexts", "4096,32768", "--methods", "triforce,autoregressive"])
    assert args.contexts == (4096, 32768)
    assert args.methods == ("triforce", "autoregressive")


def test_the_tests_pass_unknown_arguments_on_in_their_order() -> None:
    args = launch.parse_arguments(["test", "--no-venv", "tests/core", "-k", "cache and not slow", "-x"])
    assert args.pytest_args == ["tests/core", "-k", "cache and not slow", "-x"]


def test_the_long_tests_get_their_arguments(run: Run, checkout: Path) -> None:
    (checkout / "tests").mkdir(exist_ok=True)
    (checkout / "tests/long.py").write_text("import sys; print(sys.argv[1:]); sys.exit(3)\n")
    done = run("test", "--long", "--case", "b12", "--json", "F")
    assert done.stdout.strip() == "['--case', 'b12', '--json', 'F']" and done.returncode == 3


@pytest.mark.parametrize(
    "argv",
    [
        ["sing"],
        ["models", "get"],
        ["models", "list", "qwen3-8b"],
        ["models", "eat", "qwen3-8b"],
        ["ask"],
        ["ask", "a.pdf"],
        ["ask", "a.pdf", "-q", "Who?", "--questions", "f.json"],
        ["ask", "a.pdf", "-q", "Who?", "--port", "80"],
        ["--port", "80", "doctor"],
        ["--port", "0"],
        ["--port", "65536"],
        ["--port", "http"],
        ["bench", "--contexts", "4096,,"],
        ["bench", "--contexts", "4k"],
        ["doctor", "--device", "tpu"],
        ["ask", "a.pdf", "-q", "Who?", "--se", "7"],
    ],
)
def test_wrong_usage_exits_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        launch.parse_arguments(argv)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


# -------------------- handing over


def test_a_met_environment_is_used_at_once_from_any_folder(run: Run, checkout: Path) -> None:
    done = run("ask", "a b.pdf", "-q", "Who?", "--json")
    assert done.returncode == 0, done
    given = json.loads(done.stdout)
    assert given["prefix"] == sys.prefix
    assert "a b.pdf" in str(given["files"])
    assert (given["GRADIO_ANALYTICS_ENABLED"], given["HF_HUB_DISABLE_TELEMETRY"]) == ("False", "1")
    assert not (checkout / ".venv").exists()


def test_without_a_command_the_app_runs(run: Run) -> None:
    assert json.loads(run("--no-browser").stdout)["browser"] is False


def test_a_core_error_is_one_line_and_exit_code_1(run: Run, checkout: Path) -> None:
    stub = "from core.errors import InvalidSetting; raise InvalidSetting('Bad\\nvalue.', hint='Use another.')"
    (checkout / "app/cli/ask.py").write_text(RAISES.format(stub))
    assert the_line(run("ask", "a", "-q", "b")) == "error: Bad value. Use another."


def test_an_interruption_is_quiet(run: Run, checkout: Path) -> None:
    (checkout / "app/cli/ask.py").write_text(RAISES.format("raise KeyboardInterrupt"))
    done = run("ask", "a", "-q", "b")
    assert (done.returncode, done.stderr) == (130, "")


def test_a_closed_pipe_is_quiet(checkout: Path) -> None:
    (checkout / "app/cli/ask.py").write_text(RAISES.format("print('word ' * 1_000_000); return 0"))
    command = [sys.executable, str(checkout / "launch.py"), "ask", "a", "-q", "b"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""


def test_a_bug_shows_its_traceback(run: Run, checkout: Path) -> None:
    (checkout / "app/cli/ask.py").write_text(RAISES.format("raise AssertionError('ours')"))
    assert "Traceback" in run("ask", "a", "-q", "b").stderr


def test_output_carries_any_letter_under_any_locale(run: Run, checkout: Path) -> None:
    (checkout / "app/cli/ask.py").write_text(RAISES.format(r"print('\u00e9\u4e2d'); return 0"))
    assert run("ask", "a", "-q", "b", PYTHONIOENCODING="ascii").returncode == 0


def test_tests_run_in_the_projects_folder_with_their_arguments_and_exit_code(run: Run, checkout: Path) -> None:
    (checkout / "tests").mkdir()
    (checkout / "tests/test_x.py").write_text("def test_a(): pass\ndef test_b(): assert False\ndef test_c(): pass\n")
    done = run("test", "-p", "no:cacheprovider", "-k", "a or b", "tests/test_x.py")
    assert "1 failed, 1 passed, 1 deselected" in done.stdout
    assert done.returncode == 1


# -------------------- the environment


def test_no_venv_names_what_the_environment_lacks(run: Run, checkout: Path) -> None:
    (checkout / "requirements.txt").write_text("pytest>=9\nno-such-package==1\n")
    assert "lacks no-such-package==1" in the_line(run("--no-venv", "doctor"))
    assert not (checkout / ".venv").exists()


def test_wrong_usage_installs_nothing(run: Run, checkout: Path) -> None:
    (checkout / "requirements.txt").write_text("no-such-package==1\n")
    assert run("sing").returncode == 2
    assert not (checkout / ".venv").exists()


def add_distribution(folder: Path, name: str, version: str, requires: str = "") -> None:
    """Make `importlib.metadata` find a distribution."""
    metadata = folder / f"{name}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}")


def test_requirements_are_checked_with_versions_extras_and_markers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_distribution(tmp_path, "plain", "2.13.0+cpu")
    add_distribution(tmp_path, "extra", "1.0", 'Requires-Dist: no-such-package; extra == "more"\n')
    (tmp_path / "half-1.0.dist-info").mkdir()  # what an interrupted installation leaves
    monkeypatch.syspath_prepend(tmp_path)
    met = ["plain==2.13.0", "plain>=2,<3", "extra", "gone; python_version < '3'"]
    unmet = ["plain==2.14.0", "gone", "extra[more]", "half", "half>=1"]
    assert [line for line in met if not launch.is_met(Requirement(line))] == []
    assert [line for line in unmet if launch.is_met(Requirement(line))] == []


def test_torch_is_pinned_wherever_it_is_required() -> None:
    files = sorted(REPOSITORY.glob("requirements*.txt"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pins = [str(requirement.specifier) for requirement in requirements if requirement.name == "torch"]
    assert pins == ["==2.13.0"]
    assert all(requirement.specifier for requirement in requirements)


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
    assert sentence in str(launch.explain_pip(complaints))


@pytest.fixture
def wheel(checkout: Path, tmp_path: Path) -> dict[str, str]:
    """Make the checkout require a package that only a local folder has; returns the settings that let pip find it."""
    (checkout / "requirements.txt").write_text("tiny==1.0\n")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for version in ("1.0", "2.0"):
        info = f"tiny-{version}.dist-info"
        with zipfile.ZipFile(wheels / f"tiny-{version}-py3-none-any.whl", "w") as archive:
            archive.writestr("tiny.py", f"version = '{version}'\n")
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}


@pytest.mark.slow
def test_the_first_start_makes_an_environment_and_the_second_installs_nothing(
    run: Run, checkout: Path, wheel: dict[str, str]
) -> None:
    first = run("doctor", "--json", **wheel)
    assert first.returncode == 0, first
    assert json.loads(first.stdout)["prefix"] == str(checkout / ".venv")  # nothing but the document on stdout
    assert "Setting up" in first.stderr
    second = run("doctor", "--json", PIP_NO_INDEX="1")
    assert second.stdout == first.stdout
    assert second.stderr == "log\n"


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["interrupted", "no pip", "no python", "a file", "outdated"])
def test_a_half_made_environment_is_repaired(run: Run, checkout: Path, wheel: dict[str, str], damage: str) -> None:
    venv = checkout / ".venv"
    if damage == "a file":
        venv.write_text("")
        assert "Remove .venv" in the_line(run("doctor", **wheel))
        return
    assert run("doctor", **wheel).returncode == 0
    stamp = venv / launch.STAMP.name
    match damage:
        case "interrupted":
            stamp.write_text(launch.INSTALLING)
            next(venv.rglob("tiny-1.0.dist-info/RECORD")).unlink()  # pip would refuse to replace this one
        case "no pip":
            stamp.unlink()
            shutil.rmtree(next(venv.rglob("site-packages/pip")))
        case "no python":
            (venv / "bin" / "python").unlink()
        case "outdated":
            (checkout / "requirements.txt").write_text("tiny==2.0\n")
    done = run("doctor", **wheel)
    assert done.returncode == 0, done
    assert json.loads(done.stdout)["prefix"] == str(venv)
    assert list(venv.rglob(f"tiny-{'2.0' if damage == 'outdated' else '1.0'}.dist-info/RECORD"))


@pytest.mark.slow
def test_without_a_network_one_line_says_so_and_the_next_start_works(
    run: Run, checkout: Path, wheel: dict[str, str]
) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "1"}
    done = run("doctor", **nowhere)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: The package index cannot be reached")
    assert "Traceback" not in done.stderr
    assert run("doctor", **wheel).returncode == 0


@pytest.mark.slow
def test_two_first_starts_at_once_do_not_disturb_each_other(
    checkout: Path, wheel: dict[str, str], tmp_path: Path
) -> None:
    command = [sys.executable, str(checkout / "launch.py"), "doctor"]
    environment = os.environ | wheel
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in "12"]
    outputs = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sum(b"Setting up" in errors for _, errors in outputs) == 1


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
    monkeypatch.setattr(launch, "VENV", venv)
    monkeypatch.setattr(launch, "VENV_PYTHON", pip.python)
    monkeypatch.setattr(launch, "STAMP", venv / "stamp")
    monkeypatch.setattr(launch, "venv_works", lambda: True)
    monkeypatch.delenv(launch.TORCH_WHEELS_VARIABLE, raising=False)
    pretend(monkeypatch, tmp_path / "bin")
    return pip


PLACE = launch.TORCH_WHEELS
REST = f"-r {launch.REQUIREMENTS}"
RTX = "as NVIDIA GeForce RTX 4090 was found"
UPDATE = "Update the NVIDIA driver to {} or newer, then run: python launch.py repair"


@pytest.mark.parametrize(
    ("system", "smi", "device", "build", "line"),
    [
        ("linux", None, "auto", None, "from your package index, as no NVIDIA GPU was found."),
        ("win32", None, "auto", None, "from your package index, as no NVIDIA GPU was found."),
        (
            "linux",
            [answer("470.82.01")],
            "auto",
            "cpu",
            f"the CPU build for now, {RTX}, but its driver 470.82.01 is too old for torch 2.13. "
            + UPDATE.format("525.60.13"),
        ),
        (
            "win32",
            [answer("472.12")],
            "auto",
            "cpu",
            f"the CPU build for now, {RTX}, but its driver 472.12 is too old for torch 2.13. "
            + UPDATE.format("528.33"),
        ),
        (
            "linux",
            [answer("550.54.14")],
            "auto",
            "cu126",
            f"the build for CUDA 12.6, {RTX} and it has driver 550.54.14.",
        ),
        ("win32", [answer("551.61")], "auto", "cu126", f"the build for CUDA 12.6, {RTX} and it has driver 551.61."),
        (
            "linux",
            [answer("580.65.06")],
            "cuda",
            "cu130",
            f"the build for CUDA 13.0, {RTX} and it has driver 580.65.06.",
        ),
        ("win32", [answer("581.42")], "auto", "cu130", f"the build for CUDA 13.0, {RTX} and it has driver 581.42."),
        ("linux", [answer("580.65.06")], "cpu", None, "from your package index, as --device cpu was given."),
        ("darwin", [answer("580.65.06")], "auto", None, "from your package index, as no NVIDIA GPU was found."),
        ("linux", "fails", "auto", "cpu", "the CPU build for now, as nvidia-smi is there and fails: No driver."),
        ("linux", "hangs", "auto", "cpu", "the CPU build for now, as nvidia-smi is there and does not answer within"),
    ],
)
def test_the_first_start_installs_the_torch_that_gpu_and_driver_need(
    system: str,
    smi: list[str] | str | None,
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
        put_smi(tmp_path / "bin", *smi)
    launch.fill_venv(device)
    own = [f"--no-deps --index-url {PLACE}/{build} torch==2.13.0+{build}"] if build else []
    assert pip.asked == [*own, REST], "torch alone from PyTorch's wheels, all else from the user's index"
    (told,) = capfd.readouterr().err.splitlines()
    assert told.startswith(f"torch: {line}")
    assert launch.STAMP.read_text() == launch.digest()


def test_another_place_for_the_wheels_can_be_named_or_none(
    pip: Pip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_smi(tmp_path / "bin", answer("580.65.06"))
    monkeypatch.setenv(launch.TORCH_WHEELS_VARIABLE, "file:///mirror/")
    launch.fill_venv("auto")
    monkeypatch.setenv(launch.TORCH_WHEELS_VARIABLE, "")
    launch.fill_venv("auto")
    assert pip.asked == ["--no-deps --index-url file:///mirror/cu130 torch==2.13.0+cu130", REST, REST]


def test_wheels_that_cannot_be_had_are_one_line(pip: Pip, tmp_path: Path) -> None:
    put_smi(tmp_path / "bin", answer("580.65.06"))
    pip.refuse("+cu130")
    with pytest.raises(launch.Situation) as caught:
        launch.fill_venv("auto")
    assert f"torch 2.13.0+cu130 was not to be had from {PLACE}." in str(caught.value)
    assert "start with --device cpu" in str(caught.value) and not launch.STAMP.exists()


def test_the_known_builds_are_those_of_the_pinned_torch() -> None:
    version = launch.torch_version()
    assert version is not None and version.startswith(f"{nvidia.BUILDS_OF}.")


def test_requirements_without_torch_install_none(pip: Pip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_smi(tmp_path / "bin", answer("580.65.06"))
    other = tmp_path / "requirements.txt"
    other.write_text("tiny==1.0\n")
    monkeypatch.setattr(launch, "REQUIREMENTS", other)
    launch.fill_venv("auto")
    assert pip.asked == [f"-r {other}"]


@pytest.mark.parametrize(
    ("installed", "driver", "line"),
    [
        (
            nvidia.InstalledTorch("2.13.0+cpu", None),
            "581.42",
            "torch 2.13.0+cpu is a build without CUDA. Run: python launch.py repair",
        ),
        (
            nvidia.InstalledTorch("2.13.0", (13, 0)),
            "570.133.07",
            "its driver 570.133.07 is too old for torch 2.13.0, built with CUDA 13.0. Run: python launch.py repair",
        ),
        (
            nvidia.InstalledTorch("2.13.0+cpu", None),
            "470.82.01",
            f"its driver 470.82.01 is too old for torch 2.13. {UPDATE.format('525.60.13')}",
        ),
        (nvidia.InstalledTorch("2.13.0+cu130", (13, 0)), "581.42", None),
        (nvidia.InstalledTorch("2.13.0+cpu", None), None, None),
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
    monkeypatch.setattr(sys, "prefix", str(launch.VENV))
    launch.STAMP.write_text(launch.digest())
    monkeypatch.setattr(nvidia, "installed_torch", lambda: nvidia.InstalledTorch("2.13.0+cpu", None))
    put_smi(tmp_path / "bin", answer("551.61"))
    return pip


def test_repair_installs_the_build_that_suits_the_gpu(broken: Pip, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch.main(["repair"]) == 0
    assert broken.asked == [f"--no-deps --index-url {PLACE}/cu126 torch==2.13.0+cu126", REST]
    assert launch.STAMP.read_text() == launch.digest()
    first, last = capfd.readouterr().err.splitlines()
    assert "is a build without CUDA. Installing torch 2.13.0+cu126 in" in first and "Start with" in last


@pytest.mark.parametrize(("refused", "stamp"), [("+cu126", True), ("requirements.txt", False)])
def test_a_repair_that_fails_leaves_what_works_or_what_the_next_start_completes(
    refused: str, stamp: bool, broken: Pip, capfd: pytest.CaptureFixture[str]
) -> None:
    broken.refuse(refused)
    assert launch.main(["repair"]) == 1
    assert capfd.readouterr().err.splitlines()[-1].startswith("error: ")
    assert launch.STAMP.exists() is stamp and launch.venv_ready() is stamp


@pytest.mark.parametrize(
    ("lines", "code", "words"),
    [
        ([answer("470.82.01")], 1, UPDATE.format("525.60.13")),
        (["No devices were found"], 0, "There is nothing to repair: no NVIDIA GPU was found."),
    ],
)
def test_repair_installs_nothing_where_that_mends_nothing(
    lines: list[str], code: int, words: str, broken: Pip, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    put_smi(tmp_path / "bin", *lines, code=0 if code else 6)
    assert launch.main(["repair"]) == code
    assert words in capfd.readouterr().err and broken.asked == []


def test_repair_finds_a_build_that_suits(
    broken: Pip, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nvidia, "installed_torch", lambda: nvidia.InstalledTorch("2.13.0+cu126", (12, 6)))
    assert launch.main(["repair"]) == 0
    assert "nothing to repair: torch 2.13.0+cu126 suits NVIDIA" in capfd.readouterr().err and broken.asked == []


def test_repair_says_what_keeps_it_from_the_wheels(
    broken: Pip, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(launch.TORCH_WHEELS_VARIABLE, "")
    assert launch.main(["repair"]) == 1
    assert "TRIFORCE_TORCH_INDEX is empty. Unset it" in capfd.readouterr().err and broken.asked == []


def tiny_torch(folder: Path, version: str, cuda: str | None) -> None:
    """A wheel that calls itself torch."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"torch-{version}.dist-info"
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr("torch/__init__.py", "")
        archive.writestr("torch/version.py", f"__version__ = '{version}'\ncuda = {cuda!r}\n")
        needs = "Requires-Dist: tiny\n"  # which PyTorch's wheels need not have
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n{needs}")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "darwin", reason="no NVIDIA GPU is looked for on macOS")
def test_a_real_pip_installs_the_build_for_the_gpu_and_repair_replaces_a_cpu_build(
    run: Run, checkout: Path, wheel: dict[str, str], tmp_path: Path
) -> None:
    (checkout / "requirements.txt").write_text("torch==2.13.0\ntiny==1.0\n")
    tiny_torch(Path(wheel["PIP_FIND_LINKS"]), "2.13.0", None)  # the user's own index has a CPU build, as for Windows
    for build, cuda in (("cu130", "13.0"), ("cu126", "12.6")):
        tiny_torch(tmp_path / "index" / build / "torch", f"2.13.0+{build}", cuda)
        links = "".join(
            f'<a href="{file.name}">{file.name}</a>' for file in (tmp_path / "index" / build).rglob("*.whl")
        )
        (tmp_path / "index" / build / "torch" / "index.html").write_text(f"<!DOCTYPE html><html>{links}</html>")
    settings = {key: value for key, value in wheel.items() if key != "PIP_NO_INDEX"} | {
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",  # nobody is there: all else comes from the user's folder
        "PIP_RETRIES": "0",
        "TRIFORCE_TORCH_INDEX": (tmp_path / "index").as_uri(),
    }
    path = {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def version() -> str:
        (found,) = (checkout / ".venv").rglob("torch-*.dist-info")
        return found.name.removeprefix("torch-").removesuffix(".dist-info")

    put_smi(tmp_path / "bin", answer("580.65.06"))
    first = run("doctor", **settings, **path)
    assert first.returncode == 0, first
    assert version() == "2.13.0+cu130" and "note:" not in first.stderr
    put_smi(tmp_path / "bin", answer("560.28.03"))  # the card moves to a machine with an older driver
    offline = {"PIP_NO_INDEX": "1"} | path
    second = run("doctor", **offline)
    if not nvidia.DRIVER_MODULE.is_file():
        assert "note:" in second.stderr and "built with CUDA 13.0. Run: python launch.py repair" in second.stderr
    assert run("repair", **settings, **path).returncode == 0
    assert version() == "2.13.0+cu126"
    third = run("doctor", **offline)
    assert (third.returncode, third.stderr) == (0, "log\n")
    assert "nothing to repair" in run("repair", **offline).stderr
