"""The bench command: the document of a suite, an interrupt that keeps what was measured, and refusals."""

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

import launch as launcher
from app.cli import bench, bench_kernels
from core.ops.native import NoKernel


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in tests/core: threads cost the bundled pair much where other work waits for the same cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_recall_ends_with_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--contexts", "512", "--questions", "1", "--methods", "streamingllm", "--budget", "256", "--json"]
    assert launcher.main(["bench", "--suite", "recall", *options, "--no-venv"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["complete"] is True and {"hardware", "versions", "commit"} <= set(document)
    assert document["config"]["questions"] == 1 and document["config"]["retrieval"]["budget"] == 256
    skills = {row["skill"]: row for row in document["rows"]}
    assert {"fact", "absent", "quote", "quote_any", "recite", "all"} <= set(skills)
    assert len(skills["fact"]["exact_interval"]) == 2 and skills["fact"]["n"] == 1
    assert "fact: streamingllm" in captured.err, "progress goes to stderr"


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


def test_the_ablation_has_methods_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert launcher.main(["bench", "--suite", "ablation", "--methods", "draft", "--no-venv"]) == 2
    said = capsys.readouterr().err
    assert "Leave out --methods" in said and said.count("\n") == 1


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


def test_kernels_are_measured_without_a_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise NoKernel("no C++ compiler (g++) on this machine")

    monkeypatch.setattr(bench_kernels, "small_rows", missing)
    assert launcher.main(["bench", "--suite", "kernels", "--contexts", "16,32", "--json", "--no-venv"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert {row["context"] for row in document["rows"]} == {16, 32} and document["config"]["kernel"] is False
    assert document["config"]["clock"] == "thread_time", "of one thread the processor's time"
    assert "no C++ compiler" in captured.err
