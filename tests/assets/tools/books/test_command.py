"""`book` as a user runs it: a book, its questions, one JSON document; or one line and nothing written."""

import json
from pathlib import Path
from typing import Any

import pytest

import launch
from app.cli.ask import read_questions
from app.documents.readers import read_document
from assets.tools.books.formats import FORMATS
from core.generation.text import ChatText
from core.models.hub.catalog import find
from core.models.loader import load_tokenizer


def write(*arguments: object, tokens: int = 1_500, seed: int = 9) -> int:
    options = ["--tokens", tokens, "--seed", seed, "--no-venv"]
    return launch.main(["book", *map(str, [*options, *arguments])])


def report(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_book_of_that_length_and_its_questions_are_written(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"new{suffix}"
    assert write("-o", path, "--json") == 0
    told = report(capsys)
    assert (told["path"], told["questions_path"]) == (str(path), str(tmp_path / "new.questions.json"))
    document = read_document(path)
    text = ChatText(load_tokenizer(find("harbour").target), frozenset())
    assert told["tokens"] == len(text.encode(document.text))
    assert 1_400 < told["tokens"] <= 1_500
    assert told["chapters"] == document.text.count("Chapter ")
    rows = json.loads((tmp_path / "new.questions.json").read_text(encoding="utf-8"))
    assert told["questions"] == {kind: sum(row["kind"] == kind for row in rows) for kind in told["questions"]}
    assert {"fact", "absent", "recite", "quote"} <= set(told["questions"])
    assert read_questions(tmp_path / "new.questions.json", [path]) == [row["question"] for row in rows]
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([path.name, "new.questions.json"])


def the_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ") and captured.out == ""
    return str(line)


@pytest.mark.parametrize("existing", ["new.txt", "new.questions.json"])
def test_nothing_is_overwritten_unless_forced(
    existing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / existing).write_text("mine")
    assert write("-o", tmp_path / "new.txt") == 1
    assert f"{existing} exists already" in the_line(capsys)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["mine"]
    assert write("-o", tmp_path / "new.txt", "--force") == 0
    assert "mine" not in [file.read_text(encoding="utf-8") for file in tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-o", "missing/new.txt"), "There is no folder"),
        (("-o", "new.txt", "--tokens", 131_073), "131,073 tokens does not fit: the context holds 131,072"),
        (("-o", "new.txt", "--context", 1_000), "1,500 tokens does not fit: the context holds 1,000"),
        (("-o", "new.txt", "--tokens", 60), "No book is as short as 60 tokens"),
        (("-o", "new.txt", "--model", "nope"), "no model 'nope'"),
    ],
)
def test_each_mistake_gets_one_line_with_an_action_and_nothing_is_written(
    arguments: tuple[object, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert write(*arguments) == 2
    assert words in the_line(capsys)
    assert list(tmp_path.iterdir()) == []
