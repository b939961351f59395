"""The options of each command, one a row, and what their values may be. Standard library only, as `arguments.py`."""

import argparse
import platform
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from contextlib import nullcontext
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
        with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as file:
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


def file_name(text: str) -> Path:
    """A file or folder. No name at all, as of a variable that is not set, would be the folder of the shell."""
    if not text:
        raise ArgumentTypeError("a name is empty: name a file or folder")
    return Path(text)


def port_number(text: str) -> int:
    """1 to 65535."""
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise ArgumentTypeError(f"{text!r} is not a port: use a number from 1 to 65535")
    return int(text)


def num_waiting(text: str) -> int:
    """0 or more."""
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is no number of requests: use 0 or more")
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


Row = Callable[[argparse._ActionsContainer, str], None]  # adds options to a parser; of a command "" all are in --help


def option(spelled: str, told: str = "", shown: str | None = None, **more: Any) -> Row:
    """An option, or a positional argument.

    Args:
        spelled: its flags and what its value is called, as in `-q --question TEXT`; of a positional argument its name.
        shown: the commands whose --help lists it ("app": the app's); None: all. --help-all lists every one.
        more: arguments of argparse's `add_argument`.
    """
    words = spelled.split(" ")
    names = [word for word in words if word.startswith("-")] or words[:1]
    if value := " ".join(words[len(names) :]):
        more["metavar"] = value

    def add(place: argparse._ActionsContainer, command: str) -> None:
        is_shown = not command or shown is None or command in shown.split()
        place.add_argument(*names, help=told if is_shown else argparse.SUPPRESS, **more)

    return add


def flag(name: str, told: str, shown: str | None = None) -> Row:
    """An option without a value: `--NAME` makes NAME true, `--no-NAME` false."""
    off = name.startswith("--no-")
    more = {"dest": name.removeprefix("--no-")} if off else {}
    return option(name, told, shown, action="store_false" if off else "store_true", default=off, **more)


def group(title: str, *rows: Row) -> Row:
    """Options under a title."""

    def add(place: argparse._ActionsContainer, command: str) -> None:
        titled = place.add_argument_group(title)
        for row in rows:
            row(titled, command)

    return add


def one_of(*rows: Row, required: bool = False) -> Row:
    """Options of which a command line has one at most, or exactly one."""

    def add(place: argparse._ActionsContainer, command: str) -> None:
        alone = place.add_mutually_exclusive_group(required=required)
        for row in rows:
            row(alone, command)

    return add


class Command:
    """A command: `run` of the module of `app.cli` with its name, or of another. The app has no name."""

    def __init__(self, name: str, text: str, *rows: Row, module: str = "") -> None:
        self.name, self.text, self.rows, self.module = name, text, rows, module or f"app.cli.{name}"


ATTENTION = ("auto", "torch", "compiled", "flash-attn")
HERE = f"TriForce Reader 0.1, Python {platform.python_version()}"
JSON = option("--json", "print one JSON document as the last line of stdout", action="store_true")
VENV = flag("--no-venv", "use the current environment", RARE)
HELP_ALL = option("--help-all", "list all options, rare ones too", action="help")
OFFLINE = flag("--offline", "never ask the network", "app models")
DATA_DIR = option("--data-dir DIR", "where settings and prefilled books are kept", "app models saved", type=file_name)
FOLDERS = group("common options", HELP_ALL, OFFLINE, DATA_DIR, VENV)
COMMON = group(
    "common options",
    HELP_ALL,
    option("--model NAME|PATH", "a known name, a folder or a hub id (default: bundled)"),
    option("--draft NAME|PATH", "a draft model, or none (default: one with the same tokens)", RARE, default="auto"),
    option("--bits", "of its weights (default: as computed)", "doctor serve", type=int, choices=(16, 8, 4)),
    option("--kv-bits", "of keys and values, on a processor (default: what fits)", RARE, type=int, choices=(16, 32)),
    option(
        "--prefill-bits",
        "of a bfloat16 model's products while it reads, on a processor",
        RARE,
        type=int,
        choices=(16, 32),
    ),
    option("--self-draft-bits", "of its weights while it guesses (default: chosen)", RARE, type=int, choices=(16, 4)),
    option("--device", choices=("auto", "cpu", "cuda"), default="auto"),
    option("--gpus N", "GPUs that share the model (default: 1)", "doctor", type=int),
    option("--context N", "tokens the model keeps in view (default: what fits)", type=int),
    option("--gpu-memory GIB", "most to use of each GPU; the rest waits in host memory", "doctor", type=float),
    option("--seed N", "of all random draws (default: 0)", type=int, default=0),
    OFFLINE,
    flag("--no-layerwise", "read prompts chunk by chunk where keys and values wait in host memory", RARE),
    option("--attention", "(default: the fastest)", RARE, choices=ATTENTION, default="auto"),
    flag("--no-graphs", "launch CUDA kernels one by one", RARE),
    option("--cpu-attention-share F", "of what lies in host memory, 0 to 0.9 (default: measured)", RARE, type=float),
    DATA_DIR,
    VENV,
)
REMOTE = group(
    "a model on a server",
    option("--remote URL", "an OpenAI-compatible server (vLLM, SGLang, `serve`)"),
    option("--remote-key KEY", "what it wants (default: $TRIFORCE_REMOTE_KEY)", RARE),
)
ALLOW_HOST = option("--allow-host NAME", "another name of this machine that it answers to", RARE, action="append")
APP = Command(
    "",
    "chat with whole books on your own machine, exactly and fast. No command: the app",
    option("--version", "show which version this is", action="version", version=HERE),
    COMMON,
    REMOTE,
    group(
        "options of the app",
        option("--host", "where to listen (default: 127.0.0.1; else with --auth)", default="127.0.0.1"),
        option("--port", "(default: 7860)", type=port_number, default=7860),
        flag("--no-browser", "do not open the browser"),
        flag("--share", "make a public link (needs --auth)"),
        option("--auth USER:PASSWORD", "`ps` shows it; better: $TRIFORCE_AUTH"),
        ALLOW_HOST,
    ),
    module="app.server.serve_page",
)
SERVER = group(
    "options of the server",
    option("--host", "where to listen (default: 127.0.0.1; else with --api-key)", default="127.0.0.1"),
    option("--port", "(default: 8000)", type=port_number, default=8000),
    ALLOW_HOST,
)

