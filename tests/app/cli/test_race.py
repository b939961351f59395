"""The race command: lanes in turns, its line for a terminal and for a file, its report."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import launch as launcher
from core.engine import Engine
from tests.app.cli.test_terminal import Terminal
from tests.app.fakes import write_book
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


def test_lanes_run_in_turns_and_write_what_each_writes_alone(race: Race) -> None:
    report = race("--methods", "autoregressive,triforce,retrieval")
    assert {"model", "device", "dtype", "prompt_tokens", "prefill_seconds", "placement"} <= report.keys()
    assert list(report["methods"]) == ["autoregressive", "triforce", "retrieval"] and report["speedup"] > 0
    assert report["equality"] == {"verdict": "identical", "first_divergence": None}
    fast = report["methods"]["triforce"]
    assert {"acceptance", "tokens_per_full_pass", "full_passes", "gamma1_mean", "gamma2_mean"} <= fast.keys()
    assert fast["new_tokens"] == len(fast["token_ids"]) == 24 and fast["ms_per_token"] > 0
    alone = [race("--methods", name)["methods"][name]["text"] for name in report["methods"]]
    assert [lane["text"] for lane in report["methods"].values()] == alone, "turns change no text"
    ended = [line for line in report["stderr"].splitlines() if "24 tokens, " in line]
    assert len(ended) == 3 and "\r" not in report["stderr"], "no terminal: one line a lane, when it ends"


def test_sampled_texts_are_not_compared(race: Race) -> None:
    report = race("--temperature", "0.9", "--methods", "autoregressive,triforce", "--token-ids")
    assert report["equality"] == {"verdict": "not_comparable", "first_divergence": None}
    assert len(report["prompt_token_ids"]) == report["prompt_tokens"]


def test_a_terminal_has_one_line_that_is_rewritten_within_its_width(
    race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("app.cli.output.INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    race()
    drawn = stream.getvalue().split("\r")
    assert any(line.startswith("autoregressive 1 tokens, ") and "triforce 0 tokens" in line for line in drawn)
    assert max(map(len, drawn)) < 60 and drawn[-1] == "" and "\n" not in stream.getvalue()


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
