"""TriForce Reader starts here: `python launch.py` needs Python 3.11 and, for the first start, a network.

It parses the arguments, sees to an environment that meets requirements.txt (the running one if it does, else
`.venv` beside this file, made and filled on the first start) and hands over to `app`. Before that it imports
only the standard library and `core.planning.nvidia`, which does the same. Python 3.6 can still parse it, so that an old
Python gets a sentence, no traceback.
"""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl+C amid the imports leaves no traceback

import argparse
import contextlib
import hashlib
import importlib
import io
import os
import subprocess
import sys
from pathlib import Path

if sys.version_info < (3, 11):
    sys.exit(
        "error: TriForce Reader needs Python 3.11 or newer, this is Python {}.{}. "
        "Install a newer Python and run launch.py with it.".format(*sys.version_info[:2])
    )

from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple, NoReturn

if TYPE_CHECKING:
    from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent
REQUIREMENTS, DEV_REQUIREMENTS = ROOT / "requirements.txt", ROOT / "requirements-dev.txt"
MOST_TEST_PROCESSES = 4
LONG_TESTS = "tests.long"
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "triforce-reader.stamp"  # the digest of what was installed, or INSTALLING
INSTALLING = "installing"
# PyTorch's own index has a folder of wheels for each CUDA, the public index one build for each system. The variable
# names another place with the same folders; where it is empty, torch comes from the user's package index.
TORCH_WHEELS, TORCH_WHEELS_VARIABLE = "https://download.pytorch.org/whl", "TRIFORCE_TORCH_INDEX"
COMPUTING = (None, "ask", "race", "serve", "bench", "doctor")  # commands that a GPU makes faster
PRIVACY = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
BOOK_FORMATS = (".txt", ".md", ".pdf", ".epub")  # those of app.book_export, told before it can be imported
FEWEST_TOKENS = 60  # no book has fewer words
SERVE_OPTIONS = {"host": "127.0.0.1", "port": 8000, "allow_host": None}
APP_OPTIONS = {"host": "127.0.0.1", "port": 7860, "browser": True, "share": False, "auth": None, "allow_host": None}


class Situation(Exception):
    """What only the user can change: one problem, one action. CoreError's twin, for before core can be imported."""

    def __init__(self, problem: str, *, hint: str) -> None:
        super().__init__(f"{problem} {hint}")
        self.problem = problem


