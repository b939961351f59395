"""`launch.py check`: the steps of CI in their order, up to the first that fails."""

import sys
from pathlib import Path

import pytest

from app.cli.arguments import parse_arguments
from app.cli.environment import ROOT
from assets.tools import check
from assets.tools.commands import TOOLS

STEPS = ["tests", "slow tests", "real models", "format", "style", "types"]


def run(monkeypatch: pytest.MonkeyPatch, argv: list[str], failing: str = "") -> tuple[int, list[list[str]]]:
    """The exit code, and the commands that ran."""
    ran: list[list[str]] = []

    def call(command: list[str], cwd: object) -> int:
        assert command[:2] == [sys.executable, "-m"] and cwd == ROOT
        ran.append(command[2:])
        return 5 if failing and failing in " ".join(command) else 0

    monkeypatch.setattr(check.subprocess, "call", call)
    monkeypatch.setattr(check, "unmet_requirement", lambda _: None)
    return check.run(parse_arguments(argv, TOOLS)), ran


@pytest.mark.parametrize(("failing", "code", "steps"), [("", 0, 6), ("ruff check", 5, 5)])
def test_every_step_runs_and_is_named_up_to_the_first_that_fails(
    failing: str, code: int, steps: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found, ran = run(monkeypatch, ["check"], failing)
    programs = ["pytest", "pytest", "pytest", "ruff", "ruff", "mypy"]
    assert (found, [words[0] for words in ran]) == (code, programs[:steps])
    told = [line.removeprefix("== ") for line in capsys.readouterr().err.splitlines() if line.startswith("== ")]
    assert told == STEPS[:steps]
    assert run(monkeypatch, ["test"]) == (0, ran[:1]), "the first step is the command of the README"
    assert run(monkeypatch, ["check", "--no-tests"], failing) == (code, ran[1:])


def test_ci_runs_the_same() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    ours = [line.partition(" launch.py ")[2].partition(" #")[0] for line in lines if line.startswith('"$python"')]
    assert ours == ["test", "check --no-tests"]


FLAKY_SUITE = """
import pathlib
def test_passes(): pass
def test_flaky():
    seen = pathlib.Path(__file__).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError
def test_broken(): assert False
"""


def test_what_fails_runs_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_it.py").write_text(FLAKY_SUITE, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # their imports take seconds
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "FAILED", tmp_path / ".pytest_cache/v/cache/lastfailed")
    assert check.run_step(("pytest", "-p", "xdist", "-n", "0", "-q")) == 1
    told = capsys.readouterr().err.splitlines()
    assert [line.split()[1].rstrip(":") for line in told if line.startswith("FLAKY")] == ["test_it.py::test_flaky"]
