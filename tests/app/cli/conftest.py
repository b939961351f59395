"""The command line in this process, without the seconds that imports take, on a data folder of its own."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import launch
from app.cli import answering
from core.generation.events import Event, RoundDone
from core.planning.choices import Choice
from core.planning.devices import ON_PROCESSOR, Bandwidths
from core.planning.measured import Processor
from tests.app.fakes import write_book
from tests.core.conftest import one_thread as one_thread

ROOT = Path(__file__).parents[3]
STORY = "Chapter 1: The Quay\n\n" + "Martha Voss kept the light at Gull Point. " * 60


class Ran(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The document on the last line of stdout."""
        return json.loads(self.out.splitlines()[-1])

    @property
    def answer(self) -> Any:
        """The only method's part of the document."""
        (answer,) = self.json["methods"].values()
        return answer

    @property
    def error(self) -> str:
        """The one line that says what is wrong; stdout has nothing."""
        (line,) = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert self.out == "" and "Traceback" not in self.err
        return line


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run a command line and see its exit code. `data_dir` None: without the option."""

    def start(command: str, *words: object, code: int = 0, data_dir: Path | None = tmp_path / "data") -> Ran:
        folder = ("--data-dir", data_dir) if data_dir else ()
        capsys.readouterr()
        try:
            ended = launch.main([*map(str, (command, *folder, *words)), "--no-venv"])
        except SystemExit as usage:
            assert isinstance(usage.code, int)
            ended = usage.code
        ran = Ran(ended, *capsys.readouterr())
        assert ran.code == code, ran.err
        return ran

    return start


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return write_book(tmp_path, STORY)


@pytest.fixture
def no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor is measured for a third of a second, which other work on these cores need not wait for."""
    memory = Choice(10e9, "measured on this processor")
    products: Choice[float | None] = Choice(1e11, "measured")
    rates = Bandwidths(memory, None, rows=ON_PROCESSOR, products=products)
    monkeypatch.setattr(Processor, "rates", lambda self: rates)


@pytest.fixture
def listens() -> Iterator[None]:
    """Whoever starts the tests in the background of a shell has them ignore Ctrl+C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def ctrl_c(listens: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl+C is pressed at the first word of the first answer."""
    pressed: list[RoundDone] = []

    class Interrupting(answering.Shown):
        def show(self, event: Event) -> None:
            super().show(event)
            if isinstance(event, RoundDone) and not pressed:
                pressed.append(event)
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(answering, "Shown", Interrupting)