def main(argv: Sequence[str]) -> int:
    """Run one command line. Returns 0 done, 1 the user's situation, 130 interrupted; exits with 2 on wrong usage."""
    args = parse_arguments(argv)
    try:
        prepare_environment(argv, use_venv=args.venv, device=args.device)
        prepare_process(offline=args.offline)
        tell_unused_gpu(args)
        code = hand_over(args)
        sys.stdout.flush()
        return code
    except Situation as situation:
        print("error:", " ".join(str(situation).split()), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


# -------------------- arguments


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line (`command` is None for the app). Wrong usage exits with 2, before anything is installed."""
    parser = build_parser()
    args, rest = parser.parse_known_args(argv)
    if args.command == "test":
        args.pytest_args = rest
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if args.command == "models" and (args.name is None) != (args.action == "list"):
        parser.error("models list takes no name" if args.name else f"models {args.action} needs the NAME of a model")
    if args.remote and args.command not in (None, "ask"):
        parser.error(f"--remote belongs to the app and to 'ask', not to '{args.command}'")
    for name, default in APP_OPTIONS.items():
        if args.command == "serve" and name in SERVE_OPTIONS:
            vars(args).setdefault(name, SERVE_OPTIONS[name])
        elif args.command is None:
            vars(args).setdefault(name, default)
        elif hasattr(args, name):
            parser.error(f"--{name.replace('_', '-')} belongs to the app, not to '{args.command}'")
    return args


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="launch.py",
        description="Chat with whole books on your own machine, exactly and fast. No command: the app.",
        allow_abbrev=False,
    )
    parser.set_defaults(
        model=None,
        draft="auto",
        bits=None,
        draft_bits=16,
        device="auto",
        gpus=None,
        context=None,
        gpu_memory=None,
        seed=0,
        data_dir=None,
        layerwise=True,
        attention="auto",
        graphs=True,
        host_share=None,
        offline=False,
        venv=True,
        remote=None,
        remote_key=None,
    )
    add_common_options(parser)
    add_remote_options(parser)
    add_app_options(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, text, add_options in (
        ("ask", "one answer, streamed", add_ask_options),
        ("race", "methods in fair turns from one reading of the text: speeds, acceptance, equality", add_race_options),
        ("serve", "an OpenAI-compatible server for other programs", add_serve_options),
        ("bench", "measure methods at several context lengths", add_bench_options),
        ("book", "write a new book that nobody has read, and questions about it", add_book_options),
        ("shelf", "the books that were read and need not be read again", add_shelf_options),
        ("doctor", "what this machine has, or one that you describe, what fits on it, and why", add_doctor_options),
        ("models", "known models: list them, show one, get it from the hub, remove it", add_models_options),
    ):
        command = commands.add_parser(name, help=text, description=text.capitalize() + ".", allow_abbrev=False)
        add_common_options(command)
        command.add_argument("--json", action="store_true", help="print one JSON document as the last line of stdout")
        add_options(command)
    text = "install the build of torch that suits this machine's GPU and its driver"
    add_venv_option(commands.add_parser("repair", help=text, description=text.capitalize() + ".", allow_abbrev=False))
    text = "install the test tools and run the tests; other arguments go to pytest"
    test = commands.add_parser("test", help=text, description=text.capitalize() + ".", allow_abbrev=False)
    add_venv_option(test)
    test.add_argument(
        "--long",
        action="store_true",
        help="instead, the long programs (tests/long.py) one after the other, or the one that is named, with "
        "arguments of its own",
    )
    return parser


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """The options every command takes. Their defaults are the main parser's, wherever the option stands."""
    options = parser.add_argument_group("common options", argument_default=argparse.SUPPRESS)
    options.add_argument(
        "--model",
        metavar="NAME|PATH",
        help="a known model, a local folder or the hub id of a downloaded model (default: the bundled one)",
    )
    options.add_argument(
        "--draft",
        metavar="NAME|PATH",
        help="what guesses for it, or none (default: auto, what has its tokens)",
    )
    options.add_argument(
        "--bits",
        type=int,
        choices=(16, 8, 4),
        help="of its weights; 8 and 4 are quantised (default: as computed)",
    )
    options.add_argument(
        "--draft-bits",
        type=int,
        choices=(16, 4),
        help="of its weights while it guesses from the retrieval cache; answers stay exact for --bits (default: 16)",
    )
    options.add_argument("--device", choices=("auto", "cpu", "cuda"))
    options.add_argument("--gpus", type=int, metavar="N", help="GPUs that share the model (default: 1)")
    options.add_argument("--context", type=int, metavar="N", help="tokens the model keeps in view (default: what fits)")
    options.add_argument(
        "--gpu-memory",
        type=float,
        metavar="GIB",
        help="most to use of the GPU, the rest waits in host memory; doctor: of each GPU of a machine to plan for",
    )
    options.add_argument("--seed", type=int, metavar="N", help="of all random draws (default: 0)")
    options.add_argument("--offline", action="store_true", help="never ask the network")
    options.add_argument(
        "--no-layerwise",
        dest="layerwise",
        action="store_false",
        help="read prompts chunk by chunk where keys and values wait in host memory",
    )
    options.add_argument(
        "--attention",
        choices=("auto", "torch", "compiled", "flash-attn", "flex"),
        help="the code that computes attention (default: the fastest that needs no compiling at every start)",
    )
    options.add_argument("--no-graphs", dest="graphs", action="store_false", help="launch CUDA kernels one by one")
    options.add_argument(
        "--host-share",
        type=float,
        metavar="F",
        help="part of what waits in host memory that the processor attends to there, 0 to 0.9 (default: measured)",
    )
    options.add_argument("--data-dir", metavar="DIR", type=Path, help="where settings and prefilled books are kept")
    add_venv_option(parser)


def add_venv_option(parser: argparse.ArgumentParser) -> None:
    """`--no-venv`, which every command takes, the tests too."""
    parser.add_argument(
        "--no-venv",
        dest="venv",
        action="store_false",
        default=argparse.SUPPRESS,
        help="use the current environment",
    )


def add_app_options(parser: argparse.ArgumentParser) -> None:
    """The options of the app. No defaults here but in APP_OPTIONS, so that one given to a command is noticed."""
    options = parser.add_argument_group("options of the app", argument_default=argparse.SUPPRESS)
    options.add_argument("--host", help="address to listen on (default: 127.0.0.1; others need --auth)")
    options.add_argument("--port", type=port_number, help="(default: 7860)")
    options.add_argument("--no-browser", dest="browser", action="store_false", help="do not open the browser")
    options.add_argument("--share", action="store_true", help="make a public link (needs --auth)")
    options.add_argument(
        "--auth", metavar="USER:PASSWORD", help="ask for them; others see it in `ps`, not so $TRIFORCE_AUTH (default)"
    )
    options.add_argument(
        "--allow-host", metavar="NAME", action="append", help="another name of this machine that it answers to"
    )


def add_remote_options(parser: argparse.ArgumentParser) -> None:
    """`--remote`: the app and `ask` on a server's model."""
    options = parser.add_argument_group("a model on a server", argument_default=argparse.SUPPRESS)
    options.add_argument("--remote", metavar="URL", help="an OpenAI-compatible server (vLLM, SGLang, `serve`)")
    options.add_argument("--remote-key", metavar="KEY", help="what it wants (default: $TRIFORCE_REMOTE_KEY)")


def add_ask_options(parser: argparse.ArgumentParser) -> None:
    """`ask`: one question, or a file of them, about one or more files."""
    add_remote_options(parser)
    add_files(parser)
    questions = parser.add_mutually_exclusive_group(required=True)
    questions.add_argument("-q", "--question", metavar="TEXT", help="what to ask about the files")
    questions.add_argument(
        "--questions", metavar="FILE.json", type=Path, help="many questions, one reading of the text"
    )
    parser.add_argument("--method", help="(default: triforce, or lookup where there is no draft model)")
    add_keeping_option(parser)
    add_sampling_options(parser)


def add_race_options(parser: argparse.ArgumentParser) -> None:
    """`race`: one question, several methods."""
    add_files(parser)
    parser.add_argument("-q", "--question", metavar="TEXT", required=True, help="what to ask about the files")
    parser.add_argument("--methods", type=name_list, metavar="A,B", help="(default: autoregressive,triforce)")
    parser.add_argument("--sequential", action="store_true", help="one method after the other instead of in turns")
    parser.add_argument("--report", type=Path, metavar="F.html", help="keep the race as one page, and F.json beside it")
    add_keeping_option(parser)
    add_sampling_options(parser)


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """`serve`: where it listens and who may use it."""
    options = parser.add_argument_group("options of the server", argument_default=argparse.SUPPRESS)
    options.add_argument("--host", help="address to listen on (default: 127.0.0.1; others need --api-key)")
    options.add_argument("--port", type=port_number, help="(default: 8000)")
    options.add_argument(
        "--allow-host", metavar="NAME", action="append", help="another name of this machine that it answers to"
    )
    parser.add_argument(
        "--api-key", metavar="KEY", help="what clients must send (default: $TRIFORCE_API_KEY, else none)"
    )
    parser.add_argument(
        "--allow-origin", metavar="URL", action="append", help="let web pages from there use it (default: none)"
    )
    parser.add_argument("--queue", type=int, default=16, metavar="N", help="requests that may wait (default: 16)")


def add_bench_options(parser: argparse.ArgumentParser) -> None:
    """`bench`: which measurement, at which lengths, and where the results go."""
    parser.add_argument("--contexts", type=int_list, metavar="N,N", help="prompt lengths in tokens")
    parser.add_argument("--methods", type=name_list, metavar="A,B")
    parser.add_argument(
        "--suite",
        choices=("speed", "recall", "offload", "ablation", "peers", "page"),
        default="speed",
        help="page: decoding through the page beside the engine alone (default: speed)",
    )
    parser.add_argument("--books", type=int, default=3, metavar="N", help="read N books at each length (default: 3)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="medians of N runs a book (default: 3)")
    parser.add_argument("--max-new-tokens", type=int, default=None, metavar="N", help="tokens decoded in each run")
    parser.add_argument("--questions", type=int, default=100, metavar="N", help="of each skill, for --suite recall")
    parser.add_argument(
        "--skills",
        type=name_list,
        metavar="A,B",
        help="for --suite recall: some of fact,absent,list,quote,recite,quote_any",
    )
    parser.add_argument("--budget", type=int, metavar="N", help="tokens in the retrieval cache (default: 1024)")
    parser.add_argument(
        "--placements", type=name_list, metavar="A,B", help="for --suite offload: some of resident,split,offloaded"
    )
    parser.add_argument("--plot", type=Path, metavar="F.png", help="draw the results (.png, .svg, .pdf)")
    parser.add_argument("--out", type=Path, metavar="F.json", help="keep the results in a file")


def add_keeping_option(parser: argparse.ArgumentParser) -> None:
    """`--shelf`, `--no-shelf`; None without either."""
    parser.add_argument(
        "--shelf",
        action=argparse.BooleanOptionalAction,
        help="keep the read text on disk for the next time (default: if reading took long); --no-shelf reads it anew",
    )


def add_shelf_options(parser: argparse.ArgumentParser) -> None:
    """`shelf`: what to do, and with which book."""
    parser.add_argument("action", nargs="?", choices=("list", "remove", "clear", "cap"), default="list")
    parser.add_argument("name", nargs="?", metavar="NAME|GIB", help="remove NAME; cap GIB: room for all of them")


def add_book_options(parser: argparse.ArgumentParser) -> None:
    """`book`: how long, and where to. The common --seed chooses the book."""
    endings = ", ".join(ending[1:] for ending in BOOK_FORMATS)
    parser.add_argument("--tokens", type=book_length, metavar="T", required=True, help="length, in the model's tokens")
    parser.add_argument(
        "-o",
        "--output",
        type=book_file,
        metavar="FILE",
        required=True,
        help=f"the new book ({endings}); its questions go to FILE.questions.json, without the book's ending",
    )
    parser.add_argument("--force", action="store_true", help="replace files that exist")


def add_doctor_options(parser: argparse.ArgumentParser) -> None:
    """`doctor`: another machine than this one, another precision. core checks what the numbers can be."""
    machine = parser.add_argument_group("a machine that you do not have yet (default: this one)")
    machine.add_argument("--assume", metavar="NxGPU", help="cpu, 1x4090, 2x4090, 1xa100, ...")
    machine.add_argument("--host-memory", type=float, metavar="GIB", help="of the machine itself")
    parser.add_argument("--budget", type=int, metavar="N", help="tokens in the retrieval cache")
    parser.add_argument(
        "--acceptance", type=float_list, metavar="A1,A2", help="of both levels (default: measured, else published)"
    )


def add_models_options(parser: argparse.ArgumentParser) -> None:
    """`models`: what to do, with which one."""
    parser.add_argument("action", nargs="?", choices=("list", "show", "get", "pull", "remove"), default="list")
    parser.add_argument("name", nargs="?", metavar="NAME", help="a name of the list, or a hub id such as Qwen/Qwen3-8B")


def add_files(parser: argparse.ArgumentParser) -> None:
    """The documents a command reads."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="PDF, EPUB, text or Markdown")


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """How an answer is drawn. core's SamplingParams checks the ranges, so that a wrong value exits with 1."""
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is exact greedy (default: 0)")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="(default: 1, off)")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="(default: 0, off)")
    parser.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help="(default: 256)")


def port_number(text: str) -> int:
    """An argparse type: 1 to 65535."""
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: use a number from 1 to 65535")
    return int(text)


def book_length(text: str) -> int:
    """An argparse type: a number of tokens that some book may have."""
    if not text.isdecimal() or int(text) < FEWEST_TOKENS:
        raise argparse.ArgumentTypeError(f"{text!r} is no length for a book: use a number from {FEWEST_TOKENS} up")
    return int(text)


def book_file(text: str) -> Path:
    """An argparse type: a file name whose ending names a format."""
    if Path(text).suffix.lower() not in BOOK_FORMATS:
        raise argparse.ArgumentTypeError(f"{text!r} does not end in one of {', '.join(BOOK_FORMATS)}")
    return Path(text)


def name_list(text: str) -> tuple[str, ...]:
    """An argparse type: `a,b`."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list: use names with commas between them")
    return names


def int_list(text: str) -> tuple[int, ...]:
    """An argparse type: `4096,32768`."""
    names = name_list(text)
    if not all(name.isdecimal() and int(name) > 0 for name in names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers: use for example 4096,32768")
    return tuple(map(int, names))


def float_list(text: str) -> tuple[float, ...]:
    """An argparse type: `0.3,0.92`."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers: use for example 0.3,0.92") from None


