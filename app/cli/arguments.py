"""The command line of launch.py. Standard library only: it is parsed before anything is installed."""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import NoReturn

from app.cli.command_options import APP, COMMANDS, Command
from app.cli.terminal import error_document


class Misuse(Exception):
    """A command line that cannot be parsed: what is wrong, and how its parser is called."""


class Parser(argparse.ArgumentParser):
    """A parser whose caller tells what is wrong."""

    def error(self, message: str) -> NoReturn:
        """Raises Misuse."""
        raise Misuse(message, self.prog)

    def options(self) -> list[str]:
        """Its options, as --help-all lists them."""
        return [name for action in self._actions for name in action.option_strings]


def parse_arguments(argv: Sequence[str], tools: Sequence[Command] = ()) -> argparse.Namespace:
    """Parse a command line (`command` is None for the app).

    Wrong usage exits with 2, before anything is installed; with --json it is told on stdout, too.
    """
    try:
        return parsed(argv, {command.name: command for command in (*COMMANDS, *tools)})
    except Misuse as misuse:
        problem, prog = misuse.args
        problem, hint = problem if problem[-1] in ".?" else f"{problem}.", f"See: python {prog} --help"
        print(f"error: {problem} {hint}", file=sys.stderr)
        if "--json" in argv:
            print(error_document(problem, hint, code=2), flush=True)
        sys.exit(2)


def parsed(argv: Sequence[str], commands: Mapping[str, Command]) -> argparse.Namespace:
    """Parse a command line: a command and its options, or options of the app. Raises Misuse."""
    command = commands.get(argv[0], APP) if argv else APP
    parser = build_parser(command, commands, everything="--help-all" in argv)
    args, rest = parser.parse_known_intermixed_args(argv if command is APP else argv[1:])
    if command.name == "test":
        args.pytest_args = rest
    elif rest and rest[0] in commands and command is APP:  # options of the app have been understood before it
        return parsed([rest[0], *(word for at, word in enumerate(argv) if at != argv.index(rest[0]))], commands)
    elif rest:
        parser.error(not_understood(rest, parser, commands if command is APP else ()))
    for name, value in vars(args).items():
        for text in value if isinstance(value, tuple | list) else (value,):
            if isinstance(text, str) and any("\ud800" <= char <= "\udfff" for char in text):  # paths may have them
                parser.error(f"{name.replace('_', '-')}: these bytes are not UTF-8 text: write it in UTF-8")
    return args


def not_understood(rest: Sequence[str], parser: Parser, commands: Iterable[str]) -> str:
    """What is wrong with the words that a parser has left over."""
    if late := [word for word in rest if word in commands]:
        return f"the command {late[0]!r} stands before its options"
    if rest[0].startswith("-") or not commands:
        return f"unrecognized arguments: {' '.join(rest)}{alike(rest[0], parser.options())}"
    meant = "; files belong behind 'ask' or 'chat'" if "." in rest[0] else alike(rest[0], commands)
    return f"there is no command {rest[0]!r}{meant}"


def alike(word: str, known: Iterable[str]) -> str:
    """A question about the most similar of the known words; "": none is similar."""
    found = get_close_matches(word.partition("=")[0], list(known), 1, 0.7)
    return f"; did you mean {found[0]}?" if found else ""


def build_parser(command: Command, commands: Mapping[str, Command], *, everything: bool = False) -> Parser:
    """The parser of a command, or of the app, whose --help lists all commands.

    Args:
        everything: --help lists rare options, too.
    """
    told = f"{command.text[0].upper()}{command.text[1:]}."
    if command is APP:
        told += "\n\ncommands:\n" + "\n".join(f"  {name:<20}  {row.text}" for name, row in commands.items())
    parser = Parser(
        prog=f"launch.py {command.name}".strip(),
        description=told,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(module=command.module, command=command.name or None)
    parser.set_defaults(remote=None, device="auto", offline=False)  # where a command has no such option
    for add in command.rows:
        add(parser, "" if everything else command.name or "app")
    values = [str(action.metavar) for action in parser._actions if not action.option_strings]
    parser.usage = " ".join(("launch.py", command.name or "[COMMAND]", "[OPTION...]", *values))
    return parser
