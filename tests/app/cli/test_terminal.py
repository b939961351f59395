"""What a terminal is sent: no orders from books, models or servers; pipes get every character."""

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import launch
from app.cli.opening import load_engine
from app.cli.terminal import drawing, filter_terminals, plain
from core.config import EngineConfig
from core.engine import Engine
from core.errors import LoadingStopped
from core.models.loading import load_meter
from tests.app.fakes import write_book
from tests.app.remote.fake_server import DONE, fake_server, says, stream, used

TITLE = "\x1b]0;owned\x07"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_orders_become_replacement_characters() -> None:
    assert plain(f"a{TITLE}b") == "a�]0;owned�b"
    assert plain("\x9b2J\x7f\r\b\x00") == "�2J����"
    assert plain("שלום\n\tcafé – 日本\u202b") == "שלום\n\tcafé – 日本\u202b", "all else stays"


def test_a_terminal_is_filtered_and_a_pipe_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_answer_gives_no_orders_to_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = write_book(tmp_path)
    out, error = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", error)
    with fake_server() as server:
        server.answers(stream(says("It fell."), says(TITLE), says("", "stop"), used(50, 4), DONE))
        assert launch.main(["ask", str(book), "-q", "Who?", "--remote", server.url, "--no-venv"]) == 0
    assert "It fell." in out.getvalue() and TITLE not in out.getvalue() + error.getvalue()


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_a_terminal_shows_how_far_loading_is_and_a_file_does_not(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]

    def load(_config: object) -> Engine:
        meter = load_meter()
        meter.expect(3_000_000_000)
        clock[0] = 5.0
        meter.add(1_000_000_000)
        raise LoadingStopped

    monkeypatch.setattr("core.models.loading.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(Engine, "load", load)
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(LoadingStopped):
        load_engine(EngineConfig())
    told = stream.getvalue()
    assert ("Loading: 1.00 GB of 3.00 GB · 33% · 10 s left" in told) == stream.isatty(), told
    assert told.endswith("\r") or not told
