"""The command line of launch.py: what it takes, what it refuses."""

from pathlib import Path

import pytest

from app.cli.arguments import OLD_OPTIONS, parse_arguments


def test_without_a_command_it_is_the_app() -> None:
    args = parse_arguments([])
    assert (args.command, args.host, args.port, args.browser, args.share, args.auth) == (
        None,
        "127.0.0.1",
        7860,
        True,
        False,
        None,
    )


def test_common_options_hold_before_and_after_a_command() -> None:
    for argv in (["--seed", "7", "ask", "a.pdf", "-q", "Who?"], ["ask", "a.pdf", "-q", "Who?", "--seed", "7"]):
        args = parse_arguments(argv)
        assert (args.seed, args.device, args.model, args.context) == (7, "auto", None, None)


def test_ask_takes_files_and_a_question_in_any_order() -> None:
    args = parse_arguments(["ask", "-q", "Who?", "a.pdf", "b.txt", "--temperature", "-1", "--json"])
    assert args.files == [Path("a.pdf"), Path("b.txt")]
    assert (args.question, args.temperature, args.method, args.max_new_tokens) == ("Who?", -1.0, None, 256)
    assert args.json


def test_lists_are_written_with_commas() -> None:
    args = parse_arguments(["bench", "--contexts", "4096,32768", "--methods", "triforce,autoregressive"])
    assert args.contexts == (4096, 32768)
    assert args.methods == ("triforce", "autoregressive")


def test_pages_are_one_or_a_range() -> None:
    assert parse_arguments(["text", "a.pdf"]).pages is None
    assert parse_arguments(["text", "a.pdf", "--pages", "7"]).pages == (7, 7)
    assert parse_arguments(["text", "a.pdf", "--pages", "3-12"]).pages == (3, 12)


def test_the_tests_pass_unknown_arguments_on_in_their_order() -> None:
    args = parse_arguments(["test", "--no-venv", "tests/core", "-k", "cache and not slow", "-x"])
    assert args.pytest_args == ["tests/core", "-k", "cache and not slow", "-x"]


@pytest.mark.parametrize(
    "argv",
    [
        ["sing"],
        ["models", "get"],
        ["models", "list", "qwen3-8b"],
        ["models", "eat", "qwen3-8b"],
        ["ask"],
        ["ask", "a.pdf"],
        ["ask", "a.pdf", "-q", "Who?", "--questions", "f.json"],
        ["ask", "a.pdf", "-q", "Who?", "--port", "80"],
        ["--port", "80", "doctor"],
        ["--port", "0"],
        ["--port", "65536"],
        ["--port", "http"],
        ["bench", "--contexts", "4096,,"],
        ["bench", "--contexts", "4k"],
        ["doctor", "--device", "tpu"],
        ["text"],
        ["text", "a.pdf", "--pages", "0-3"],
        ["text", "a.pdf", "--pages", "4-3"],
        ["text", "a.pdf", "--pages", "two"],
        ["ask", "a.pdf", "-q", "Who?", "--se", "7"],
    ],
)
def test_wrong_usage_exits_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments(argv)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (["shelf", "cap", "40"], ["saved", "cap", "40"]),
        (["--host-share=0.2", "ask", "shelf", "-q", "Who?", "--shelf"], None),
        (["race", "a", "-q", "Who?", "--no-shelf"], ["race", "a", "-q", "Who?", "--no-saved"]),
        (["doctor", "--draft-bits", "4"], ["doctor", "--self-draft-bits", "4"]),
    ],
)
def test_old_names_still_work_and_tell_the_new_one(before: list[str], now: list[str] | None) -> None:
    now = now or ["--cpu-attention-share=0.2", "ask", "shelf", "-q", "Who?", "--saved"]
    old, new = vars(parse_arguments(before)), vars(parse_arguments(now))
    notes = old.pop("notes")
    assert new.pop("notes") == [] and old == new
    changed = [(a, b) for a, b in zip(before, now, strict=True) if a != b]
    told = [f"note: {a.partition('=')[0]} is now called {b.partition('=')[0]}." for a, b in changed]
    assert notes == told and told


def test_what_follows_two_dashes_is_no_option() -> None:
    assert parse_arguments(["ask", "-q", "Who?", "--", "--shelf"]).files == [Path("--shelf")]


@pytest.mark.parametrize("argv", [["--help-all"], ["ask", "--help-all"], ["doctor", "--help-all"]])
def test_help_shows_no_old_name(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(argv)
    told = capsys.readouterr().out
    assert "--self-draft-bits" in told and not {"shelf", *OLD_OPTIONS} & set(told.replace(",", " ").split())


def test_words_for_pytest_stay_as_they_are_and_a_file_may_be_called_test() -> None:
    args = parse_arguments(["test", "tests/x.py", "--shelf"])
    assert args.pytest_args == ["tests/x.py", "--shelf"] and not args.notes
    asked = parse_arguments(["ask", "test", "-q", "Who?", "--shelf"])
    assert asked.command == "ask" and asked.notes