# -------------------- environment


def prepare_environment(argv: Sequence[str], *, use_venv: bool, device: str = "auto") -> None:
    """Return in an environment that meets requirements.txt, or start again inside `.venv`, made ready first.

    Args:
        device: "cpu" where no GPU is to be used, so that none is looked for.
    Raises:
        Situation: nothing suitable is there and it cannot be made; the text says what to do.
    """
    inside = VENV.exists() and VENV.samefile(sys.prefix)
    if inside and venv_ready():
        return
    if inside and stamp() == INSTALLING:
        raise Situation("This .venv is half installed.", hint="Deactivate it and start again: that repairs it.")
    missing = unmet_requirement(REQUIREMENTS)
    if missing is None:
        return
    if not use_venv:
        raise Situation(
            f"This environment lacks {missing}.",
            hint="Install requirements.txt into it, or start without --no-venv.",
        )
    if not venv_ready():
        set_up_venv(device)
    if not inside:
        restart_in_venv(argv)


def unmet_requirement(file: Path) -> str | None:
    """The first requirement of a file that the running environment does not meet, or None. Imports none of them."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return "packaging"  # comes with the requirements: where it is missing, they are
    lines = (line.partition("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    return next((line for line in lines if line and not is_met(Requirement(line))), None)


def is_met(requirement: "Requirement") -> bool:
    """Whether the running environment has a distribution that fits, together with what its extras ask for."""
    if requirement.marker and not requirement.marker.evaluate():
        return True
    try:
        found = metadata.distribution(requirement.name)
    except metadata.PackageNotFoundError:
        return False
    if not found.version or not requirement.specifier.contains(found.version, prereleases=True):
        return False
    return all(is_met(added) for added in added_by_extras(found, requirement.extras))


def added_by_extras(found: metadata.Distribution, extras: set[str]) -> "Iterator[Requirement]":
    """What a distribution requires only because of the chosen extras."""
    from packaging.requirements import Requirement

    for line in found.requires or ():
        requirement = Requirement(line)
        marker, requirement.marker = requirement.marker, None
        if marker and not marker.evaluate() and any(marker.evaluate({"extra": extra}) for extra in extras):
            yield requirement


def digest() -> str:
    """What `.venv` must have been filled from to be ready."""
    return hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()


def stamp() -> str | None:
    """What `.venv` was filled from: a digest, INSTALLING after an interruption, None if unknown."""
    return STAMP.read_text(encoding="utf-8") if STAMP.is_file() else None


def venv_ready() -> bool:
    """Whether `.venv` was filled from today's requirements and its Python is still there."""
    return stamp() == digest() and VENV_PYTHON.exists()


