"""The command line of launch.py. Standard library only: it is parsed before anything is installed."""

import argparse
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import NamedTuple, NoReturn

from app.cli import command_options as options
from app.cli.terminal import error_document

VERSION = "0.1"
SERVE_OPTIONS = {"host": "127.0.0.1", "port": 8000, "allow_host": None}
APP_OPTIONS = {"host": "127.0.0.1", "port": 7860, "browser": True, "share": False, "auth": None, "allow_host": None}
DEFAULTS = {  # of the common options
    "model": None,
    "draft": "auto",
    "bits": None,
    "kv_bits": None,
    "self_draft_bits": None,
    "device": "auto",
    "gpus": None,
    "context": None,
    "gpu_memory": None,
    "seed": 0,
    "data_dir": None,
    "layerwise": True,
    "attention": "auto",
    "graphs": True,
    "cpu_attention_share": None,
    "offline": False,
    "venv": True,
    "remote": None,
    "remote_key": None,
}


class Command(NamedTuple):
    """A command; `app.cli` has a module of its name with `run`, unless it names another."""

    name: str
    text: str
    add_options: Callable[[argparse.ArgumentParser], None]
    rare: frozenset[str] = frozenset()  # options of its own that only --help-all lists
    module: str = ""


class Misuse(Exception):
    """A command line that cannot be parsed, and the parser that says so."""

    def __init__(self, parser: argparse.ArgumentParser, message: str) -> None:
        super().__init__(message)
        self.parser = parser


class Parser(argparse.ArgumentParser):
    """A parser whose caller tells what is wrong."""

    commands: dict[str, "Parser"]  # of the main parser, by name

    def error(self, message: str) -> NoReturn:
        """Raises Misuse."""
        if found := re.match(r"argument COMMAND: invalid choice: '(.*)' \(choose", message):
            meant = "; files belong behind 'ask' or 'chat'" if "." in found[1] else alike(found[1], self.commands)
            message = f"there is no command {found[1]!r}{meant}"
        raise Misuse(self, message)

    def options(self) -> Iterator[str]:
        """Its options, as --help-all lists them."""
        return (name for action in self._actions for name in action.option_strings)


def alike(word: str, known: Iterable[str]) -> str:
    """A question about the most similar of the known words; "": none is similar."""
    found = get_close_matches(word.partition("=")[0], list(known), 1, 0.7)
    return f"; did you mean {found[0]}?" if found else ""


def parse_arguments(argv: Sequence[str], tools: Sequence[Command] = ()) -> argparse.Namespace:
    """Parse a command line (`command` is None for the app).

    Wrong usage exits with 2, before anything is installed; with --json it is told on stdout, too.
    """
    try:
        return parsed(argv, tools)
    except Misuse as misuse:
        problem = str(misuse) if str(misuse)[-1] in ".?" else f"{misuse}."
        hint = f"See: python {misuse.parser.prog} --help"
        print(f"error: {problem} {hint}", file=sys.stderr)
        if "--json" in argv:
            print(error_document(problem, hint, code=2), flush=True)
        sys.exit(2)


def parsed(argv: Sequence[str], tools: Sequence[Command]) -> argparse.Namespace:
    """Parse a command line.

    Raises:
        Misuse: wrong usage.
    """
    parser = build_parser(tools, everything="--help-all" in argv)
    args, rest = parser.parse_known_args(argv)
    told_by = parser.commands[args.command] if args.command else parser
    error = told_by.error
    if args.command == "test":
        args.pytest_args = rest
    elif rest:
        error(f"unrecognized arguments: {' '.join(rest)}{alike(rest[0], told_by.options())}")
    if args.command == "models" and (args.name is None) != (args.action == "list"):
        error("models list takes no name" if args.name else f"models {args.action} needs the NAME of a model")
    if args.remote and args.command not in (None, "ask", "chat"):
        error(f"--remote belongs to the app, 'ask' and 'chat', not to '{args.command}'")
    for name in not_utf8(args):
        error(f"{name.replace('_', '-')}: these bytes are not UTF-8 text: write it in UTF-8")
    for name, default in APP_OPTIONS.items():
        if args.command == "serve" and name in SERVE_OPTIONS:
            vars(args).setdefault(name, SERVE_OPTIONS[name])
        elif args.command is None:
            vars(args).setdefault(name, default)
        elif hasattr(args, name):
            error(f"--{name.replace('_', '-')} belongs to the app, not to '{args.command}'")
    return args


