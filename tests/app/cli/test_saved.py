"""Books kept on disk, from the command line: a second `ask` reads none of the book, and `saved` lists and removes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import launch as launcher
from app.context.context_documents import digest_of
from core.decoding.registry import FASTEST
from core.engine import Engine
from tests.app.fakes import write_book
from tests.app.ui.test_page import with_words
from tests.core.toys import tiny_engine

Run = Callable[..., dict[str, Any]]
QUESTION = "How was the night?"
TEXT = "It was a dark and stormy night. " * 20


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_config: object) -> Engine:
        return with_words(tiny_engine(context=2048, prefill_chunk=128))

    monkeypatch.setattr(Engine, "load", load)


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command line with a data folder of its own; its JSON, and its stderr."""

    def start(*arguments: object, code: int = 0) -> dict[str, Any]:
        line = [*map(str, arguments), "--json", "--no-venv", "--data-dir", str(tmp_path / "data")]
        assert launcher.main(line) == code
        captured = capsys.readouterr()
        document: dict[str, Any] = json.loads(captured.out) if code == 0 else {}
        return document | {"stderr": captured.err}

    return start


def ask(run: Run, book: Path, *options: object) -> dict[str, Any]:
    return run("ask", book, "-q", QUESTION, "--max-new-tokens", 12, *options)


def token_ids(report: dict[str, Any]) -> list[int]:
    ids: list[int] = report["methods"][FASTEST]["token_ids"]
    return ids


def test_after_a_restart_the_bundled_model_reads_no_token_of_the_book(run: Run, tmp_path: Path) -> None:
    book = write_book(tmp_path, "Martha Voss kept the light at Gull Point. " * 30)
    first, second = ask(run, book, "--saved"), ask(run, book)  # each loads the model anew
    assert first["book_tokens_read"] == first["book_tokens"] > 200 and first["saved"]["kept"]
    assert second["book_tokens_read"] == 0 and second["saved"]["fetched_tokens"] == second["book_tokens"]
    assert second["prompt_tokens"] - second["reused_tokens"] < 30 and second["saved"]["kept"] is None
    assert token_ids(first) == token_ids(second)
    (kept,) = run("saved")["books"]
    assert kept["names"] == ["book.txt"] and kept["id"] == first["saved"]["kept"]
    assert {"weights", "config", "text", "dtype", "format"} <= set(kept["identity"])


@pytest.mark.usefixtures("toy")
def test_shelf_lists_removes_and_makes_room(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one.txt", "two.txt", "three.txt"):
        ask(run, write_book(tmp_path, digest_of(name).hex() * 5, name), "--saved")
    listed = run("saved", "list")
    assert [book["names"] for book in listed["books"]] == [["three.txt"], ["two.txt"], ["one.txt"]]
    assert listed["size_bytes"] == sum(book["size_bytes"] for book in listed["books"])
    assert [book["names"] for book in run("saved", "remove", "two.txt")["removed"]] == [["two.txt"]]
    room = listed["books"][0]["size_bytes"] / 2**30 * 1.5
    assert [book["names"] for book in run("saved", "cap", room)["removed"]] == [["one.txt"]]
    assert launcher.main(["saved", "--no-venv", "--data-dir", str(tmp_path / "data")]) == 0
    assert "three.txt" in capsys.readouterr().out
    assert [book["names"] for book in run("saved", "clear")["removed"]] == [["three.txt"]]
    assert run("saved")["books"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("remove", "nothing"), "No saved book is called 'nothing'"),
        (("remove",), "Which book"),
        (("cap", "much"), "no size"),
        (("cap",), "no size"),
        (("clear", "one.txt"), "takes no name"),
    ],
)
def test_each_mistake_gets_one_line(run: Run, arguments: tuple[str, ...], words: str) -> None:
    error = run("saved", *arguments, code=2)["stderr"]
    assert error.startswith("error:") and words in error and len(error.splitlines()) == 1