def set_up_venv(device: str) -> None:
    """Bring `.venv` up to requirements.txt, one process at a time."""
    try:
        with one_at_a_time():
            if not venv_ready():  # another start may have done it while this one waited
                print("Setting up TriForce Reader in .venv. This happens once.", file=sys.stderr)
                fill_venv(device)
    except OSError as error:
        raise Situation(
            f"The environment in {VENV} cannot be made: {error}.",
            hint="Make room and see that you may write there, then start again.",
        ) from error


def fill_venv(device: str) -> None:
    """Make, repair, fill or refresh `.venv`, whatever state it is in."""
    if stamp() == INSTALLING or not venv_works():
        make_venv()
    STAMP.write_text(INSTALLING, encoding="utf-8")
    try:
        install_torch(VENV_PYTHON, device)
        pip_install(VENV_PYTHON, "-r", REQUIREMENTS)
    except Situation:
        STAMP.unlink()  # pip gave up by itself, and tidily
        raise
    STAMP.write_text(digest(), encoding="utf-8")


def venv_works() -> bool:
    """Whether `.venv` has a Python that is new enough and a pip that runs."""
    new_enough, with_pip = ["-c", "import sys; sys.exit(sys.version_info < (3, 11))"], ["-m", "pip", "--version"]
    try:
        return not any(
            subprocess.run([str(VENV_PYTHON), *probe], capture_output=True).returncode
            for probe in (new_enough, with_pip)
        )
    except OSError:
        return False


