"""bench --suite peers: one document with rows, versions and what was left out; it goes on from a checkpoint."""

import json
from functools import partial
from pathlib import Path

import pytest

import launch as launcher
from assets.tools.bench.peers import command
from assets.tools.bench.peers.lanes import BASELINE, OURS, Lane, Program
from assets.tools.bench.peers.suite import Peers

WORKER = "tests.assets.tools.bench.peers.fake_peer"
PROGRAMS = (Program(OURS, WORKER), Program("other", WORKER))
LANES = (
    Lane(OURS, BASELINE, {"ms": 10.0}),
    Lane("other", "other, plain", {"ms": 25.0}),
    Lane("other", "other, draft", {"fails": "refuses"}),
)


@pytest.fixture(autouse=True)
def fake_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "Peers", partial(Peers, programs=PROGRAMS, lanes=LANES))
    monkeypatch.setattr(command, "commit", lambda: "abc")


def run(folder: Path, *options: str) -> int:
    common = ["--contexts", "512", "--max-new-tokens", "16", "--json", "--no-venv", "--data-dir", str(folder)]
    return launcher.main(["bench", "--suite", "peers", *common, *options])


def test_one_document_with_what_was_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    ours, other = document["rows"]
    assert (ours["method"], other["method"], other["ratio_to_ours"], other["runs"]) == (
        BASELINE,
        "other, plain",
        2.5,
        3,
    )
    assert document["skipped"] == [{"context": 512, "method": "other, draft", "reason": "it takes no such cache"}]
    assert document["complete"] and document["config"]["threads"] >= 1 and document["config"]["max_new_tokens"] == 16
    assert "Not measured: other, draft. It takes no such cache." in captured.err and "2.50x" in captured.err


def test_minutes_end_it_and_a_checkpoint_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--checkpoint", str(tmp_path / "runs.jsonl"), "--repeats", "1"]
    assert run(tmp_path, *options, "--minutes", "0") == 130
    captured = capsys.readouterr()
    assert json.loads(captured.out)["complete"] is False and "The minutes are over" in captured.err
    assert run(tmp_path, *options) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 2
    assert run(tmp_path, *options, "--seed", "7") == 2
    assert "other settings" in capsys.readouterr().err


def test_mistakes_are_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--peers", "magic") == 2 and "no peer 'magic'" in capsys.readouterr().err
    assert run(tmp_path, "--device", "cuda") == 2 and "on the processor" in capsys.readouterr().err
