"""What a terminal is sent: no orders from books, models or servers; pipes get every character."""

import io
import sys
from pathlib import Path

import pytest

from app.cli.output import ProgressLine
from app.cli.terminal import drawing, filter_terminals, plain
from core.models.loading import LoadProgress
from tests.app.cli.conftest import Run
from tests.app.remote.fake_server import DONE, fake_server, says, stream, used

TITLE = "\x1b]0;owned\x07"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_filtered_and_a_pipe_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plain("\x9b2J\x7f\r\b\x00") == "�2J����"
    assert plain("שלום\n\tcafé – 日本\u202b") == "שלום\n\tcafé – 日本\u202b", "all else stays"
    out, error = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", error)
    filter_terminals()
    filter_terminals()  # twice is once
    print(TITLE, end="", flush=True)
    sys.stdout.writelines([TITLE])
    print(TITLE, end="", file=sys.stderr)
    assert out.getvalue() == "�]0;owned�" * 2 and error.getvalue() == TITLE
    assert sys.stdout.isatty() and drawing(sys.stdout) is out and drawing(sys.stderr) is error


def test_an_answer_gives_no_orders_to_a_terminal(run: Run, book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, error = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", error)
    with fake_server() as server:
        server.answers(stream(says("It fell."), says(TITLE), says("", "stop"), used(50, 4), DONE))
        run("ask", book, "-q", "Who?", "--remote", server.url)
    assert "It fell." in out.getvalue() and TITLE not in out.getvalue() + error.getvalue()


def test_a_terminal_shows_how_far_loading_is_and_a_file_does_not() -> None:
    for screen in (Terminal(), io.StringIO()):
        line = ProgressLine(screen)
        line.show_loading(LoadProgress(1_000_000_000, 3_000_000_000, 10.0))
        line.close()
        told = screen.getvalue()
        assert ("Loading: 1.00 GB of 3.00 GB · 33% · 10 s left" in told) == screen.isatty()
        assert told.endswith("\r") or not told
