"""launch.py as a user meets it: in a folder with spaces, from another folder, with and without an environment."""

import ast
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import launch
from app.cli import environment

REPOSITORY = Path(launch.__file__).parent
Run = Callable[..., subprocess.CompletedProcess[str]]

ECHO = """
import json, os, sys
NAMES = ("GRADIO_ANALYTICS_ENABLED", "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_OFFLINE", "PIP_NO_INDEX")
def run(args):
    print("log", file=sys.stderr)
    told = {key: os.environ.get(key) for key in NAMES}
    print(json.dumps({**vars(args), **told, "prefix": sys.prefix}, default=str))
    return 0
"""
COPIED = (
    "launch.py", "app/cli/arguments.py", "app/cli/command_options.py",
    "assets/tools/commands.py", "app/cli/terminal.py", "app/document_formats.py", "assets/tools/check.py",
    "app/cli/environment.py", "core/errors.py", "core/planning/nvidia.py",
    "core/ops/compilers.py",
)  # fmt: skip
ASK = ("ask", "a b.pdf", "-q", "Who?")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small project around launch.py whose commands print what they were given. Its path has spaces."""
    root = tmp_path / "a check out"
    for file in COPIED:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / file, root / file)
    (root / "app/server").mkdir()
    (root / "tests").mkdir()
    (root / "requirements.txt").write_text("pytest>=9  # met by the environment of the tests\n\n")
    (root / "requirements-dev.txt").write_text("pytest>=9\n")
    for file in environment.LOCKS:
        (root / file.name).write_text("")
    for file in ("app/server/serve_page.py", "app/cli/ask.py", "app/cli/doctor.py"):
        (root / file).write_text(ECHO)
    return root


@pytest.fixture
def run(checkout: Path, tmp_path: Path) -> Run:
    """Run the checkout's launch.py from a folder that is not its own. `ask`: what that command does."""

    def start(*argv: str, ask: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        if ask:
            (checkout / "app/cli/ask.py").write_text(f"def run(args):\n    {ask}\n")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("VIRTUAL_ENV", "PYTEST"))}
        command = [sys.executable, str(checkout / "launch.py"), *argv]
        return subprocess.run(command, cwd=tmp_path, env=clean | environment, capture_output=True, text=True)

    return start


def the_line(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The one line on stderr of a run that ended in the user's situation."""
    assert done.returncode == code and done.stdout == "", done
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("Setting up")]
    assert line.startswith("error: ")
    return line


# -------------------- old Pythons and bare ones


def test_an_old_python_gets_one_line() -> None:
    file = REPOSITORY / "launch.py"
    ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 8))
    pretend = "import sys, runpy; sys.version_info = (3, 8, 18); runpy.run_path(sys.argv[1], run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", pretend, str(file)], capture_output=True, text=True)
    assert "needs Python 3.11 or newer, this is Python 3.8" in the_line(done)


def test_nothing_but_the_standard_library_is_imported_before_the_environment_is_ready() -> None:
    code = "import sys; before = set(sys.modules); import launch; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    names = {name.partition(".")[0] for name in done.stdout.split()}
    assert names - sys.stdlib_module_names == {"app", "assets", "core", "launch"}
    assert "app.cli.arguments" in done.stdout.split()


# -------------------- handing over


def test_a_met_environment_is_used_at_once_from_any_folder(run: Run, checkout: Path) -> None:
    given = json.loads(run(*ASK, "--json").stdout)
    assert given["prefix"] == sys.prefix and "a b.pdf" in str(given["files"])
    assert (given["GRADIO_ANALYTICS_ENABLED"], given["HF_HUB_DISABLE_TELEMETRY"]) == ("False", "1")
    given = json.loads(run("--no-browser", "--offline").stdout)
    assert (given["browser"], given["HF_HUB_OFFLINE"], given["PIP_NO_INDEX"]) == (False, "1", "1"), "set before imports"
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(("name", "code"), [("InvalidSetting", 2), ("NotPossibleHere", 1), ("UnsupportedModel", 1)])
def test_a_core_error_is_one_line_and_its_exit_code(run: Run, name: str, code: int) -> None:
    raises = f"from core.errors import {name}; raise {name}('Bad\\nvalue.', hint='Use another.')"
    assert the_line(run(*ASK, ask=raises), code) == "error: Bad value. Use another."
    told = {"problem": "Bad\nvalue.", "hint": "Use another.", "exit_code": code}
    assert json.loads(run(*ASK, "--json").stdout) == {"error": told}


def test_a_file_that_may_not_be_read_is_an_error_like_any_other(run: Run) -> None:
    raises = "raise PermissionError(13, 'Permission denied', '/models/x')"
    told = "error: /models/x: Permission denied. Check who may read and write there."
    assert the_line(run(*ASK, ask=raises)) == told
    assert json.loads(run(*ASK, "--json").stdout)["error"]["exit_code"] == 1


@pytest.mark.parametrize(
    ("ask", "status", "told"),
    [
        ("raise KeyboardInterrupt", 130, ""),
        ("raise AssertionError('ours')", 1, "Traceback"),  # a bug
        (r"print('\u00e9\u4e2d'); return 0", 0, ""),  # any letter under any locale
    ],
)
def test_a_command_ends_as_it_should(run: Run, ask: str, status: int, told: str) -> None:
    done = run(*ASK, ask=ask, PYTHONIOENCODING="ascii")
    assert done.returncode == status and done.stderr.startswith(told) and bool(done.stderr) == bool(told)


