"""The command line of launch.py. Standard library only: it is parsed before anything is installed."""

import argparse
import platform
import re
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import NoReturn

from app.cli.command_options import APP, COMMANDS, COMMON, REMOTE, Command, Group, Option, add
from app.cli.terminal import error_document

VERSION = "0.1"
HELP_ALL = Option("--help-all", "list all options, rare ones too", action="help")
JSON = Option("--json", "print one JSON document as the last line of stdout", action="store_true")


class Misuse(Exception):
    """A command line that cannot be parsed: what is wrong, and how its parser is called."""


class Parser(argparse.ArgumentParser):
    """A parser whose caller tells what is wrong."""

    commands: dict[str, "Parser"]  # of the main parser, by name

    def error(self, message: str) -> NoReturn:
        """Raises Misuse."""
        if found := re.match(r"argument COMMAND: invalid choice: '(.*)' \(choose", message):
            meant = "; files belong behind 'ask' or 'chat'" if "." in found[1] else alike(found[1], self.commands)
            message = f"there is no command {found[1]!r}{meant}"
        raise Misuse(message, self.prog)

    def options(self) -> list[str]:
        """Its options, as --help-all lists them."""
        return [name for action in self._actions for name in action.option_strings]


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
        problem, prog = misuse.args
        problem, hint = problem if problem[-1] in ".?" else f"{problem}.", f"See: python {prog} --help"
        print(f"error: {problem} {hint}", file=sys.stderr)
        if "--json" in argv:
            print(error_document(problem, hint, code=2), flush=True)
        sys.exit(2)


def parsed(argv: Sequence[str], tools: Sequence[Command]) -> argparse.Namespace:
    """Parse a command line. Raises Misuse."""
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
    for name, value in vars(args).items():
        for text in value if isinstance(value, tuple | list) else (value,):
            if isinstance(text, str) and any("\ud800" <= char <= "\udfff" for char in text):  # paths may have them
                error(f"{name.replace('_', '-')}: these bytes are not UTF-8 text: write it in UTF-8")
    own = next((row.rows for row in (*COMMANDS, *tools) if row.name == args.command), (REMOTE, APP))
    defaults = {name: value for row in (COMMON, *own) if isinstance(row, Group) for name, value in row.defaults.items()}
    for name in (*REMOTE.defaults, *APP.defaults):
        if name not in defaults and hasattr(args, name):
            users = "the app, 'ask' and 'chat'" if name in REMOTE.defaults else "the app"
            error(f"--{name.replace('_', '-')} belongs to {users}, not to '{args.command}'")
    return argparse.Namespace(**{"remote": None} | defaults | vars(args))


def build_parser(tools: Sequence[Command] = (), *, everything: bool = False) -> Parser:
    """The whole command line.

    Args:
        tools: further commands.
        everything: --help lists rare options, too.
    """
    parser = Parser(
        prog="launch.py",
        usage="%(prog)s [OPTION...] [COMMAND ...]",
        description="Chat with whole books on your own machine, exactly and fast. No command: the app.",
        allow_abbrev=False,
    )
    here = f"TriForce Reader {VERSION}, Python {platform.python_version()}"
    version = Option("--version", "show which version this is", action="version", version=here)
    add(parser, "" if everything else "app", (version, HELP_ALL, COMMON, REMOTE, APP))
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", prog="launch.py")
    for row in (*COMMANDS, *tools):
        told = f"{row.text[0].upper()}{row.text[1:]}."
        command = commands.add_parser(row.name, allow_abbrev=False, help=row.text, description=told, usage=row.usage)
        common = () if row.is_bare else (HELP_ALL, COMMON) if row.name == "chat" else (HELP_ALL, JSON, COMMON)
        add(command, "" if everything else row.name, (*common, *row.rows))
    parser.commands = dict(commands.choices)
    return parser
