"""The options of each command, one a row, and what their values may be. Standard library only, as `arguments.py`."""

import argparse
import platform
import sys
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

from app.document_formats import EACH

RARE = ""
MOST_QUESTION_BYTES = 1 << 20


def question(text: str) -> str:
    """A question, `@FILE` for one in a file, `@-` for one on stdin, `@@...` if it begins so."""
    if text.startswith("@@") or not text.startswith("@"):
        return text.removeprefix("@") if text.startswith("@@") else text
    name = text[1:]
    try:
        with sys.stdin.buffer if name == "-" else Path(name).open("rb") as file:
            raw = file.read(MOST_QUESTION_BYTES + 1)
    except (OSError, ValueError) as error:
        told = getattr(error, "strerror", None) or "no such name"
        raise ArgumentTypeError(f"{name!r} cannot be read ({told}): name a file after @") from None
    if len(raw) > MOST_QUESTION_BYTES:
        raise ArgumentTypeError(f"{name!r} is longer than a question may be, {MOST_QUESTION_BYTES:,} bytes")
    try:
        return raw.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise ArgumentTypeError(f"{name!r} is not UTF-8 text (byte {error.start})") from None


def port_number(text: str) -> int:
    """1 to 65535."""
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise ArgumentTypeError(f"{text!r} is not a port: use a number from 1 to 65535")
    return int(text)


def page_range(text: str) -> tuple[int, int]:
    """`7` or `3-12`, pages counted from 1."""
    first, dash, last = text.partition("-")
    numbers = first, last if dash else first
    if not all(number.isdecimal() for number in numbers) or not 1 <= int(numbers[0]) <= int(numbers[1]):
        raise ArgumentTypeError(f"{text!r} is no range of pages: use for example 7 or 3-12")
    return int(numbers[0]), int(numbers[1])


