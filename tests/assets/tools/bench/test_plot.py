"""bench --plot: a picture of the rows' numbers, in any of three formats, of an interrupted run too; refused early."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import launch as launcher
from assets.tools.bench import command as bench
from assets.tools.bench.charts import plot

ROOT = Path(__file__).parents[4]
RESULTS = ROOT / "assets" / "results"
BEGINNINGS = {".png": b"\x89PNG\r\n", ".svg": b"<?xml", ".pdf": b"%PDF-"}


def recorded(suite: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RESULTS / f"{suite}-2core-cpu.json").read_text(encoding="utf-8"))
    return document


def offloaded() -> dict[str, Any]:
    """A document of the offload suite, of which none is recorded."""
    document, figures = recorded("speed"), {"ms_per_token": 10.0, "speedup_vs_autoregressive": 1.5}
    cells = itertools.product((4096, 122_880), ("resident", "split", "offloaded"), ("autoregressive", "triforce"))
    rows = [{"context": n, "placement": where, "method": method, **figures} for n, where, method in cells]
    return {**document, "config": {**document["config"], "suite": "offload"}, "rows": rows}


# -------------------- files


@pytest.mark.parametrize(
    ("suite", "ending"),
    [
        ("speed", ".png"),
        ("peers", ".svg"),
        ("recall", ".pdf"),
        ("page", ".PNG"),
        ("offload", ".svg"),
        ("ablation", ".pdf"),
    ],
)
def test_every_suite_s_document_becomes_a_file_of_its_format(
    suite: str, ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"{suite}{ending}"
    plot.keep(offloaded() if suite == "offload" else recorded(suite), path)
    assert path.read_bytes().startswith(BEGINNINGS[ending.lower()])
    assert capsys.readouterr().err == f"The picture is in {path}.\n"


# -------------------- the command


@dataclass(frozen=True)
class Row:
    context: int = 8192
    method: str = "triforce"
    ms_per_token: float = 12.5
    speedup_vs_autoregressive: float = 1.8


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """What is measured before Ctrl-C; the engine is not asked."""
    rows: list[Row] = []

    def interrupted() -> Iterator[Row]:
        yield from rows
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "start_suite", lambda args, engine: ({}, interrupted()))
    return rows


def test_a_picture_that_cannot_be_written_loses_no_result(
    measured: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    measured.append(Row())
    monkeypatch.setattr(Path, "write_bytes", full)
    assert launcher.main(["bench", "--json", "--plot", str(tmp_path / "F.svg"), "--no-venv"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["rows"] and "No space left on device" in captured.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("F.jpg", "End it in .png, .svg, .pdf."),
        ("F", "End it in .png, .svg, .pdf."),
        ("nowhere/F.png", "There is no folder"),
        ("folder.png", "Choose another name"),
    ],
)
@pytest.mark.parametrize("suite", ["speed", "offload"])
def test_a_picture_that_cannot_be_is_refused_in_one_line(
    suite: str,
    name: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "folder.png").mkdir()
    assert words in refused(suite, tmp_path / name, capsys, monkeypatch)


def refused(suite: str, path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The one line with which a picture is refused, before a model is loaded."""
    monkeypatch.setattr(bench, "bench_config", lambda args: pytest.fail("it went on"))
    code = launcher.main(["bench", "--suite", suite, "--plot", str(path), "--no-venv"])
    captured = capsys.readouterr()
    here = "matplotlib" in captured.err or "cannot be written" in captured.err
    assert code == (1 if here else 2) and captured.out == ""
    assert captured.err.startswith("error:") and captured.err.count("\n") == 1
    return captured.err
