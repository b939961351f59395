"""The command line of launch.py: what it takes, what it refuses in a line, what it says about itself."""

import argparse
import json
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.cli import arguments
from app.cli.arguments import build_parser
from app.cli.command_options import APP, COMMANDS
from app.cli.reading import library_of, naming_parts
from app.documents.document import Document
from assets.tools.commands import TOOLS
from core.engine import Engine
from core.errors import ContextTooSmall
from tests.app.cli.conftest import ROOT, STORY, Run
from tests.app.fakes import document_of, write_book

MOST_LINES = 45  # of a screen
NAMES = {command.name: command for command in (*COMMANDS, *TOOLS)}
parse_arguments = partial(arguments.parse_arguments, tools=TOOLS)


def test_the_app_listens_here_alone_and_common_options_hold_for_it_before_a_command_and_behind_it() -> None:
    args = parse_arguments([])
    assert (args.host, args.port, args.browser, args.share, args.auth) == ("127.0.0.1", 7860, True, False, None)
    asked = ["ask", "-q", "Who?", "a.pdf", "b.txt", "--temperature", "-1"]
    args = parse_arguments(asked)
    assert args.files == [Path("a.pdf"), Path("b.txt")] and (args.temperature, args.max_new_tokens) == (-1.0, 256)
    for argv in (["--seed", "7"], [*asked, "--seed", "7"], ["--seed", "7", *asked], ["bench", "--seed", "7"]):
        args = parse_arguments(argv)
        assert args.command == next((word for word in argv if word in ("ask", "bench")), None)
        assert (args.seed, args.device, args.model, args.context, args.remote) == (7, "auto", None, None, None)


WRONG = """
sing | there is no command 'sing'
rase | there is no command 'rase'; did you mean race? See
book.pdf | there is no command 'book.pdf'; files belong behind 'ask' or 'chat'. See
ask -q Who? | FILE...
ask a.pdf | --question
ask a.pdf -q Who? --questions f.json | not allowed with
ask a.pdf -q Who? --port 80 | --port 80
ask a.pdf -q Who? --max-tokens=5 | --max-tokens=5; did you mean --max-new-tokens? See
ask a.pdf -q \udcff | not UTF-8
ask a.pdf -q x --data-dir= | --data-dir: a name is empty
--temperature 0 ask a.pdf -q x | the command 'ask' stands before its options
race f -q x --remote http://x | --remote
doctor --context 5 ask | unrecognized arguments: ask. See
--port 0 | from 1 to 65535
--port 65536 | from 1 to 65535
serve --queue -1 | use 0 or more
--no-browsers | did you mean --no-browser? See
bench --contexts 4096,, | not a list
doctor --device tpu | invalid choice
doctor --acceptance 0.3,1.5 | --acceptance: '0.3,1.5' is not usable
text a.pdf --pages 0-3 | no range
text a.pdf --pages 4-3 | no range
"""


