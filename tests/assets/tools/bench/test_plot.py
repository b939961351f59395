"""bench --plot: a picture of the rows' numbers, in any of three formats, of an interrupted run too; refused early."""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

import launch as launcher
from assets.tools.bench import command as bench
from assets.tools.bench.charts import bars, plot
from core.decoding.registry import METHODS

ROOT = Path(__file__).parents[4]
RESULTS = ROOT / "assets" / "results"
BEGINNINGS = {".png": b"\x89PNG\r\n", ".svg": b"<?xml", ".pdf": b"%PDF-"}
ALL_METHODS = tuple(METHODS)
CONTEXTS = (4096, 8192, 32768, 122880)


def recorded(suite: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RESULTS / f"{suite}-2core-cpu.json").read_text(encoding="utf-8"))
    return document


def document_of(suite: str, rows: Sequence[dict[str, Any]], **config: Any) -> dict[str, Any]:
    """A document as its suite writes it, with rows and settings of ours."""
    document = recorded("speed")
    return {**document, "config": {**document["config"], **config, "suite": suite}, "rows": list(rows)}


def speed_row(context: int, method: str, ms: float | None = 10.0, ratio: float = 1.5, **more: Any) -> dict[str, Any]:
    return {"context": context, "method": method, "ms_per_token": ms, "speedup_vs_autoregressive": ratio, **more}


def crowded(suite: str) -> dict[str, Any]:
    """Four contexts and eight methods (offload: three placements and two methods), all of about one height."""
    if suite == "offload":
        cells = itertools.product(CONTEXTS, ("resident", "split", "offloaded"), ("autoregressive", "triforce"))
        return document_of(suite, [speed_row(context, method, placement=where) for context, where, method in cells])
    pairs = list(itertools.product(CONTEXTS, ALL_METHODS))
    if suite == "speed":
        return document_of(
            suite, [speed_row(*pair, 10 + n % 3, ms_per_token_by_book=[9, 12]) for n, pair in enumerate(pairs)]
        )
    if suite == "page":
        figures = {"alone_ms_per_token": 10.0, "page_ms_per_token": 11.0, "page_over_alone": 1.1}
        return document_of(suite, [{"context": context, "method": method, **figures} for context, method in pairs])
    if suite == "ablation":
        return document_of(suite, [ablation_row(context, f"with another {m} than that", m) for context, m in pairs])
    skills = ("fact", "absent", "list", "quote", "recite", "quote_any")
    return document_of(
        suite, [recall_row(*pair, skill, 0.5, n=100 - n % 2) for n, pair in enumerate(pairs) for skill in skills]
    )


def recall_row(context: int, method: str, skill: str, exact: float | None, n: int = 100) -> dict[str, Any]:
    interval = None if exact is None else [exact - 0.1, exact + 0.1]
    return {"context": context, "method": method, "skill": skill, "n": n, "exact": exact, "exact_interval": interval}


def ablation_row(context: int, variant: str, method: str, ms: float | None = 10.0) -> dict[str, Any]:
    return speed_row(context, method, ms, part="round lengths", variant=variant, acceptance_level2=0.93)


def draw(document: dict[str, Any]) -> Figure:
    return bars.draw(plot.chart_of(document))


def drawn(axes: Axes) -> dict[str, list[float]]:
    """The heights (or lengths, from the left) of the bars of each series."""
    found: dict[str, list[float]] = {}
    for container in axes.containers:
        if not isinstance(container, BarContainer):  # the lines of a spread
            continue
        sideways = container.orientation == "horizontal"
        values = [patch.get_width() if sideways else patch.get_height() for patch in container.patches]
        found.setdefault(str(container.get_label()), []).extend(values)
    return found


def said(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.texts)


def notes(axes: Axes) -> list[str]:
    """What stands at the bars, series by series, and under the axis."""
    return [text.get_text() for text in axes.texts if text.get_text()]


def names(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


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
    plot.keep(crowded(suite) if suite in ("offload", "ablation") else recorded(suite), path)
    assert path.read_bytes().startswith(BEGINNINGS[ending.lower()])
    assert capsys.readouterr().err == f"The picture is in {path}.\n"


# -------------------- what is drawn


def test_bars_of_speed_are_the_rows_numbers_with_their_speedup() -> None:
    document = recorded("speed")
    figure = draw(document)
    (axes,) = figure.axes
    expected: dict[str, list[float]] = {}
    for row in document["rows"]:
        expected.setdefault(row["method"], []).append(row["ms_per_token"])
    assert drawn(axes) == expected
    assert sorted(notes(axes)) == sorted(f"{row['speedup_vs_autoregressive']:.1f}x" for row in document["rows"])
    assert names(axes) == ["8,192 tokens", "32,768 tokens"]
    assert axes.get_ylabel() == "ms per token (lower is better)"
    lines = [
        tuple(path.vertices[:, 1]) for c in axes.collections if isinstance(c, LineCollection) for path in c.get_paths()
    ]
    books = [row["ms_per_token_by_book"] for row in document["rows"]]
    assert sum(sorted(lines), ()) == pytest.approx(sum(sorted((min(book), max(book)) for book in books), ()))
    words = said(figure)
    assert (
        f"harbour, float32, float16 cache, on {document['hardware']['cpu']} (2 cores)" in words
        and f"Commit {document['commit']}." in words
    )
    runs = f"medians of {document['config']['repeats']} runs"
    assert "slowest book" in words and runs in words and "Incomplete" not in words
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(legend) == sorted(plot.WORDS[method] for method in expected)


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
