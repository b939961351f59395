"""The command line as a user runs it: exit codes, one line on stderr, one JSON document on stdout."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM

import launch as launcher
from core.models.hub import catalog

ROOT = Path(__file__).parents[3]
BOOK = ROOT / "assets" / "books" / "harbour-8k.pdf"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Any]:
    """A command in this process, with a data folder of its own and without the seconds of imports; returns its JSON."""

    def run(name: str, *arguments: object) -> Any:
        own = ["--data-dir", str(tmp_path / "data")]
        assert launcher.main([name, *own, *map(str, arguments), "--json", "--no-venv"]) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


@pytest.fixture(scope="module")
def small_book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("books") / "small.txt"
    file.write_text("Chapter 1: The Quay\n\n" + "Martha Voss kept the light at Gull Point. " * 60, encoding="utf-8")
    return file


def test_ask_answers_many_questions_with_one_reading(
    small_book: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    questions = tmp_path / "q.json"
    questions.write_text(json.dumps([{"question": "Who kept the light?"}, {"question": "Where?", "book": "small.txt"}]))
    report = command("ask", small_book, "--questions", questions, "--max-new-tokens", 8, "--temperature", 0.8)
    first, second = report["answers"]
    assert first["reused_tokens"] == 0 and second["question"] == "Where?"
    assert second["prompt_tokens"] - second["reused_tokens"] < 20, "the book is not read again"
    assert {"text", "token_ids", "acceptance", "decode_seconds"} <= set(first)


def test_questions_that_are_asked_together_have_the_answers_they_have_one_by_one(
    small_book: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    asked = ["Who kept the light?", "Where?", "What did Captain Reed say to the old keeper of the light, and when?"]
    questions, options = tmp_path / "q.json", ["--max-new-tokens", 12, "--temperature", 0.8]
    questions.write_text(json.dumps(asked))
    report = command("ask", small_book, "--questions", questions, *options)
    assert [row["question"] for row in report["answers"]] == asked
    for number, (question, row) in enumerate(zip(asked, report["answers"], strict=True)):
        (alone,) = command("ask", small_book, "-q", question, *options, "--seed", number)["methods"].values()
        assert row["token_ids"] == alone["token_ids"]


def test_the_tokens_of_an_answer_can_be_checked_by_transformers_alone(
    small_book: Path, command: Callable[..., Any]
) -> None:
    asked = ("ask", small_book, "-q", "Who kept the light?", "--max-new-tokens", 24, "--method", "triforce")
    (answer,) = command(*asked, "--token-ids")["methods"].values()
    model = AutoModelForCausalLM.from_pretrained(catalog.find(catalog.BUNDLED).target)
    prompt = torch.tensor([answer["prompt_token_ids"]])
    theirs = cast(Any, model).generate(prompt, do_sample=False, max_new_tokens=24)[0, prompt.shape[1] :].tolist()
    assert answer["token_ids"] == theirs
    (plain,) = command(*asked)["methods"].values()
    assert "prompt_token_ids" not in plain


SITUATIONS = ("the context holds",)  # of a text; all other mistakes are in what was typed
WRONG: list[tuple[tuple[object, ...], str]] = [
    (("ask", "missing.pdf", "-q", "x"), "missing.pdf"),
    (("ask", BOOK, "-q", " "), "question is empty"),
    (("ask", BOOK, "-q", "x", "--temperature", -1), "Temperature -1"),
    (("ask", BOOK, "-q", "x", "--model", "nope"), "no model 'nope'"),
    (("ask", BOOK, "-q", "x", "--context", 1000), "the context holds 1,000"),
    (("ask", BOOK, "-q", "x", "--method", "magic"), "no method 'magic'"),
    (("ask", BOOK, "-q", "x", "--max-new-tokens", 0), "one new token"),
    (("race", BOOK, "-q", "x", "--methods", "magic"), "no method 'magic'"),
    (("race", BOOK, "-q", ""), "question is empty"),
    (("chat", "-"), "Questions come where"),
    (("chat", "missing.pdf"), "missing.pdf"),
    (("doctor", "--context", 999_999), "reads at most 131,072. Use --context 131072"),
    (("bench", "--repeats", 0), "repeat"),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=[" ".join(map(str, a[:1])) + ": " + w for a, w in WRONG])
def test_each_mistake_gets_one_line_with_an_action_and_its_exit_code(
    arguments: tuple[object, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = launcher.main([*map(str, arguments), "--no-venv"])
    captured = capsys.readouterr()
    problem = [line for line in captured.err.splitlines() if line.startswith("error:")]
    assert code == (1 if words.startswith(SITUATIONS) else 2) and len(problem) == 1 and words in problem[0], (
        captured.err
    )
    assert captured.out == ""