def make_venv() -> None:
    """Make `.venv` from nothing, or from whatever is left of an earlier one."""
    command: list[str | Path] = [sys.executable, "-m", "venv", "--clear", VENV]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if "ensurepip" in done.stdout + done.stderr:
        raise Situation(
            "This Python comes without ensurepip and cannot fill a new environment.",
            hint="Install it (Debian and Ubuntu: apt install python3-venv) and start again.",
        )
    if done.returncode:
        reason = last_line(done.stderr or done.stdout)
        raise Situation(f"The environment in {VENV} cannot be made: {reason}", hint="Remove .venv and start again.")


def pip_install(python: Path, *what: "str | Path") -> None:
    """Install something; pip's progress goes to stderr, its complaints become one sentence."""
    options = ["--no-input", "--disable-pip-version-check", *map(str, what)]
    command = [str(python), "-m", "pip", "install", *options]
    done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, errors="replace")
    if done.returncode:
        raise explain_pip(done.stderr)


def explain_pip(complaints: str) -> Situation:
    """The user's situation behind what pip printed on stderr."""
    if any(sign in complaints for sign in ("connection broken", "Network is unreachable", "ProxyError")):
        return Situation(
            "The package index cannot be reached, and what is missing comes from there.",
            hint="Connect to the network and start again.",
        )
    if "No space left on device" in complaints:
        return Situation("The disk is full.", hint="Free 3 GB (10 GB for a GPU) and start again.")
    errors = [line for line in complaints.splitlines() if line.startswith("ERROR:")]
    reason = errors[-1].removeprefix("ERROR:").strip() if errors else last_line(complaints)
    other_python = f"Try another Python from 3.11 up (this is {sys.version_info[0]}.{sys.version_info[1]})."
    by_hand = "Install requirements.txt by hand and start with --no-venv."
    return Situation(
        f"pip could not install the requirements: {reason.rstrip('.')}.",
        hint=other_python if "No matching distribution" in reason else by_hand,
    )


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no reason given")


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let one start at a time work on `.venv`; a second one waits here and then finds it ready."""
    with open(VENV.with_name(".venv.lock"), "w", encoding="utf-8") as file:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file gives the lock back, also when this process is killed


def restart_in_venv(argv: Sequence[str]) -> NoReturn:
    """Run the same command line with the Python of `.venv`, in place of this process."""
    command = [str(VENV_PYTHON), str(ROOT / "launch.py"), *argv]
    if os.name == "nt":  # execv there returns to the shell at once and splits arguments at spaces
        sys.exit(subprocess.call(command))
    os.execv(command[0], command)


# -------------------- torch for this machine's GPU


class TorchWish(NamedTuple):
    """Which build of torch to install, and why."""

    build: str | None  # a folder of the wheel index, "cpu" among them; None: what the user's own index has
    because: str
    hint: str = ""  # what the user can do for a better one


def choose_torch(device: str) -> TorchWish:
    """The build for this machine's GPUs, as their driver tells of them."""
    from core.planning import nvidia

    if device == "cpu":
        return TorchWish(None, "from your package index, as --device cpu was given")
    if not torch_wheels():
        return TorchWish(None, f"from your package index, as {TORCH_WHEELS_VARIABLE} is empty")
    answer = nvidia.ask_driver()
    if answer.failure:
        because = f"the CPU build for now, as nvidia-smi is there and {answer.failure}"
        return TorchWish("cpu", because, f"When the GPU works, run: {nvidia.REPAIR}")
    if not answer.gpus:
        return TorchWish(None, "from your package index, as no NVIDIA GPU was found")
    found, suited = f"as {answer.gpus[0].name} was found", nvidia.choose_build(answer.gpus)
    if suited.build is None:
        return TorchWish("cpu", f"the CPU build for now, {found}, but {suited.because}", suited.hint)
    cuda = nvidia.dotted(suited.build.cuda)
    return TorchWish(suited.build.name, f"the build for CUDA {cuda}, {found} and {suited.because}")


