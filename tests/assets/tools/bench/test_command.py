"""The bench command: the document of a suite, an interrupt that keeps what was measured, and refusals."""

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import launch as launcher
from assets.tools.bench import command as bench
from assets.tools.bench import kernels
from core.ops.kernel_build import NoKernel


@dataclass(frozen=True)
class Row:
    context: int
    method: str
    exact_interval: tuple[float, float] | None


def test_ctrl_c_keeps_what_was_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> Iterator[Row]:
        yield Row(512, "triforce", None)
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "start_suite", lambda args, engine: ({}, interrupted()))
    assert launcher.main(["bench", "--suite", "recall", "--json", "--no-venv"]) == 130
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["complete"] is False
    assert document["rows"] == [{"context": 512, "method": "triforce", "exact_interval": None}]
    assert "Interrupted" in captured.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--questions", "0"], "one question"),
        (["--skills", "fact,magic"], "no skill 'magic'"),
        (["--max-new-tokens", "9"], "Leave out --max-new-tokens"),
        (["--methods", "magic"], "no method 'magic'"),
        (["--budget", "100"], "budget of 100"),
        (["--contexts", "100"], "at 100 tokens"),
        (["--contexts", "1024", "--context", "1024"], "at 1,024 tokens"),
    ],
)
def test_a_mistake_is_told_in_one_line(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = launcher.main(["bench", "--suite", "recall", *options, "--no-venv"])
    captured = capsys.readouterr()
    assert code == 2 and captured.out == ""
    assert captured.err.startswith("error:") and words in captured.err and captured.err.count("\n") == 1


def test_speed_reads_several_books_and_gives_their_median(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--contexts", "768", "--books", "3", "--repeats", "1", "--max-new-tokens", "6", "--json"]
    assert launcher.main(["bench", "--methods", "retrieval", *options, "--no-venv"]) == 0
    captured = capsys.readouterr()
    plain, ours = json.loads(captured.out)["rows"]
    assert (plain["method"], ours["method"], ours["books"]) == ("autoregressive", "retrieval", 3)
    assert plain["speedup_by_book"] == [1.0, 1.0, 1.0]
    assert ours["speedup_vs_autoregressive"] == statistics.median(ours["speedup_by_book"])
    assert len(set(ours["speedup_by_book"])) == 3, "three books, each with its own times"
    assert ours["new_tokens"] == plain["new_tokens"] and ours["identical_to_autoregressive"] is True
    assert f"{ours['speedup_by_book'][0]:.2f} {ours['speedup_by_book'][1]:.2f}" in captured.err


def test_a_batch_is_measured_with_a_book_for_each_and_with_one_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--contexts", "768", "--batch", "3", "--repeats", "1", "--max-new-tokens", "6", "--json"]
    assert launcher.main(["bench", "--methods", "triforce", *options, "--no-venv"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["text"], row["method"]) for row in rows] == [
        (text, method) for text in ("own", "shared") for method in ("autoregressive", "triforce")
    ]
    for row in rows:
        assert row["batch"] == 3 and row["new_tokens"] == 18 and row["identical_to_alone"] is True
        assert row["ms_per_token_each"] == pytest.approx(3 * row["ms_per_token"])
    assert rows[0]["speedup_vs_autoregressive"] == 1.0
    ratio = rows[0]["ms_per_token"] / rows[1]["ms_per_token"]
    assert rows[1]["speedup_vs_autoregressive"] == pytest.approx(ratio)


def test_kernels_are_measured_without_a_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise NoKernel("no C++ compiler (g++) on this machine")

    monkeypatch.setattr(kernels, "small_rows", missing)
    assert launcher.main(["bench", "--suite", "kernels", "--contexts", "16,32", "--json", "--no-venv"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert {row["context"] for row in document["rows"]} == {16, 32} and document["config"]["kernel"] is False
    assert document["config"]["clock"] == "thread_time", "of one thread the processor's time"
    assert "no C++ compiler" in captured.err
