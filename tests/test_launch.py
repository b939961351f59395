"""launch.py as a user meets it: in a folder with spaces, from another folder, with and without an environment."""

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import launch
from app.cli import environment
from core.planning import nvidia
from tests.fake_driver import answer, put_smi

REPOSITORY = Path(launch.__file__).parent
Run = Callable[..., subprocess.CompletedProcess[str]]

ECHO = """
import json, os, sys
NAMES = ("GRADIO_ANALYTICS_ENABLED", "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_OFFLINE")
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
RAISES = "def run(args):\n    {}\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small project around launch.py whose commands print what they were given. Its path has spaces."""
    root = tmp_path / "a check out"
    for file in COPIED:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / file, root / file)
    (root / "app/server").mkdir()
    (root / "requirements.txt").write_text("pytest>=9  # met by the environment of the tests\n\n")
    (root / "requirements-dev.txt").write_text("pytest>=9\n")
    for file in environment.LOCKS:
        (root / file.name).write_text("")
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


def the_line(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The one line on stderr of a run that ended in the user's situation."""
    assert done.returncode == code, done
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("Setting up")]
    assert line.startswith("error: ")
    return line


# -------------------- old Pythons and bare ones


def test_an_old_python_can_parse_the_file() -> None:
    ast.parse((REPOSITORY / "launch.py").read_text(encoding="utf-8"), feature_version=(3, 8))


def test_an_old_python_gets_one_line() -> None:
    pretend = "import sys, runpy; sys.version_info = (3, 8, 18); runpy.run_path(sys.argv[1], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", pretend, str(REPOSITORY / "launch.py")], capture_output=True, text=True
    )
    assert "needs Python 3.11 or newer, this is Python 3.8" in the_line(done)


def test_nothing_but_the_standard_library_is_imported_before_the_environment_is_ready() -> None:
    code = "import sys; before = set(sys.modules); import launch; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    names = {name.partition(".")[0] for name in done.stdout.split()}
    assert names - sys.stdlib_module_names == {"app", "assets", "core", "launch"}
    assert "app.cli.arguments" in done.stdout.split()


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
    given = json.loads(run("--no-browser", "--offline").stdout)
    assert (given["browser"], given["HF_HUB_OFFLINE"]) == (False, "1"), "set before anything is imported"


@pytest.mark.parametrize(("name", "code"), [("InvalidSetting", 2), ("NotPossibleHere", 1), ("UnsupportedModel", 1)])
def test_a_core_error_is_one_line_and_its_exit_code(run: Run, checkout: Path, name: str, code: int) -> None:
    stub = f"from core.errors import {name}; raise {name}('Bad\\nvalue.', hint='Use another.')"
    (checkout / "app/cli/ask.py").write_text(RAISES.format(stub))
    assert the_line(run("ask", "a", "-q", "b"), code) == "error: Bad value. Use another."
    done = run("ask", "a", "-q", "b", "--json")
    assert json.loads(done.stdout) == {"error": {"problem": "Bad\nvalue.", "hint": "Use another.", "exit_code": code}}


def test_the_version_is_told_before_anything_is_installed(run: Run, checkout: Path) -> None:
    (checkout / "requirements.txt").write_text("no-such-package==1\n")
    done = run("--version")
    assert done.returncode == 0 and done.stdout.startswith("TriForce Reader ") and not (checkout / ".venv").exists()


@pytest.mark.parametrize(
    ("code", "status", "told"),
    [
        ("raise KeyboardInterrupt", 130, ""),
        ("raise AssertionError('ours')", 1, "Traceback"),  # a bug
        (r"print('\u00e9\u4e2d'); return 0", 0, ""),  # any letter under any locale
    ],
)
def test_a_command_ends_as_it_should(run: Run, checkout: Path, code: str, status: int, told: str) -> None:
    (checkout / "app/cli/ask.py").write_text(RAISES.format(code))
    done = run("ask", "a", "-q", "b", PYTHONIOENCODING="ascii")
    assert done.returncode == status and done.stderr.startswith(told) and bool(done.stderr) == bool(told)


