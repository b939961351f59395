"""The counts of a sample's first race."""

import json
from pathlib import Path

import pytest

import launch as launcher
from assets.tools.races import says_the_same
from core.decoding.registry import EXACT_METHODS
from core.engine import Engine
from tests.app.fakes import write_book
from tests.core.toys import tiny_engine, with_words


def test_questions_are_verified_and_what_was_counted_lies_beside_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Engine, "load", lambda config: with_words(tiny_engine(context=1024)))
    book = write_book(tmp_path)
    questions, kept_in = tmp_path / "questions.json", tmp_path / "book.txt.races.json"
    rows = [{"book": "book.txt", "question": f"Question {at}?", "answer": "x" * at} for at in range(1, 7)]
    rows.append({"book": "other.txt", "question": "Of another book?", "answer": "x" * 99})
    questions.write_text(json.dumps(rows), encoding="utf-8")
    command = ["races", str(book), "--questions", str(questions), "--max-new-tokens", "12", "--json", "--no-venv"]
    assert launcher.main(command) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    kept = json.loads(kept_in.read_text(encoding="utf-8"))
    assert told == kept and kept["book"] == "book.txt" and kept["max_new_tokens"] == 12
    assert [row["question"] for row in kept["questions"]] == [f"Question {at}?" for at in (6, 5, 4, 3)], "the longest"
    for row in kept["questions"]:
        assert row["identical"] is True and row["right"] is False and row["new_tokens"] == 12
        assert row["tokens_per_pass"].keys() == {*EXACT_METHODS} - {"autoregressive"}
        assert min(row["tokens_per_pass"].values()) >= 1
    assert kept["fastest"] in EXACT_METHODS
    assert launcher.main([*command, "--pages", "1"]) == 2 and "one whole file" in capsys.readouterr().err
    questions.write_text(json.dumps(rows[-1:]), encoding="utf-8")
    assert launcher.main(command) != 0 and "asks nothing about book.txt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "answer", "same"),
    [
        ("The  sea was\ncalm.", "The sea was calm. It rained.", True),
        ("The sea was ca", "The sea was calm.", True),
        ("The sea was wild.", "The sea was calm.", False),
        ("The sea was calm. And more.", "The sea was calm.", False),
        (" ", "The sea was calm.", False),
    ],
)
def test_a_text_is_right_if_it_is_the_known_answer_or_its_beginning(text: str, answer: str, same: bool) -> None:
    assert says_the_same(text, answer) is same
