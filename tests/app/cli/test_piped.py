"""Pipes as documents and questions, and a command whose folder cannot be used."""

import io
import json
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import launch as launcher
from app.cli import reading
from app.cli.arguments import parse_arguments
from app.cli.command_options import question
from app.cli.reading import STDIN, readable
from app.documents.errors import DocumentTooLarge
from tests.app.fakes import write_book

BOOK = Path(__file__).parents[3] / "assets" / "books" / "harbour-8k.pdf"


def pipes_in(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content), isatty=lambda: False))


def test_what_is_piped_in_is_a_document_of_any_format(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipes_in(monkeypatch, BOOK.read_bytes())
    assert launcher.main(["text", "-", "--pages", "2", "--json", "--no-venv"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["files"]
    assert (told["name"], told["format"], told["pages"][0]["label"]) == ("stdin", "pdf", "2")
    pipes_in(monkeypatch, b"")
    assert launcher.main(["text", "-", "--no-venv"]) == 1
    assert "stdin is empty" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="named pipes")
def test_a_named_pipe_is_read_once_and_a_file_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "letters"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"abc" * 10,))
    writer.start()
    with readable(pipe) as copy:
        assert copy != pipe and copy.name == "letters" and copy.read_bytes() == b"abc" * 10
    writer.join()
    assert not copy.exists()
    with readable(BOOK) as same:
        assert same == BOOK
    monkeypatch.setattr(reading, "MOST_BYTES", 8)
    pipes_in(monkeypatch, b"123456789")
    with pytest.raises(DocumentTooLarge), readable(STDIN):
        pass


def test_a_question_may_come_from_a_file_or_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "q.txt"
    file.write_bytes("\ufeffWho keeps\nthe light?\n".encode())
    assert question(f"@{file}") == "Who keeps\nthe light?" and question("@@home?") == "@home?"
    assert question("me@home?") == "me@home?"
    pipes_in(monkeypatch, "Où?\n".encode())
    assert parse_arguments(["ask", "a.pdf", "-q", "@-"]).question == "Où?"
    file.write_bytes(b"Who \xff?")
    for text, told in ((f"@{file}", "is not UTF-8 text (byte 4)"), ("@nowhere", "cannot be read"), ("@a\0", "read")):
        with pytest.raises(SystemExit) as caught:
            parse_arguments(["ask", "a.pdf", "-q", text, "--json"])
        captured = capsys.readouterr()
        error = json.loads(captured.out)["error"]
        assert caught.value.code == error["exit_code"] == 2 and told in error["problem"] and told in captured.err
    with pytest.raises(SystemExit), monkeypatch.context() as patched:
        patched.setattr("app.cli.command_options.MOST_QUESTION_BYTES", 3)
        parse_arguments(["race", "a.pdf", "-q", f"@{file}"])
    assert "longer than a question may be" in capsys.readouterr().err


@pytest.fixture
def no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cli.opening.read_documents", lambda args: pytest.fail("too late"))


@pytest.mark.usefixtures("no_reading")
@pytest.mark.parametrize("command", [["ask", "a", "-q", "x"], ["race", "a", "-q", "x"], ["chat", "a"]])
def test_a_data_folder_that_cannot_be_used_is_told_before_anything_is_read(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "in" / "it"):
        assert launcher.main([*command, "--data-dir", str(folder), "--no-venv"]) == 1
        error = capsys.readouterr().err
        assert "cannot be made and closed to others (" in error and "Choose another with --data-dir." in error
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert launcher.main([*command, "--data-dir", str(tmp_path / "new"), "--no-venv"]) == 1
    assert "cannot be written to" in capsys.readouterr().err


@pytest.mark.parametrize("home", ["file", None])
def test_ask_without_a_usable_home_answers_and_says_that_nothing_is_kept(
    home: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    book = write_book(tmp_path)
    (tmp_path / "file").write_text("")

    def nowhere() -> Path:
        if home is None:
            raise RuntimeError("Could not determine home directory.")
        return tmp_path / home

    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.setattr("core.kv_store.engine_store.WORTH_SECONDS", 0.0)
    command = ["ask", str(book), "-q", "Who?", "--max-new-tokens", "4", "--context", "1024", "--no-venv"]
    assert launcher.main(command) == 0
    captured = capsys.readouterr()
    assert captured.err.count("note: nothing is kept. ") == 1 and captured.out.endswith("\n")
    monkeypatch.setattr(reading, "extract_documents", lambda *given, **how: pytest.fail("too late"))
    assert launcher.main([*command, "--saved"]) == 1, "what was asked for is told before anything is read"