def test_a_closed_pipe_is_quiet(checkout: Path) -> None:
    (checkout / "app/cli/ask.py").write_text(RAISES.format("print('word ' * 1_000_000); return 0"))
    command = [sys.executable, str(checkout / "launch.py"), "ask", "a", "-q", "b"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""


def test_tests_run_in_the_projects_folder_with_their_arguments_and_exit_code(run: Run, checkout: Path) -> None:
    (checkout / "tests").mkdir()
    (checkout / "tests/test_x.py").write_text("def test_a(): pass\ndef test_b(): assert False\ndef test_c(): pass\n")
    done = run("test", "-p", "no:cacheprovider", "-k", "a or b", "tests/test_x.py")
    assert "1 failed, 1 passed, 1 deselected" in done.stdout
    assert done.returncode == 1


def test_the_long_tests_get_their_arguments(run: Run, checkout: Path) -> None:
    (checkout / "tests").mkdir(exist_ok=True)
    (checkout / "tests/long.py").write_text("import sys; print(sys.argv[1:]); sys.exit(3)\n")
    done = run("test", "--long", "--case", "b12", "--json", "F")
    assert done.stdout.strip() == "['--case', 'b12', '--json', 'F']" and done.returncode == 3


# -------------------- the environment


def test_no_venv_names_what_the_environment_lacks(run: Run, checkout: Path) -> None:
    (checkout / "requirements.txt").write_text("pytest>=9\nno-such-package==1\n")
    assert "lacks no-such-package==1" in the_line(run("doctor", "--no-venv"))
    assert not (checkout / ".venv").exists()


def test_wrong_usage_installs_nothing(run: Run, checkout: Path) -> None:
    (checkout / "requirements.txt").write_text("no-such-package==1\n")
    assert run("sing").returncode == 2
    assert not (checkout / ".venv").exists()


def write_wheel(folder: Path, name: str, version: str, files: dict[str, str], needs: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        info = f"{name}-{version}.dist-info"
        files |= {
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": "",
        }
        for path, text in files.items():
            archive.writestr(path, text)


@pytest.fixture
def wheel(checkout: Path, tmp_path: Path) -> dict[str, str]:
    """Make the checkout require a package that only a local folder has; returns the settings that let pip find it."""
    (checkout / "requirements.txt").write_text("tiny==1.0\n")
    wheels = tmp_path / "wheels"
    for version in ("1.0", "2.0"):
        write_wheel(wheels, "tiny", version, {"tiny.py": f"version = '{version}'\n"})
    lock(checkout, wheels, "1.0")
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}


def lock(checkout: Path, wheels: Path, version: str) -> None:
    """Pin the package at a version, by its hash."""
    found = hashlib.sha256((wheels / f"tiny-{version}-py3-none-any.whl").read_bytes()).hexdigest()
    (checkout / environment.LOCK.name).write_text(f"tiny=={version} --hash=sha256:{found}\n")


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
    stamp = venv / environment.STAMP.name
    match damage:
        case "interrupted":
            stamp.write_text(environment.INSTALLING)
            next(venv.rglob("tiny-1.0.dist-info/RECORD")).unlink()  # pip would refuse to replace this one
        case "no pip":
            stamp.unlink()
            shutil.rmtree(next(venv.rglob("site-packages/pip")))
        case "no python":
            (venv / "bin" / "python").unlink()
        case "outdated":
            (checkout / "requirements.txt").write_text("tiny==2.0\n")
            lock(checkout, Path(wheel["PIP_FIND_LINKS"]), "2.0")
    done = run("doctor", **wheel)
    assert done.returncode == 0, done
    assert json.loads(done.stdout)["prefix"] == str(venv)
    assert list(venv.rglob(f"tiny-{'2.0' if damage == 'outdated' else '1.0'}.dist-info/RECORD"))


@pytest.mark.slow
def test_a_package_that_was_changed_on_its_way_is_not_installed(
    run: Run, checkout: Path, wheel: dict[str, str]
) -> None:
    with (Path(wheel["PIP_FIND_LINKS"]) / "tiny-1.0-py3-none-any.whl").open("ab") as changed:
        changed.write(b" ")
    done = run("doctor", **wheel)
    assert done.returncode == 1 and "by its hash. See which index" in done.stderr.splitlines()[-1], done
    assert not list((checkout / ".venv").rglob("tiny*"))
    (checkout / "requirements.txt").write_text("tiny\n")
    (checkout / environment.LOCK.name).write_text("tiny==1.0\n")
    assert run("doctor", **wheel).returncode == 1, "nor is one without a hash"


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


def tiny_torch(folder: Path, version: str, cuda: str | None) -> None:
    """A wheel that calls itself torch; it needs another one, which PyTorch's own index need not have."""
    files = {"torch/__init__.py": "", "torch/version.py": f"__version__ = '{version}'\ncuda = {cuda!r}\n"}
    write_wheel(folder, "torch", version, files, "Requires-Dist: tiny\n")


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
