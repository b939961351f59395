"""The command line of launch.py: what it takes, what it refuses."""

import argparse
import json
import re
from functools import partial
from pathlib import Path

import pytest

from app.cli import arguments
from app.cli.arguments import build_parser
from app.cli.command_options import COMMANDS
from assets.tools.commands import TOOLS

parse_arguments = partial(arguments.parse_arguments, tools=TOOLS)


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
    told = capsys.readouterr().err
    assert told.startswith("error: ") and told.count("\n") == 1
    command = f" {argv[0]}" if argv[0] in ("ask", "bench", "models", "text") else ""
    command = " doctor" if "doctor" in argv else command
    assert told.endswith(f"See: python launch.py{command} --help\n")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["rase"], "there is no command 'rase'; did you mean race? See"),
        (["book.pdf"], "there is no command 'book.pdf'; files belong behind 'ask' or 'chat'. See"),
        (["ask", "a.pdf", "-q", "Who?", "--max-tokens=5"], "--max-tokens=5; did you mean --max-new-tokens? See"),
        (["--no-browsers"], "did you mean --no-browser? See"),
    ],
)
def test_what_was_meant_is_guessed(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(argv)
    assert words in capsys.readouterr().err


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """All long options of a parser and of its commands."""
    found = set[str]()
    for action in parser._actions:
        found |= {name for name in action.option_strings if name.startswith("--")}
        if isinstance(action, argparse._SubParsersAction):
            found |= set[str]().union(*map(options_of, action.choices.values()))
    return found


def test_race_has_the_options_of_ask() -> None:
    commands = build_parser(TOOLS, everything=True).commands
    asked, raced = (set(commands[name].options()) for name in ("ask", "race"))
    assert asked - raced == {"--questions", "--method", "--remote", "--remote-key"}
    assert raced - asked == {"--methods", "--sequential", "--report"}
    assert asked - set(commands["chat"].options()) == {"-q", "--question", "--questions", "--token-ids", "--json"}


def test_every_option_is_documented() -> None:
    pages = (Path(__file__).parents[3] / "assets" / "docs").glob("*.md")
    written = set(re.findall(r"--[a-z][a-z-]*", "".join(page.read_text(encoding="utf-8") for page in pages)))
    assert options_of(build_parser(TOOLS, everything=True)) - written == set()


@pytest.mark.parametrize("command", [[], *([row.name] for row in (*COMMANDS, *TOOLS) if not row.is_bare)])
def test_help_is_short_and_help_all_has_the_rest(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for asked in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as caught:
            parse_arguments([*command, asked])
        assert caught.value.code == 0
        told.append(set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out)))
    short, everything = told
    assert {"--no-graphs", "--kv-bits", "--draft"} <= everything - short
    assert short < everything and {"--model", "--context", "--help-all"} <= short


def test_wrong_usage_is_json_too_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments(["ask", "a.pdf", "--json"])
    captured = capsys.readouterr()
    error = json.loads(captured.out)["error"]
    assert caught.value.code == error["exit_code"] == 2 and "--question" in error["problem"]
    assert error["hint"] == "See: python launch.py ask --help" and captured.err.count("\n") == 1
