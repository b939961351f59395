"""Ctrl+C while an answer is written: the figures are told, and a second one ends the command."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import launch as launcher
from app.cli import answering, race
from app.cli.answering import stoppable
from app.runtime.trace import Trace
from core.decoding.registry import PLAIN
from core.generation.events import Event, RoundDone
from tests.app.fakes import write_book

BOOK = "Martha Voss kept the light at Gull Point. " * 20


@pytest.fixture(autouse=True)
def listens() -> Iterator[None]:
    """Whoever starts the tests in the background of a shell has them ignore Ctrl+C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_is_an_event_and_the_second_an_interruption() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stoppable() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def interrupting() -> type[answering.Shown]:
    """Shows answers, and presses Ctrl+C at the first written word."""
    pressed: list[RoundDone] = []

    class Interrupting(answering.Shown):
        def show(self, event: Event) -> None:
            super().show(event)
            if isinstance(event, RoundDone) and not pressed:
                pressed.append(event)
                signal.raise_signal(signal.SIGINT)

    return Interrupting


@pytest.mark.parametrize("as_json", [False, True])
def test_an_answer_that_is_stopped_has_its_figures(
    as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    book, questions = write_book(tmp_path, BOOK), tmp_path / "q.json"
    questions.write_text('["Who kept the light at Gull Point?", "Where?"]')
    monkeypatch.setattr(answering, "Shown", interrupting())
    options = ["--max-new-tokens", "200", "--context", "1024", "--method", "autoregressive", "--no-saved", "--no-venv"]
    command = ["ask", str(book), "--questions", str(questions), *options, *(["--json"] if as_json else [])]
    assert launcher.main(command) == 130
    captured = capsys.readouterr()
    if as_json:
        answers = json.loads(captured.out)["answers"]
        assert {told["stop_reason"] for told in answers} == {"cancelled"}
        assert all(1 <= told["new_tokens"] <= 2 for told in answers), "those that had begun"
    else:
        assert "Stopped.\n" in captured.err and " tokens/s" in captured.err and captured.out.endswith("\n")


def test_a_race_that_is_stopped_has_its_figures_and_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    book, pressed = write_book(tmp_path, BOOK), list[str]()

    def progress(lane: Trace) -> str:
        if not pressed and lane.method != PLAIN and lane.stats.new_tokens:  # both have written
            pressed.append(lane.method)
            signal.raise_signal(signal.SIGINT)
        return lane.method

    monkeypatch.setattr(race, "progress", progress)
    command = ["race", str(book), "-q", "Who kept the light?", "--max-new-tokens", "400", "--context", "1024"]
    assert launcher.main([*command, "--no-saved", "--json", "--no-venv"]) == 130
    told = json.loads(capsys.readouterr().out)
    assert told["equality"]["verdict"] == "not_comparable"
    assert "cancelled" in {lane["stop_reason"] for lane in told["methods"].values()}
