"""The command line of launch.py: what it takes, what it refuses."""

import json
import re
from functools import partial
from pathlib import Path

import pytest

from app.cli import arguments
from app.cli.arguments import build_parser
from app.cli.command_options import APP, COMMANDS
from assets.tools.commands import TOOLS

MOST_LINES = 45  # of a screen
parse_arguments = partial(arguments.parse_arguments, tools=TOOLS)


def test_without_a_command_it_is_the_app() -> None:
    args = parse_arguments([])
    assert (args.command, args.host, args.port, args.browser) == (None, "127.0.0.1", 7860, True)
    assert (args.share, args.auth, args.remote) == (False, None, None)


def test_common_options_hold_for_the_app_before_a_command_and_behind_it() -> None:
    asked = ["ask", "a.pdf", "-q", "Who?"]
    for argv in (["--seed", "7"], [*asked, "--seed", "7"], ["--seed", "7", *asked], ["bench", "--seed", "7"]):
        args = parse_arguments(argv)
        assert args.command == next((word for word in argv if word in ("ask", "bench")), None)
        assert (args.seed, args.device, args.model, args.context, args.remote) == (7, "auto", None, None, None)


def test_a_command_without_common_options_has_what_launch_asks_of_all() -> None:
    args = parse_arguments(["repair", "--no-venv"])
    assert (args.command, args.venv, args.device, args.offline, args.remote) == ("repair", False, "auto", False, None)


def test_ask_takes_files_and_a_question_in_any_order() -> None:
    args = parse_arguments(["ask", "-q", "Who?", "a.pdf", "b.txt", "--temperature", "-1", "--json"])
    assert args.files == [Path("a.pdf"), Path("b.txt")]
    assert (args.question, args.temperature, args.method, args.max_new_tokens) == ("Who?", -1.0, None, 256)
    assert args.json


WRONG = """
sing | there is no command 'sing'
rase | there is no command 'rase'; did you mean race? See
book.pdf | there is no command 'book.pdf'; files belong behind 'ask' or 'chat'. See
models eat qwen3-8b | invalid choice
ask | FILE...
ask a.pdf | --question
ask a.pdf -q Who? --questions f.json | not allowed with
ask a.pdf -q Who? --port 80 | --port 80
ask a.pdf -q Who? --se 7 | --se 7
ask a.pdf -q Who? --max-tokens=5 | --max-tokens=5; did you mean --max-new-tokens? See
ask a.pdf -q \udcff | not UTF-8
--temperature 0 doctor | the command 'doctor' stands before its options
--temperature 0 ask a.pdf -q x | the command 'ask' stands before its options
doctor --remote http://x | --remote http://x
doctor --context 5 ask | unrecognized arguments: ask. See
--port 0 | from 1 to 65535
--port http | from 1 to 65535
--no-browsers | did you mean --no-browser? See
bench --contexts 4096,, | not a list
bench --contexts 4k | not a list
doctor --device tpu | invalid choice
doctor --acceptance 0.9 | --acceptance: '0.9' is not usable
doctor --acceptance 0.3,1.5 | --acceptance: '0.3,1.5' is not usable
text | FILE...
text a.pdf --pages 0-3 | no range
text a.pdf --pages 4-3 | no range
text a.pdf --pages two | no range
"""


NAMES = {command.name: command for command in (*COMMANDS, *TOOLS)}


@pytest.mark.parametrize("line", WRONG.strip().splitlines())
def test_wrong_usage_is_one_line_that_names_it_and_exits_with_2(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    typed, _, words = line.partition(" | ")
    argv = typed.split()
    with pytest.raises(SystemExit) as caught:
        parse_arguments(argv)
    told = capsys.readouterr().err
    assert caught.value.code == 2 and words in told
    assert told.startswith("error: ") and told.count("\n") == 1
    command = f" {argv[0]}" if argv[0] in NAMES else ""
    assert told.endswith(f"See: python launch.py{command} --help\n")


def options_of(name: str) -> set[str]:
    """All long options of a command."""
    parser = build_parser(NAMES.get(name, APP), NAMES, everything=True)
    return {option for option in parser.options() if option.startswith("--")}


def test_race_has_the_options_of_ask() -> None:
    asked, raced, chatted = map(options_of, ("ask", "race", "chat"))
    assert asked - raced == {"--questions", "--method", "--remote", "--remote-key"}
    assert raced - asked == {"--methods", "--report"}
    assert asked - chatted == {"--question", "--questions", "--token-ids", "--json"}


def test_every_option_is_documented() -> None:
    pages = (Path(__file__).parents[3] / "assets" / "docs").glob("*.md")
    written = set(re.findall(r"--[a-z][a-z-]*", "".join(page.read_text(encoding="utf-8") for page in pages)))
    assert set[str]().union(*map(options_of, ("", *NAMES))) - written == set()


@pytest.mark.parametrize(
    "command",
    [
        [],
        *([name] for name, row in NAMES.items() if any(option.startswith("--help-all") for option in options_of(name))),
    ],
)
def test_help_is_short_and_help_all_has_the_rest(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for asked in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as caught:
            parse_arguments([*command, asked])
        assert caught.value.code == 0
        shown = capsys.readouterr().out
        told.append(set(re.findall(r"--[a-z][a-z-]*", shown)))
        assert bool(command) or all(f"  {name} " in shown and row.text in shown for name, row in NAMES.items())
        assert asked == "--help-all" or shown.count("\n") <= MOST_LINES
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