def install_torch(python: Path, device: str) -> None:
    """Install the build of torch that suits this machine, and say which and why in one line.

    What torch requires comes with the requirements from the user's package index, and so does torch itself where any
    build does.

    Raises:
        Situation: pip could not install it.
    """
    version = torch_version()
    if version is None:
        return
    wish = choose_torch(device)
    print(f"torch: {wish.because}. {wish.hint}".strip(), file=sys.stderr)
    if wish.build is not None:
        install_build(python, version, wish.build)


def install_build(python: Path, version: str, build: str) -> None:
    """Install one build of torch from its wheels, and nothing that it requires.

    Raises:
        Situation: pip could not install it.
    """
    place = torch_wheels().rstrip("/")
    try:
        pip_install(python, "--no-deps", "--index-url", f"{place}/{build}", f"torch=={version}+{build}")
    except Situation as situation:
        raise Situation(
            f"torch {version}+{build} was not to be had from {place}. {situation.problem}",
            hint=f"Name a mirror of it in {TORCH_WHEELS_VARIABLE}, or start with --device cpu.",
        ) from situation


def torch_version() -> str | None:
    """The version of torch that requirements.txt pins."""
    lines = (line.partition("#")[0].strip() for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines())
    return next((line.partition("==")[2] for line in lines if line.startswith("torch==")), None)