def not_utf8(args: argparse.Namespace) -> Iterator[str]:
    """The names of texts with bytes that are no UTF-8, which Python keeps as surrogates. Paths may have them."""
    for name, value in vars(args).items():
        for text in value if isinstance(value, tuple | list) else (value,):
            if isinstance(text, str) and any("\ud800" <= char <= "\udfff" for char in text):
                yield name


COMMANDS = (
    Command("ask", "one answer, streamed", options.add_ask_options),
    Command("chat", "questions and answers about files, in the terminal", options.add_chat_options),
    Command(
        "race",
        "methods in fair turns from one reading of the text: speeds, acceptance, equality",
        options.add_race_options,
    ),
    Command("serve", "an OpenAI-compatible server for other programs", options.add_serve_options),
    Command("text", "what the model gets of each file: pages, tokens, chapters, warnings", options.add_text_options),
    Command("saved", "books saved on disk, which need not be read again", options.add_saved_options),
    Command(
        "doctor",
        "what this machine has, or one that you describe, what fits on it, and why",
        options.add_doctor_options,
    ),
    Command("models", "known models: list them, show one, get it from the hub, remove it", options.add_models_options),
)


def build_parser(tools: Sequence[Command] = (), *, everything: bool = False) -> Parser:
    """The whole command line.

    Args:
        tools: further commands.
        everything: --help lists rare options, too.
    """
    parser = Parser(
        prog="launch.py",
        description="Chat with whole books on your own machine, exactly and fast. No command: the app.",
        allow_abbrev=False,
    )
    parser.set_defaults(**DEFAULTS)
    told = f"TriForce Reader {VERSION}, Python {platform.python_version()}"
    parser.add_argument("--version", action="version", version=told, help="show which version this is")
    options.add_common_options(parser)
    options.add_remote_options(parser)
    options.add_app_options(parser)
    finish(parser, None, everything=everything)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for row in (*COMMANDS, *tools):
        command = commands.add_parser(row.name, allow_abbrev=False, help=row.text, description=sentence(row.text))
        options.add_common_options(command)
        if row.name != "chat":
            json_help = "print one JSON document as the last line of stdout"
            command.add_argument("--json", action="store_true", help=json_help)
        row.add_options(command)
        finish(command, row.name, row.rare, everything=everything)
    add_project_commands(commands)
    parser.commands = dict(commands.choices)
    return parser


def sentence(text: str) -> str:
    """A command's help as its description."""
    return f"{text[0].upper()}{text[1:]}."


def finish(parser: Parser, command: str | None, rare: Iterable[str] = (), *, everything: bool) -> None:
    """Add --help-all, and leave rare options out of --help."""
    if everything or options.hide_rare(parser, command, rare):
        parser.add_argument("--help-all", action="help", help="list all options, rare ones too")


def add_project_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """`repair`, `test`, `check`: commands about the program itself, without the common options."""
    added = []
    for name, text in (
        ("repair", "install the build of torch that suits this machine's GPU and its driver"),
        ("test", "install the test tools and run the tests; other arguments go to pytest"),
        ("check", "everything that a change must pass: the tests, the slow tests, style and types"),
    ):
        added.append(commands.add_parser(name, help=text, description=sentence(text), allow_abbrev=False))
        options.add_venv_option(added[-1])
    _, test, check = added
    test.add_argument(
        "--long",
        action="store_true",
        help="instead, the long programs (tests/long.py) one after the other, or the one that is named, with "
        "arguments of its own",
    )
    check.add_argument("--no-tests", dest="tests", action="store_false", help="all but what 'test' runs")