ASKED = option("-q --question TEXT|@FILE", "about the files; @FILE reads a file, @- a pipe", type=question)
PAGES = option("--pages A-B", "only these, counted from 1 (default: all)", type=page_range)
CHAPTERS = option("--chapters A-B", "only these, counted from 1 (default: all)", type=page_range)
METHODS = option("--methods A,B", "to compare (default: the usual ones)", type=name_list)
METHOD = option("--method", "(default: chosen by the plan, see doctor)")
TOKEN_IDS = flag("--token-ids", "--json: the prompt's tokens, too", RARE)
SAVED = option("--saved", "keep the read text (default: if it took long)", action=argparse.BooleanOptionalAction)
EFFORTS = ("on", "off", "low", "medium", "high")
THINKING = option("--thinking", "before the answer (default: as the model is set up)", choices=EFFORTS)
FILES: tuple[Row, ...] = (
    option("files FILE...", f"{EACH}; - is what is piped in", nargs="+", type=file_name),
    flag("--ocr", "recognise text on pages that are pictures, keep it"),
)
ANSWERING: tuple[Row, ...] = (
    COMMON,
    *FILES,
    one_of(CHAPTERS, PAGES),
    SAVED,
    option("--temperature T", "0 is exact greedy (default: 0)", type=float, default=0.0),
    option("--top-p P", "(default: 1, off)", RARE, type=float, default=1.0),
    option("--top-k K", "(default: 0, off)", RARE, type=int, default=0),
    option("--max-new-tokens N", "(default: 256)", type=int, default=256),
    THINKING,
)
QUESTIONS = option("--questions FILE.json", "many questions, one reading of the text", type=file_name)
NO_VENV = group("common options", VENV)

COMMANDS = (
    Command(
        "ask",
        "one answer, streamed",
        one_of(ASKED, QUESTIONS, required=True),
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
        one_of(ASKED, required=True),
        METHODS,
        option(
            "--report F.html", "keep the proof card of the race, and its figures as F.json beside it", type=file_name
        ),
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
        option("--api-key KEY", "what clients must send (default: $TRIFORCE_API_KEY)"),
        option("--allow-origin URL", "let web pages from there use it (default: none)", RARE, action="append"),
        option("--queue N", "requests that may wait (default: 16)", RARE, type=num_waiting, default=16),
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
        option("--find WORDS", "where these words are, whatever their case"),
        flag("--exact", "with --find: case and accents as they are"),
        flag("--whole-words", "with --find: no parts of words"),
    ),
    Command(
        "saved",
        "books saved on disk, which need not be read again",
        JSON,
        FOLDERS,
        option("action list|remove|clear|cap", nargs="?", choices=("list", "remove", "clear", "cap"), default="list"),
        option("name NAME|GIB", "remove NAME; cap GIB: room for all of them", nargs="?"),
    ),
    Command(
        "doctor",
        "what fits on this machine, or on another, and why",
        JSON,
        COMMON,
        group(
            "a machine that you do not have yet (default: this one)",
            option("--assume NxGPU", "cpu, 1x4090, 2x5090, 1xa100-40, 1xh100, ..."),
            option('--gpu "NAME,24,1008,25"', "GB, GB/s of memory and link [, TFLOPS]"),
            option("--host-memory GIB", "of the machine itself", type=float),
        ),
        option("--budget N", "tokens in the retrieval cache", RARE, type=int),
        option("--acceptance A1,A2", "of both levels (default: measured, else published)", RARE, type=acceptances),
    ),
    Command(
        "models",
        "known models: list, show, get, remove",
        JSON,
        FOLDERS,
        option("action list|show|get|remove", nargs="?", choices=("list", "show", "get", "remove"), default="list"),
        option("name NAME", "a name of the list, or a hub id such as Qwen/Qwen3-8B", nargs="?"),
    ),
    Command("repair", "install the torch that suits this machine's GPU", NO_VENV, module="app.cli.environment"),
)