@pytest.mark.parametrize("line", WRONG.strip().splitlines())
def test_wrong_usage_is_one_line_that_names_it_and_exits_with_2(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    typed, _, words = line.partition(" | ")
    argv = typed.split()
    with pytest.raises(SystemExit) as caught:
        parse_arguments([*argv, "--json"])
    captured = capsys.readouterr()
    assert caught.value.code == 2 and words in captured.err
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    command = f" {argv[0]}" if argv[0] in NAMES else ""
    assert captured.err.endswith(f"See: python launch.py{command} --help\n")
    error = json.loads(captured.out)["error"]
    assert error["exit_code"] == 2 and captured.err == f"error: {error['problem']} {error['hint']}\n"
    with pytest.raises(SystemExit):
        parse_arguments(argv)
    assert capsys.readouterr().out == ""


def options_of(name: str) -> set[str]:
    """All long options of a command."""
    parser = build_parser(NAMES.get(name, APP), NAMES, everything=True)
    return {option for option in parser.options() if option.startswith("--")}


def test_words_may_stand_on_both_sides_of_an_option() -> None:
    args = parse_arguments(["ask", "a.pdf", "-q", "Who?", "b.pdf"])
    assert ([str(file) for file in args.files], args.question) == (["a.pdf", "b.pdf"], "Who?")
    args = parse_arguments(["models", "get", "--json", "qwen3-8b"])
    assert (args.action, args.name, args.json) == ("get", "qwen3-8b", True)
    assert parse_arguments(["test", "tests", "-k", "a"]).pytest_args == ["tests", "-k", "a"]


def test_race_and_chat_have_the_options_of_ask() -> None:
    asked, raced, chatted = map(options_of, ("ask", "race", "chat"))
    assert asked - raced == {"--questions", "--method", "--remote", "--remote-key"}
    assert raced - asked == {"--methods", "--report"}
    assert asked - chatted == {"--question", "--questions", "--token-ids", "--json"}


def test_every_option_is_documented() -> None:
    pages = (Path(__file__).parents[3] / "assets" / "docs").glob("*.md")
    written = set(re.findall(r"--[a-z][a-z-]*", "".join(page.read_text(encoding="utf-8") for page in pages)))
    assert set[str]().union(*map(options_of, ("", *NAMES))) - written == set()


@pytest.mark.parametrize("name", ["", *(name for name in NAMES if "--help-all" in options_of(name))])
def test_help_is_short_and_help_all_has_the_rest(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for asked in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as caught:
            parse_arguments([*name.split(), asked])
        assert caught.value.code == 0
        shown = capsys.readouterr().out
        told.append(set(re.findall(r"--[a-z][a-z-]*", shown)))
        assert name or all(f"  {command} " in shown and row.text in shown for command, row in NAMES.items())
        assert asked == "--help-all" or shown.count("\n") <= MOST_LINES
    short, everything = told
    assert short < everything and {"--help-all"} <= short
    if name not in ("models", "saved"):  # which load no model
        assert {"--no-graphs", "--kv-bits", "--draft"} <= everything - short and {"--model", "--context"} <= short


# -------------------- what a command finds wrong: nothing on stdout, and no model loaded


SITUATIONS = """
ask {story} -q x --context 1000 | the context holds 1,000
doctor --model llama2-13b-128k --assume 1x4090 | lies beside them need
doctor --model llama2-7b-128k --assume 1x4090 --host-memory 32 --context 131072 | a context of 131,072 tokens does not
doctor --device cuda --assume cpu | no CUDA device
models list --data-dir ~nobody.here/d | Could not determine home
"""
TYPED = """
ask missing.pdf -q x | missing.pdf
ask {story} -q " " | question is empty
ask {story} -q x --model nope | no model 'nope'
ask {story} -q x --method magic | no method 'magic'
ask {story} -q x --max-new-tokens 0 | one new token
ask {night} {night} -q x --pages 1 | --pages is for one file, and these are 2
ask {pdf} -q x --chapters 1-99 | chapters from 1 to
race {story} -q x --methods magic | no method 'magic'
race {night} -q x --chapters 1 | has 0 chapters. Choose pages
race {night} -q x --report x.pdf | x.pdf is a web page
race {night} -q x --report missing/x.html | no folder missing
chat - | Questions come where
text {night} --find " " | --find has no words
text {night} --pages 2 | has 1 page.
doctor --context 999999 | reads at most 131,072. Use --context 131072
doctor --model nope.json | no model 'nope.json'
doctor --model ~nobody.here/m | no model '~nobody.here/m'
doctor --assume 3x7900xt | 3x7900xt
doctor --assume 0x4090 | 0x4090
doctor --host-memory nan | --host-memory nan
doctor --assume m3-max | is no NVIDIA GPU: it has no CUDA
doctor --gpu "RX 7900 XTX,24,960,25" | is no NVIDIA GPU
doctor --assume 1x4090 --gpu X,24,1008,25 | described twice
doctor --assume cpu --gpus 2 | described twice
doctor --assume 4090 --gpu-memory 24 | described twice
doctor --gpu X,24,1008 | describes no GPU
doctor --gpu X,24,-1,25 | describes no GPU
doctor --gpu-memory -1 | --gpu-memory -1
doctor --budget 100 | budget of 100
doctor --cpu-attention-share 0.95 | --cpu-attention-share 0.95
bench --repeats 0 | repeat
models get | needs the NAME
models list qwen3-8b | takes no name
models get harbour | comes with this project
models get no-such-model | no model 'no-such-model'
models show no-such-model | 'no-such-model'
saved remove nothing | No saved book is called 'nothing'
saved remove | Which book
saved cap much | no size
saved cap | no size
saved clear one.txt | takes no name
"""
LOADS = ("--context 1000", "--method magic", "--model nope ")  # what only the model knows
MISTAKES = [
    (*line.split(" | "), code) for code, lines in ((1, SITUATIONS), (2, TYPED)) for line in lines.strip().splitlines()
]


@pytest.mark.usefixtures("no_measuring")
@pytest.mark.parametrize(("typed", "words", "code"), MISTAKES)
def test_a_mistake_is_one_line_and_its_exit_code(
    typed: str, words: str, code: int, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not any(part in f"{typed} " for part in LOADS):
        monkeypatch.setattr(Engine, "load", lambda _: pytest.fail("too late"))
    files = {"story": write_book(tmp_path, STORY * 3), "night": write_book(tmp_path, "Night.", "night.txt")}
    line = typed.format(**files, pdf=ROOT / "assets" / "books" / "harbour-8k.pdf")
    assert words in run(*shlex.split(line), code=code).error


# -------------------- a text that is too long


def chapters(*, marked: bool = True) -> Document:
    """A document of four pages of 100 words, each a chapter of its own if they are marked."""
    page = "word " * 100
    starts = [at * len(page) for at in range(4)] if marked else []
    return document_of(*[page] * 4, name="book.pdf", chapter_starts=starts)


def library(document: Document, **parts: Any) -> Any:
    return library_of([document], argparse.Namespace(**{"chapters": None, "pages": None} | parts))


def test_chosen_parts_are_read_alone() -> None:
    assert library(chapters()).text == chapters().text
    assert len(library(chapters(), chapters=(2, 3)).text.split()) == 200
    assert len(library(chapters(), pages=(4, 4)).text.split()) == 100


@pytest.mark.parametrize(
    ("document", "hint"),
    [
        (chapters(), "Ask about a part: --pages 1-2 (200 tokens), --chapters 1-2 (200 tokens)"),
        (chapters(marked=False), "Ask about a part: --pages 1-2 (200 tokens), --pages 3-4"),
    ],
)
def test_what_is_too_long_names_parts_that_fit(document: Document, hint: str) -> None:
    with pytest.raises(ContextTooSmall) as caught, naming_parts(str.split, library(document)):
        raise ContextTooSmall(460, 300, possible=300)
    assert "160 too many" in caught.value.problem and str(caught.value).endswith(caught.value.hint)
    assert caught.value.hint.startswith(hint)
    with pytest.raises(ContextTooSmall) as caught, naming_parts(str.split, library(document)):
        raise ContextTooSmall(460, 300, possible=800)
    assert "part" not in caught.value.hint, "a larger context would do"