def name_list(text: str) -> tuple[str, ...]:
    """`a,b`."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ArgumentTypeError(f"{text!r} is not a list: use names with commas between them")
    return names


def acceptances(text: str) -> tuple[float, float]:
    """`0.3,0.92`."""
    try:
        first, second = map(float, text.split(","))
        if 0 <= first < 1 and 0 <= second < 1:
            return first, second
    except ValueError:
        pass
    raise ArgumentTypeError(f"{text!r} is not usable: give both levels between 0 and 1, for example 0.3,0.92")


class Option:
    """An option, or a positional argument.

    Args:
        spelled: its flags and what its value is called, as in `-q --question TEXT`; of a positional argument its name.
        shown: the commands whose --help lists it ("app": the app's); None: all. --help-all lists every one.
        more: arguments of argparse's `add_argument`.
    """

    def __init__(self, spelled: str, told: str = "", shown: str | None = None, **more: Any) -> None:
        words = spelled.split(" ")
        flags = [word for word in words if word.startswith("-")]
        self._names, self.is_positional = flags or words[:1], not flags
        self.value = " ".join(words[len(self._names) :])
        self._told, self._shown, self._more = told, shown, more | ({"metavar": self.value} if self.value else {})

    def add(self, place: argparse._ActionsContainer, command: str) -> None:
        """Add it to a parser or a group of one. `command` "": --help lists it."""
        is_shown = not command or self._shown is None or command in self._shown.split()
        place.add_argument(*self._names, help=self._told if is_shown else argparse.SUPPRESS, **self._more)


def flag(name: str, told: str, shown: str | None = None) -> Option:
    """An option without a value: `--NAME` makes NAME true, `--no-NAME` false."""
    off = name.startswith("--no-")
    more = {"dest": name.removeprefix("--no-")} if off else {}
    return Option(name, told, shown, action="store_false" if off else "store_true", default=off, **more)


class Group:
    """Options under a title."""

    def __init__(self, title: str, *options: Option) -> None:
        self._title, self._options = title, options

    def add(self, place: argparse._ActionsContainer, command: str) -> None:
        """As `Option.add`."""
        group = place.add_argument_group(self._title)
        for option in self._options:
            option.add(group, command)


class OneOf:
    """Options of which a command line has one at most, or exactly one."""

    def __init__(self, *options: Option, required: bool = False) -> None:
        self._options, self._required = options, required

    def add(self, place: argparse._ActionsContainer, command: str) -> None:
        """As `Option.add`."""
        group = place.add_mutually_exclusive_group(required=self._required)
        for option in self._options:
            option.add(group, command)


Rows = tuple[Option | Group | OneOf, ...]


class Command:
    """A command: `run` of the module of `app.cli` with its name, or of another. The app has no name."""

    def __init__(self, name: str, text: str, *rows: Option | Group | OneOf, module: str = "") -> None:
        self.name, self.text, self.rows, self.module = name, text, rows, module or f"app.cli.{name}"
        values = [row.value for row in rows if isinstance(row, Option) and row.is_positional]
        self.usage = " ".join(("launch.py", name or "[COMMAND]", "[OPTION...]", *values))


ATTENTION = ("auto", "torch", "compiled", "flash-attn")
HERE = f"TriForce Reader 0.1, Python {platform.python_version()}"
JSON = Option("--json", "print one JSON document as the last line of stdout", action="store_true")
VENV = flag("--no-venv", "use the current environment", RARE)
COMMON = Group(
    "common options",
    Option("--help-all", "list all options, rare ones too", action="help"),
    Option("--model NAME|PATH", "a known name, a folder or a hub id (default: bundled)"),
    Option("--draft NAME|PATH", "a draft model, or none (default: one with the same tokens)", RARE, default="auto"),
    Option("--bits", "of its weights (default: as computed)", "doctor serve", type=int, choices=(16, 8, 4)),
    Option("--kv-bits", "of keys and values, on a processor (default: what fits)", RARE, type=int, choices=(16, 32)),
    Option(
        "--prefill-bits",
        "of a bfloat16 model's products while it reads, on a processor",
        RARE,
        type=int,
        choices=(16, 32),
    ),
    Option("--self-draft-bits", "of its weights while it guesses (default: chosen)", RARE, type=int, choices=(16, 4)),
    Option("--device", choices=("auto", "cpu", "cuda"), default="auto"),
    Option("--gpus N", "GPUs that share the model (default: 1)", "doctor", type=int),
    Option("--context N", "tokens the model keeps in view (default: what fits)", type=int),
    Option("--gpu-memory GIB", "most to use of each GPU; the rest waits in host memory", "doctor", type=float),
    Option("--seed N", "of all random draws (default: 0)", type=int, default=0),
    flag("--offline", "never ask the network", "app models"),
    flag("--no-layerwise", "read prompts chunk by chunk where keys and values wait in host memory", RARE),
    Option("--attention", "(default: the fastest)", RARE, choices=ATTENTION, default="auto"),
    flag("--no-graphs", "launch CUDA kernels one by one", RARE),
    Option("--cpu-attention-share F", "of what lies in host memory, 0 to 0.9 (default: measured)", RARE, type=float),
    Option("--data-dir DIR", "where settings and prefilled books are kept", "app", type=Path),
    VENV,
)
REMOTE = Group(
    "a model on a server",
    Option("--remote URL", "an OpenAI-compatible server (vLLM, SGLang, `serve`)"),
    Option("--remote-key KEY", "what it wants (default: $TRIFORCE_REMOTE_KEY)", RARE),
)
ALLOW_HOST = Option("--allow-host NAME", "another name of this machine that it answers to", RARE, action="append")
APP = Command(
    "",
    "chat with whole books on your own machine, exactly and fast. No command: the app",
    Option("--version", "show which version this is", action="version", version=HERE),
    COMMON,
    REMOTE,
    Group(
        "options of the app",
        Option("--host", "where to listen (default: 127.0.0.1; else with --auth)", default="127.0.0.1"),
        Option("--port", "(default: 7860)", type=port_number, default=7860),
        flag("--no-browser", "do not open the browser"),
        flag("--share", "make a public link (needs --auth)"),
        Option("--auth USER:PASSWORD", "`ps` shows it; better: $TRIFORCE_AUTH"),
        ALLOW_HOST,
    ),
    module="app.server.serve_page",
)
SERVER = Group(
    "options of the server",
    Option("--host", "where to listen (default: 127.0.0.1; else with --api-key)", default="127.0.0.1"),
    Option("--port", "(default: 8000)", type=port_number, default=8000),
    ALLOW_HOST,
)

ASKED = Option("-q --question TEXT|@FILE", "about the files; @FILE reads a file, @- a pipe", type=question)
PAGES = Option("--pages A-B", "only these, counted from 1 (default: all)", type=page_range)
CHAPTERS = Option("--chapters A-B", "only these, counted from 1 (default: all)", type=page_range)
METHODS = Option("--methods A,B", "to compare (default: the usual ones)", type=name_list)
METHOD = Option("--method", "(default: chosen by the plan, see doctor)")
TOKEN_IDS = flag("--token-ids", "--json: the prompt's tokens, too", RARE)
SAVED = Option("--saved", "keep the read text (default: if it took long)", action=argparse.BooleanOptionalAction)
EFFORTS = ("on", "off", "low", "medium", "high")
THINKING = Option("--thinking", "before the answer (default: as the model is set up)", choices=EFFORTS)
FILES: Rows = (
    Option("files FILE...", f"{EACH}; - is what is piped in", nargs="+", type=Path),
    flag("--ocr", "recognise text on pages that are pictures, keep it"),
)
ANSWERING: Rows = (
    COMMON,
    *FILES,
    OneOf(CHAPTERS, PAGES),
    SAVED,
    Option("--temperature T", "0 is exact greedy (default: 0)", type=float, default=0.0),
    Option("--top-p P", "(default: 1, off)", RARE, type=float, default=1.0),
    Option("--top-k K", "(default: 0, off)", RARE, type=int, default=0),
    Option("--max-new-tokens N", "(default: 256)", type=int, default=256),
    THINKING,
)
QUESTIONS = Option("--questions FILE.json", "many questions, one reading of the text", type=Path)
NO_VENV = Group("common options", VENV)

COMMANDS = (
    Command(
        "ask",
        "one answer, streamed",
        OneOf(ASKED, QUESTIONS, required=True),
        METHOD,
        TOKEN_IDS,
        JSON,
        REMOTE,
        *ANSWERING,
    ),
    Command("chat", "questions and answers about files, in the terminal", METHOD, REMOTE, *ANSWERING),
    Command(
        "race",
        "methods in fair turns: speeds, acceptance, equality",
        OneOf(ASKED, required=True),
        METHODS,
        flag("--sequential", "one method after the other instead of in turns", RARE),
        Option("--report F.html", "keep the proof card of the race, and its figures as F.json beside it", type=Path),
        TOKEN_IDS,
        JSON,
        *ANSWERING,
    ),
    Command(
        "serve",
        "an OpenAI-compatible server for other programs",
        JSON,
        COMMON,
        SERVER,
        Option("--api-key KEY", "what clients must send (default: $TRIFORCE_API_KEY)"),
        Option("--allow-origin URL", "let web pages from there use it (default: none)", RARE, action="append"),
        Option("--queue N", "requests that may wait (default: 16)", RARE, type=int, default=16),
        SAVED,
        THINKING,
    ),
    Command(
        "text",
        "what the model gets of each file",
        JSON,
        COMMON,
        *FILES,
        PAGES,
        Option("--find WORDS", "where these words are, whatever their case"),
        flag("--exact", "with --find: case and accents as they are"),
        flag("--whole-words", "with --find: no parts of words"),
    ),
    Command(
        "saved",
        "books saved on disk, which need not be read again",
        JSON,
        COMMON,
        Option("action list|remove|clear|cap", nargs="?", choices=("list", "remove", "clear", "cap"), default="list"),
        Option("name NAME|GIB", "remove NAME; cap GIB: room for all of them", nargs="?"),
    ),
    Command(
        "doctor",
        "what fits on this machine, or on another, and why",
        JSON,
        COMMON,
        Group(
            "a machine that you do not have yet (default: this one)",
            Option("--assume NxGPU", "cpu, 1x4090, 2x5090, 1xa100-40, 1xh100, ..."),
            Option('--gpu "NAME,24,1008,25"', "GB, GB/s of memory and link [, TFLOPS]; or JSON"),
            Option("--host-memory GIB", "of the machine itself", type=float),
        ),
        Option("--budget N", "tokens in the retrieval cache", RARE, type=int),
        Option("--acceptance A1,A2", "of both levels (default: measured, else published)", RARE, type=acceptances),
    ),
    Command(
        "models",
        "known models: list, show, get, remove",
        JSON,
        COMMON,
        Option("action list|show|get|remove", nargs="?", choices=("list", "show", "get", "remove"), default="list"),
        Option("name NAME", "a name of the list, or a hub id such as Qwen/Qwen3-8B", nargs="?"),
    ),
    Command("repair", "install the torch that suits this machine's GPU", NO_VENV, module="app.cli.environment"),
)
