"""What a terminal is sent: text of books, models and servers shows, but gives the terminal no orders.

An escape sequence in an answer could set the window's title, move the cursor over earlier lines, or put words into the
next command. Pipes and files get the text as it is. Standard library only: launch.py imports it.
"""

import json
import sys
from typing import Any, TextIO, cast

# Control characters, those of eight bits too, except line feed and tab.
SHOWN = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def plain(text: str) -> str:
    """The text without orders to a terminal: control characters become replacement characters."""
    return text.translate(SHOWN)


class PlainTerminal:
    """A terminal's stream; control characters in what is written become replacement characters.

    `unfiltered` is the stream itself, for what the program draws.
    """

    def __init__(self, stream: TextIO) -> None:
        self.unfiltered = stream

    def write(self, text: str) -> int:
        """Write, as of a text stream."""
        return self.unfiltered.write(plain(text))

    def writelines(self, lines: "list[str]") -> None:
        """Write several, as of a text stream."""
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


def error_document(problem: str, hint: str, *, code: int) -> str:
    """An error as the JSON line that --json writes to stdout. `code`: the exit code."""
    return json.dumps({"error": {"problem": problem, "hint": hint, "exit_code": code}}, ensure_ascii=False)


def filter_terminals() -> None:
    """From now on, what goes to a terminal through stdout and stderr is filtered. Pipes and files are left alone."""
    sys.stdout, sys.stderr = _filtered(sys.stdout), _filtered(sys.stderr)


def _filtered(stream: TextIO) -> TextIO:
    is_terminal = not isinstance(stream, PlainTerminal) and stream.isatty()
    return cast("TextIO", PlainTerminal(stream)) if is_terminal else stream


def drawing(stream: TextIO) -> TextIO:
    """The stream for lines that move the cursor. Words of others need `plain` there."""
    return stream.unfiltered if isinstance(stream, PlainTerminal) else stream
