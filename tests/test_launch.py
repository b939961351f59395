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
    for file in ("launch.py", "core/errors.py"):
        shutil.copy(REPOSITORY / file, root / file)
    (root / "requirements.txt").write_text("pytest>=9  # met by the environment of the tests\n\n")
    (root / "requirements-dev.txt").write_text("pytest>=9\n")
    for file in ("app/main.py", "app/commands/ask.py", "app/commands/doctor.py"):
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
    (checkout / "app/commands/ask.py").write_text(RAISES.format(stub))
    assert the_line(run("ask", "a", "-q", "b")) == "error: Bad value. Use another."


def test_an_interruption_is_quiet(run: Run, checkout: Path) -> None:
    (checkout / "app/commands/ask.py").write_text(RAISES.format("raise KeyboardInterrupt"))
    done = run("ask", "a", "-q", "b")
    assert (done.returncode, done.stderr) == (130, "")


def test_a_closed_pipe_is_quiet(checkout: Path) -> None:
    (checkout / "app/commands/ask.py").write_text(RAISES.format("print('word ' * 1_000_000); return 0"))
    command = [sys.executable, str(checkout / "launch.py"), "ask", "a", "-q", "b"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""


def test_a_bug_shows_its_traceback(run: Run, checkout: Path) -> None:
    (checkout / "app/commands/ask.py").write_text(RAISES.format("raise AssertionError('ours')"))
    assert "Traceback" in run("ask", "a", "-q", "b").stderr


def test_output_carries_any_letter_under_any_locale(run: Run, checkout: Path) -> None:
    (checkout / "app/commands/ask.py").write_text(RAISES.format(r"print('\u00e9\u4e2d'); return 0"))
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
