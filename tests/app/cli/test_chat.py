"""`chat`: what is typed or piped in, answers with pages, Ctrl+C, and the race."""

import io
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import launch as launcher
from app.cli import chat
from app.cli.chat import Chat
from app.cli.opening import OpenText
from app.context.context_documents import Library
from app.documents.readers import read_document
from core.config import EngineConfig, GenerationConfig
from core.engine import Engine
from tests.app.cli.test_interrupts import interrupting, listens  # noqa: F401
from tests.app.fakes import write_book

ROOT = Path(__file__).parents[3]
TEXT = "Chapter 1: The Quay\n\n" + "Martha Voss kept the light at Gull Point. " * 60


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return write_book(tmp_path, TEXT)


@pytest.fixture
def talk(book: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A chat about the book with what comes through a pipe; returns what it wrote to stdout and to stderr."""

    def run(typed: bytes, *options: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed)))
        command = ["chat", str(book), "--max-new-tokens", "12", "--no-saved", *options, "--no-venv"]
        assert launcher.main(command) == 0
        captured = capsys.readouterr()
        return captured.out, captured.err

    return run


def test_questions_from_a_pipe_are_answered_in_one_conversation(talk: Callable[..., Any]) -> None:
    typed = b"Who kept the light?\n\n/race\n/sing\n" + b"\xff\xfe\n" + b"/new\nWhere?\n/quit\nnever asked\n"
    out, errors = talk(typed, "--context", "4096")
    assert "> Who kept the light?\n\n" in out and "> Where?" in out and "never asked" not in out
    assert "texts: identical" in errors and "There is no /sing." in errors
    assert "error: That line is not UTF-8 text." in errors and "The questions are forgotten." in errors
    assert errors.count(" tokens/s · ") == 2 and out.endswith("\n")


def test_a_mistake_within_keeps_the_chat(talk: Callable[..., Any]) -> None:
    _, errors = talk(b"/race\n" + b"word " * 3000 + b"\nWho?\n", "--context", "1200")
    assert "error: Nothing was asked yet." in errors
    assert "the context holds 1,200" in errors and errors.count(" tokens/s · ") == 1


@pytest.mark.usefixtures("listens")
def test_ctrl_c_stops_an_answer_and_keeps_the_chat(talk: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cli.answering.Shown", interrupting())
    out, errors = talk(b"Who kept the light?\nWhere?\n", "--method", "autoregressive")
    assert "Stopped.\n" in errors and errors.count(" tokens/s") == 2 and "> Where?" in out


@pytest.fixture(scope="module")
def engine() -> Any:
    with closing(Engine.load(EngineConfig(context=1024, device="cpu"))) as engine:
        yield engine


@pytest.fixture
def talked(engine: Engine, book: Path) -> Chat:
    args: Any = SimpleNamespace(remote=None, saved=False, data_dir=None, files=[book], method=None)
    return Chat(OpenText(args, engine, Library.of([read_document(book)]), GenerationConfig(max_new_tokens=4)))


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


def test_earlier_questions_are_in_the_prompt_until_they_are_forgotten(
    talked: Chat, asked: list[tuple[str, list[str]]]
) -> None:
    for line in ("Who?", "Where?", "/new", "When?"):
        talked._obey(line.partition(" ")[0], "", line)
    assert asked == [("Who?", []), ("Where?", ["Who?"]), ("When?", [])]


def test_a_race_of_the_last_question_answers_it_where_it_was_asked(
    talked: Chat, asked: list[tuple[str, list[str]]]
) -> None:
    for line in ("Who?", "Where?", "/race", "/race When?"):
        word, _, rest = line.partition(" ")
        talked._obey(word, rest, line)
    assert asked[2:] == [("Where?", ["Who?"]), ("When?", ["Who?", "Where?"])]
    assert len(talked._past) == 2, "a race is no part of the conversation"
