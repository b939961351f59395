"""The peers' environments: what is installed, once, and never a build for a GPU."""

import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from assets.tools.bench.peers import environments
from assets.tools.bench.peers.environments import environment
from assets.tools.bench.peers.lanes import Recipe
from assets.tools.bench.peers.process import NotMeasured

RECIPE = Recipe(packages=("one==1.0",), torch=True, removed=("spare",), variables={"CMAKE_ARGS": "-DX=1"})


class Runs:
    """Stands in for processes."""

    def __init__(self, listed: str = "one==1.0\n", fails: str = "", complaint: str = "") -> None:
        self.commands: list[list[str]] = []
        self.variables: dict[str, str] = {}
        self._listed, self._fails, self._complaint = listed, fails, complaint

    def __call__(self, command: Sequence[str], **more: Any) -> tuple[str, int]:
        self.commands.append(list(command))
        self.variables = more["variables"]
        if "venv" in command:
            python = Path(command[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.write_text("", encoding="utf-8")
        if self._fails and self._fails in command:
            more["log"].write(self._complaint)
            return "", 1
        return self._listed if "list" in command else "", 0


def test_it_is_made_once_from_pinned_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, said = Runs(), list[str]()
    monkeypatch.setattr(environments, "run_killable", runs)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("TRIFORCE_TORCH_INDEX", "https://wheels.example/")
    python = environment(RECIPE, tmp_path / "peer" / "environment", said.append)
    make, install, remove, listed = runs.commands
    assert make[:3] == [sys.executable, "-m", "venv"] and all(
        command[0] == str(python) for command in (install, remove, listed)
    )
    torch = f"torch=={metadata.version('torch').partition('+')[0]}+cpu"
    assert install[-5:] == [torch, "--retries", "1", "--extra-index-url", "https://wheels.example/cpu", "one==1.0"][-5:]
    assert torch in install and remove[-1] == "spare" and runs.variables["CMAKE_ARGS"] == "-DX=1" and len(said) == 1
    assert environment(RECIPE, tmp_path / "peer" / "environment", said.append) == python
    assert environment(RECIPE, tmp_path / "peer" / "environment", said.append, offline=True) == python
    assert len(runs.commands) == 4, "it is there already"
    with pytest.raises(NotMeasured, match="not made yet"):
        environment(RECIPE, tmp_path / "other", said.append, offline=True)
    environment(Recipe(packages=("one==1.1",)), tmp_path / "peer" / "environment", said.append)
    assert len(runs.commands) == 7 and not any("torch" in word for word in runs.commands[5]), (
        "another recipe, made anew"
    )


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        (Runs(fails="install", complaint="a\nERROR: no compiler\nlast\n"), "cannot be made: no compiler"),
        (Runs(fails="venv", complaint="ensurepip is missing\n"), "cannot be made: ensurepip is missing"),
        (Runs(listed="one==1.0\nnvidia-cublas==13.0\n"), "builds for a GPU: nvidia-cublas==13.0"),
    ],
)
def test_a_failure_is_one_line_and_is_tried_again(
    runs: Runs, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "run_killable", runs)
    with pytest.raises(NotMeasured, match=reason):
        environment(RECIPE, tmp_path / "environment", lambda line: None)
    good = Runs()
    monkeypatch.setattr(environments, "run_killable", good)
    environment(RECIPE, tmp_path / "environment", lambda line: None)
    assert len(good.commands) == 4
