"""`race`: lanes in turns, its line, its report, its end by Ctrl+C. `chat`: what is piped in, and the race within."""

import io
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.cli import chat
from app.cli import race as race_command
from app.context.context_documents import Library
from app.runtime.trace import Trace
from core.decoding.registry import PLAIN
from core.engine import Engine
from tests.app.cli.conftest import Ran, Run
from tests.app.cli.test_terminal import Terminal
from tests.app.fakes import document_of
from tests.core.toys import tiny_engine, with_words

QUESTION = "How was the <b>night</b>?"


@pytest.fixture
def race(book: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command on the toy engine."""
    monkeypatch.setattr(Engine, "load", lambda config: with_words(tiny_engine(context=2048)))

    def start(*options: object, tokens: int = 24, code: int = 0) -> Ran:
        return run("race", book, "-q", QUESTION, "--max-new-tokens", tokens, "--json", *options, code=code)

    return start


def test_lanes_run_in_turns_and_write_what_each_writes_alone(race: Run) -> None:
    ran = race("--methods", "autoregressive,triforce,retrieval")
    report = ran.json
    assert {"model", "device", "dtype", "prompt_tokens", "prefill_seconds", "placement"} <= report.keys()
    assert list(report["methods"]) == ["autoregressive", "triforce", "retrieval"] and report["speedup"] > 0
    assert report["equality"] == {"verdict": "identical", "first_divergence": None}
    fast = report["methods"]["triforce"]
    assert {"acceptance", "tokens_per_full_pass", "full_passes", "gamma1_mean", "gamma2_mean"} <= fast.keys()
    assert fast["new_tokens"] == len(fast["token_ids"]) == 24 and fast["ms_per_token"] > 0
    sampled = race("--temperature", "0.9", "--methods", "autoregressive,triforce", "--token-ids").json
    assert sampled["equality"]["verdict"] == "not_comparable"
    assert len(sampled["prompt_token_ids"]) == sampled["prompt_tokens"]
    alone = [race("--methods", name).answer["text"] for name in report["methods"]]
    assert [lane["text"] for lane in report["methods"].values()] == alone, "turns change no text"
    ended = [line for line in ran.err.splitlines() if "24 tokens, " in line]
    assert len(ended) == 3 and "\r" not in ran.err, "no terminal: one line a lane, when it ends"


def test_a_terminal_has_one_line_that_is_rewritten_within_its_width(race: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("app.cli.output.INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    race()
    drawn = stream.getvalue().split("\r")
    assert any(line.startswith("autoregressive 1 tokens, ") and "triforce 0 tokens" in line for line in drawn)
    assert max(map(len, drawn)) < 60 and drawn[-1] == "" and "\n" not in stream.getvalue()


def test_a_card_and_its_json_are_kept(race: Run, tmp_path: Path) -> None:
    file = tmp_path / "kept.html"
    ran = race("--report", file, "--methods", "autoregressive,triforce,h2o")
    html, figures = file.read_text(encoding="utf-8"), json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
    assert html.startswith("<!doctype html>") and "&lt;b&gt;night&lt;/b&gt;" in html
    assert figures["question"] == QUESTION
    assert all(figures[name] == ran.json[name] for name in ("methods", "equality", "speedup"))
    assert "kept.html and" in ran.err


@pytest.mark.usefixtures("listens")
def test_a_race_that_is_stopped_has_its_figures_and_no_verdict(race: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pressed: list[str] = []

    def progress(lane: Trace) -> str:
        if not pressed and lane.method != PLAIN and lane.stats.new_tokens:  # both have written
            pressed.append(lane.method)
            signal.raise_signal(signal.SIGINT)
        return lane.method

    monkeypatch.setattr(race_command, "progress", progress)
    told = race(tokens=400, code=130).json
    assert told["equality"]["verdict"] == "not_comparable"
    assert "cancelled" in {lane["stop_reason"] for lane in told["methods"].values()}


# -------------------- chat


@pytest.fixture
def talk(book: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """A chat about the book with what comes through a pipe."""

    def start(typed: bytes, *options: object) -> Ran:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed)))
        return run("chat", book, "--max-new-tokens", 12, "--no-saved", *options)

    return start


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """The questions that became prompts, each with those before it."""
    found: list[tuple[str, list[str]]] = []
    real: Callable[..., Any] = chat.prompt_of

    def noted(conversation: Any, past: Any, question: str, *rest: Any) -> Any:
        found.append((question, [one.question for one in past]))
        return real(conversation, past, question, *rest)

    monkeypatch.setattr(chat, "prompt_of", noted)
    return found


def test_questions_from_a_pipe_are_answered_in_one_conversation_and_mistakes_keep_it(
    talk: Callable[..., Ran], asked: list[tuple[str, list[str]]]
) -> None:
    long = " ".join(["word"] * 9000)
    typed = f"/help\n/race\n{long}\nWho kept the light?\n\nWhere?\n/race\n/race When?\n/sing\n".encode()
    ran = talk(typed + b"\xff\xfe\n/new\nWhy?\n/quit\nnever asked\n", "--context", 4096)
    assert asked == [
        ("Who kept the light?", []),
        ("Where?", ["Who kept the light?"]),
        ("Where?", ["Who kept the light?"]),  # the race answers the last question where it was asked
        ("When?", ["Who kept the light?", "Where?"]),
        ("Why?", []),
    ]
    assert "> Who kept the light?\n\n" in ran.out and "> Why?" in ran.out and ran.out.endswith("\n")
    assert ran.err.count("texts: identical") == 2 and "There is no /sing." in ran.err
    assert "error: Nothing was asked yet." in ran.err and "the context holds 4,096" in ran.err
    assert "error: That line is not UTF-8 text." in ran.err and "The questions are forgotten." in ran.err
    assert ran.err.count(" tokens/s · ") == 3


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_stops_an_answer_and_keeps_the_chat(talk: Callable[..., Ran]) -> None:
    ran = talk(b"Who kept the light?\nWhere?\n", "--method", "autoregressive")
    assert "Stopped.\n" in ran.err and ran.err.count(" tokens/s") == 2 and "> Where?" in ran.out


def test_sentences_and_quotations_of_an_answer_are_told_with_their_pages() -> None:
    pages = ("Martha Voss kept the light at Gull Point. ", "Arthur Nash mended the nets of the whole harbour. ")
    library = Library.of([document_of(*pages)])
    told = [
        *chat.page_lines("Arthur Nash mended the nets of the whole harbour. “The moon fell into the sea.”", library)
    ]
    assert told == [
        "  “Arthur Nash mended the nets of the whole harbour.”: page 2",
        "  “The moon fell into the sea.”: not in the text",
    ]
