"""TriForce Reader starts here: `python launch.py` needs Python 3.11 and, for the first start, a network.

It parses the arguments, sees to an environment that meets requirements.txt (the running one if it does, else
`.venv` beside this file, made and filled on the first start) and hands over to `app`. Before that it imports only the
standard library and what of ours does the same: `app.cli.arguments` with its options, `app.cli.environment`, and the
options of the instruments (`assets.tools.commands`). Python 3.6 can still parse this file, so that an old Python gets a
sentence, no traceback.
"""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl+C amid the imports leaves no traceback

import argparse
import importlib
import io
import os
import sys

if sys.version_info < (3, 11):
    sys.exit(
        "error: TriForce Reader needs Python 3.11 or newer, this is Python {}.{}. "
        "Install a newer Python and run launch.py with it.".format(*sys.version_info[:2])
    )

from collections.abc import Sequence

from app.cli.arguments import parse_arguments
from app.cli.environment import prepare_environment
from app.cli.terminal import error_document, filter_terminals
from assets.tools.commands import TOOLS
from core.errors import CoreError
from core.planning import nvidia

COMPUTING = (None, "ask", "chat", "race", "serve", "bench", "doctor")  # commands that a GPU makes faster
PRIVACY = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}


def main(argv: Sequence[str]) -> int:
    """Run one command line. Returns 0 done, 1 the user's situation, 2 wrong usage, 130 interrupted."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was closed, or there is no console, as with pythonw
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    args = parse_arguments(argv, TOOLS)
    if args.offline:
        os.environ.setdefault("PIP_NO_INDEX", "1")
    try:
        prepare_environment(argv, use_venv=args.venv, device=args.device)
        prepare_process(offline=args.offline)
        tell_unused_gpu(args)
        code: int = importlib.import_module(args.module).run(args)  # the command's or the app's, imported only now
        sys.stdout.flush()
        return code
    except CoreError as error:
        return tell(error, as_json=getattr(args, "json", False))
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.filename is not None:
            told = CoreError(f"{error.filename}: {error.strerror}.", hint="Check who may read and write there.")
            return tell(told, as_json=getattr(args, "json", False))
        # of output: its reader has gone, as in `| head`, or its disk is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"error: {error}. Write to another place.", file=sys.stderr)
        return 1


def tell(error: CoreError, *, as_json: bool) -> int:
    """Print an error. Returns the exit status."""
    code = 2 if error.wrong_usage else 1
    print("error:", " ".join(str(error).split()), file=sys.stderr)
    if as_json and not getattr(error, "has_results", False):
        print(error_document(error.problem, error.hint, code=code), flush=True)
    return code


def prepare_process(*, offline: bool = False) -> None:
    """Set what libraries read when they are imported (privacy), and let output carry the letters of any book."""
    os.environ.update(PRIVACY)
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")
    filter_terminals()


def tell_unused_gpu(args: argparse.Namespace) -> None:
    """One line where torch cannot use an NVIDIA GPU that is here. Asks the driver and installed files, no network."""
    if args.device == "cpu" or args.remote or args.command not in COMPUTING:
        return
    unused = nvidia.unused_gpu()
    if unused is not None:
        print(f"note: {unused.because} {unused.hint}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