def torch_wheels() -> str:
    """Where builds of torch come from; empty: the user's package index."""
    return os.environ.get(TORCH_WHEELS_VARIABLE, TORCH_WHEELS)


def tell_unused_gpu(args: argparse.Namespace) -> None:
    """One line where torch cannot use an NVIDIA GPU that is here. Asks the driver and installed files, no network."""
    if args.device == "cpu" or args.remote or args.command not in COMPUTING:
        return
    from core.planning import nvidia

    unused = nvidia.unused_gpu()
    if unused is not None:
        print(f"note: {unused.because} {unused.hint}", file=sys.stderr, flush=True)


def repair() -> int:
    """Bring this environment to the build of torch that suits this machine's GPU. Returns 0.

    Raises:
        Situation: no build does as things are, or pip could not install it.
    """
    from core.planning import nvidia

    version, installed, answer = torch_version(), nvidia.installed_torch(), nvidia.ask_driver()
    if version is None or installed is None:
        raise Situation("torch is not pinned or not installed.", hint="Restore requirements.txt and try again.")
    unused = nvidia.compare(answer, installed)
    if unused is None:
        found = f"torch {installed.version} suits {answer.gpus[0].name}" if answer.gpus else "no NVIDIA GPU was found"
        print(f"There is nothing to repair: {found}.", file=sys.stderr)
        return 0
    suited = nvidia.choose_build(answer.gpus) if answer.gpus else None
    if suited is None or suited.build is None:
        raise Situation(unused.because, hint=unused.hint)
    if not torch_wheels():
        raise Situation(f"{TORCH_WHEELS_VARIABLE} is empty.", hint="Unset it and try again.")
    print(f"{unused.because} Installing torch {version}+{suited.build.name} in {sys.prefix}.", file=sys.stderr)
    with one_at_a_time():
        replace_build(version, suited.build.name)
    print("The GPU can be used now. Start with: python launch.py", file=sys.stderr)
    return 0


