"""The race command: lanes in turns, its lines for a terminal and for a file, its report."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import launch as launcher
from app.cli.scoreboard import Scoreboard
from core.engine import Engine
from core.generation.events import LaneEvent, PrefillProgress, RoundDone
from tests.app.cli.test_terminal import Terminal
from tests.app.fakes import finished, lane_stats, round_done, write_book
from tests.core.toys import tiny_engine, with_words

QUESTION = "How was the <b>night</b>?"
Race = Callable[..., dict[str, Any]]


@pytest.fixture
def race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Race:
    """Run the command on the toy engine; its JSON."""
    monkeypatch.setattr(Engine, "load", lambda config: with_words(tiny_engine(context=1024)))
    book = write_book(tmp_path)

    def run(*options: object) -> dict[str, Any]:
        arguments = ["race", str(book), "-q", QUESTION, "--max-new-tokens", "24", "--json", "--no-venv"]
        assert launcher.main([*arguments, *map(str, options)]) == 0
        captured = capsys.readouterr()
        document: dict[str, Any] = json.loads(captured.out)
        return document | {"stderr": captured.err}

    return run


def test_lanes_run_in_turns_and_write_what_they_write_one_after_the_other(race: Race) -> None:
    methods = ("--methods", "autoregressive,triforce,retrieval")
    turns, sequence = race(*methods), race(*methods, "--sequential")
    assert (turns["turns"], sequence["turns"]) == ("fair turns", "one after the other")
    for report in (turns, sequence):
        assert {"model", "device", "dtype", "prompt_tokens", "prefill_seconds", "placement"} <= report.keys()
        assert list(report["methods"]) == ["autoregressive", "triforce", "retrieval"] and report["speedup"] > 0
        assert report["equality"] == {"verdict": "identical", "first_divergence": None}
        fast = report["methods"]["triforce"]
        assert {"acceptance", "tokens_per_full_pass", "full_passes", "gamma1_mean", "gamma2_mean"} <= fast.keys()
        assert fast["new_tokens"] == len(fast["token_ids"]) == 24 and fast["ms_per_token"] > 0
    texts = [[lane["text"] for lane in report["methods"].values()] for report in (turns, sequence)]
    assert texts[0] == texts[1], "turns change no text"
    ended = [line for line in turns["stderr"].splitlines() if "24 tokens" in line]
    assert len(ended) == 3, "no terminal: one line a lane, when it ends"


def test_a_card_and_its_json_are_kept(race: Race, tmp_path: Path) -> None:
    file = tmp_path / "kept.html"
    report = race("--report", file, "--methods", "autoregressive,triforce,h2o")
    html, figures = file.read_text(encoding="utf-8"), json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
    assert html.startswith("<!doctype html>") and "&lt;b&gt;night&lt;/b&gt;" in html and "<b>night" not in html
    assert "tokens are the same as plain decoding’s" in html and html.count("<script") == 1
    assert figures["question"] == QUESTION and figures["methods"] == report["methods"]
    assert figures["equality"] == report["equality"] and figures["speedup"] == report["speedup"]
    assert "kept.html and" in report["stderr"] and figures["hardware"]["num_cores"] > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--pages", "9"], "has 1 page. Ask for pages from 1 to 1 with --pages."),
        (["--chapters", "1"], "has 0 chapters"),
        (["--report", "x.html", "--sequential"], "lanes in turns"),
        (["--report", "x.pdf"], "x.pdf is a web page"),
        (["--report", "missing/x.html"], "no folder missing"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_loaded(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "load", lambda config: pytest.fail("too late"))
    (tmp_path / "book.txt").write_text("Night.", encoding="utf-8")
    assert launcher.main(["race", str(tmp_path / "book.txt"), "-q", "x", *options, "--no-venv"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error:") and words in error and error.count("\n") == 1


# -------------------- lines


def events() -> Iterator[LaneEvent]:
    yield LaneEvent(
        None,
        PrefillProgress(done_tokens=10, total_tokens=5000, reused_tokens=0, elapsed_seconds=1.0, remaining_seconds=9.0),
    )
    for number in range(3):
        yield LaneEvent(0, RoundDone(text="x", tokens=(), stats=lane_stats(number + 1, "autoregressive")))
        yield LaneEvent(1, round_done("x", number))
    yield LaneEvent(0, finished("x x x", "autoregressive"))
    yield LaneEvent(1, finished("x x x"))


def test_a_terminal_has_one_line_a_lane_that_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    stream = Terminal()
    assert list(Scoreboard(stream, ["autoregressive", "triforce"], 6).watch(events())) == list(events())
    shown = stream.getvalue()
    assert "Reading: 10 of 5,000 tokens, 9 s left" in shown.split("\x1b")[0]
    first, last = shown.split("\x1b[K", 1)[1], shown.rsplit("\x1b[2A", 1)[1]
    assert first.splitlines()[0].startswith("autoregressive [===") and "12.5 tokens/s" in first
    lines = last.replace("\x1b[K", "").splitlines()
    assert len(lines) == 2 and lines[1].startswith("triforce       [=") and "50.0 tokens/s    0.06 s" in lines[1]
    assert all(len(line) < 90 for line in lines) and shown.count("\x1b[2A") == shown.count("\x1b[K") / 2 - 1


def test_a_narrow_terminal_keeps_to_its_width() -> None:
    board = Scoreboard(Terminal(), ["autoregressive"], 6)
    for width in (20, 40, 60, 80, 200):
        assert len(board.line(0, width)) <= width and "\n" not in board.line(0, width)


def test_a_file_has_a_line_when_a_lane_ends() -> None:
    stream = io.StringIO()
    list(Scoreboard(stream, ["autoregressive", "triforce"], 6).watch(events()))
    lanes = [line for line in stream.getvalue().splitlines() if not line.startswith("Reading")]
    assert "\x1b" not in stream.getvalue() and len(lanes) == 2
    assert lanes[1].split() == ["triforce", "3", "tokens", "50.0", "tokens/s", "0.06", "s"]