def test_a_full_disk_closed_streams_and_a_closed_pipe_are_no_traceback(run: Run, checkout: Path) -> None:
    run(*ASK, ask="import sys; print(sys.stdin.read() + 'word'); return 0")
    command = [sys.executable, str(checkout / "launch.py"), *ASK]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    for closed, written in (("<&-", "word\n"), (">&-", ""), ("2>&- >&-", "")):
        done = subprocess.run(f"{shlex.join(command)} {closed}", shell=True, capture_output=True, text=True, input="")
        assert (done.returncode, done.stdout, done.stderr) == (0, written, "")
    run(*ASK, ask="print('word ' * 1_000_000); return 0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""


def test_tests_run_in_the_projects_folder_with_their_arguments_and_exit_code(run: Run, checkout: Path) -> None:
    (checkout / "tests/test_x.py").write_text("def test_a(): pass\ndef test_b(): assert False\ndef test_c(): pass\n")
    done = run("test", "-p", "no:cacheprovider", "-k", "a or b", "tests/test_x.py")
    assert "1 failed, 1 passed, 1 deselected" in done.stdout and done.returncode == 1
    (checkout / "tests/long.py").write_text("import sys; print(sys.argv[1:]); sys.exit(3)\n")
    done = run("test", "--long", "--case", "b12", "--json", "F")
    assert done.stdout.strip() == "['--case', 'b12', '--json', 'F']" and done.returncode == 3


# -------------------- the environment


def test_what_needs_no_package_installs_none(run: Run, checkout: Path) -> None:
    (checkout / "requirements.txt").write_text("pytest>=9\nno-such-package==1\n")
    assert run("--version").stdout.startswith("TriForce Reader ")
    assert run("sing").returncode == 2
    assert "lacks no-such-package==1" in the_line(run("doctor", "--no-venv"))
    assert not (checkout / ".venv").exists()


@pytest.fixture
def wheel(checkout: Path, tmp_path: Path) -> dict[str, str]:
    """Make the checkout require a package that only a local folder has; returns the settings that let pip find it."""
    ask_for(checkout, tmp_path / "wheels", "1.0")
    found = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels"), "PIP_CONFIG_FILE": os.devnull}
    return found | {"PIP_USER": "1"}  # a wish for other packages


def ask_for(checkout: Path, wheels: Path, version: str) -> None:
    """Require a tiny package at a version, by its hash, and make a wheel of it."""
    wheels.mkdir(exist_ok=True)
    info, wheel = f"tiny-{version}.dist-info", wheels / f"tiny-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (checkout / "requirements.txt").write_text(f"tiny=={version}\n")
    (checkout / environment.LOCK.name).write_text(f"tiny=={version} --hash=sha256:{digest}\n")


@pytest.mark.slow
def test_the_first_start_makes_an_environment_and_the_second_installs_nothing(
    run: Run, checkout: Path, wheel: dict[str, str]
) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "1"}
    done = run("doctor", **nowhere)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: The package index cannot be reached")
    first = run("doctor", "--json", **wheel)
    assert json.loads(first.stdout)["prefix"] == str(checkout / ".venv")  # nothing but the document on stdout
    assert "Setting up" in first.stderr
    second = run("doctor", "--json", PIP_NO_INDEX="1")
    assert (second.stdout, second.stderr) == (first.stdout, "log\n")


@pytest.mark.slow
def test_a_half_made_environment_is_repaired(run: Run, checkout: Path, wheel: dict[str, str]) -> None:
    venv = checkout / ".venv"
    stamp = venv / environment.STAMP.name
    venv.write_text("")
    assert "Remove .venv" in the_line(run("doctor", **wheel))
    venv.unlink()

    def starts(version: str = "1.0") -> None:
        done = run("doctor", **wheel)
        assert done.returncode == 0, done
        assert json.loads(done.stdout)["prefix"] == str(venv)
        assert list(venv.rglob(f"tiny-{version}.dist-info/RECORD"))

    starts()
    stamp.write_text(environment.INSTALLING)
    next(venv.rglob("tiny-1.0.dist-info/RECORD")).unlink()  # pip would refuse to replace this one
    starts()
    stamp.unlink()
    shutil.rmtree(next(venv.rglob("site-packages/pip")))
    starts()
    (venv / "bin" / "python").unlink()
    starts()
    packages = next(venv.glob("lib/python3*"))
    packages.rename(packages.with_name("python3.0"))  # as when the system's Python becomes another one
    assert "half installed" in the_line(run("doctor", **wheel))
    starts()
    ask_for(checkout, Path(wheel["PIP_FIND_LINKS"]), "2.0")
    starts("2.0")


@pytest.mark.slow
def test_a_package_that_was_changed_on_its_way_is_not_installed(
    run: Run, checkout: Path, wheel: dict[str, str]
) -> None:
    with (Path(wheel["PIP_FIND_LINKS"]) / "tiny-1.0-py3-none-any.whl").open("ab") as changed:
        changed.write(b" ")
    done = run("doctor", **wheel)
    assert done.returncode == 1 and "by its hash. Start again" in done.stderr.splitlines()[-1], done
    assert not list((checkout / ".venv").rglob("tiny*"))
    (checkout / "requirements.txt").write_text("tiny\n")
    (checkout / environment.LOCK.name).write_text("tiny==1.0\n")
    assert run("doctor", **wheel).returncode == 1, "nor is one without a hash"


@pytest.mark.slow
def test_two_first_starts_at_once_do_not_disturb_each_other(checkout: Path, wheel: dict[str, str]) -> None:
    command = [sys.executable, str(checkout / "launch.py"), "doctor"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    both = [subprocess.Popen(command, env=os.environ | wheel, **pipes) for _ in "12"]  # type: ignore[call-overload]
    outputs = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sum(b"Setting up" in errors for _, errors in outputs) == 1