def replace_build(version: str, build: str) -> None:
    """Put another build of torch, and what it requires, into the running environment.

    Raises:
        Situation: pip could not do it; `.venv` is then as it was, or the next start completes it.
    """
    python, before = Path(sys.executable), stamp() if VENV.exists() and VENV.samefile(sys.prefix) else None
    if before is None:
        install_build(python, version, build)
        pip_install(python, "-r", REQUIREMENTS)
        return
    STAMP.write_text(INSTALLING, encoding="utf-8")
    try:
        install_build(python, version, build)
    except Situation:
        STAMP.write_text(before, encoding="utf-8")
        raise
    try:
        pip_install(python, "-r", REQUIREMENTS)
    except Situation:
        STAMP.unlink()
        raise
    STAMP.write_text(before, encoding="utf-8")


# -------------------- handing over


def prepare_process(*, offline: bool = False) -> None:
    """Set what libraries read when they are imported (privacy), and let output carry the letters of any book."""
    os.environ.update(PRIVACY)
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")


def hand_over(args: argparse.Namespace) -> int:
    """Run the command (`app.cli.<name>.run`) or the app (`app.server.serve_page.run`), imported only now."""
    if args.command == "test":
        return run_tests(args.pytest_args, long=args.long)
    if args.command == "repair":
        return repair()
    from core.errors import CoreError

    command = {"shelf": "saved"}.get(args.command, args.command)
    module = importlib.import_module(f"app.cli.{command}" if command else "app.server.serve_page")
    try:
        code: int = module.run(args)
    except CoreError as error:
        raise Situation(error.problem, hint=error.hint) from error
    return code


def run_tests(pytest_args: Sequence[str], *, long: bool = False) -> int:
    """Install missing test tools and run pytest in the project's folder; the whole suite in several processes.

    With `long`, the arguments are those of tests/long.py.
    """
    if unmet_requirement(DEV_REQUIREMENTS):
        pip_install(Path(sys.executable), "-r", DEV_REQUIREMENTS)
    if long:
        return subprocess.call([sys.executable, "-m", LONG_TESTS, *pytest_args], cwd=ROOT)
    chosen = pytest_args or ["-n", str(min(MOST_TEST_PROCESSES, os.cpu_count() or 1)), "--dist", "loadfile"]
    return subprocess.call([sys.executable, "-m", "pytest", *chosen], cwd=ROOT)


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
