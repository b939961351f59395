"""Ctrl+C, or a polite signal, ends the program, whatever hangs or overhears it. Each in a process of its own."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.app.fakes import SECONDS

ROOT = Path(__file__).resolve().parents[3]
POLITE = [signal.SIGINT, signal.SIGTERM] + ([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])
pytestmark = pytest.mark.skipif(os.name != "posix", reason="another system's signals cannot be sent from here")
SERVES = """
    import sys, threading, time
    from types import SimpleNamespace
    from app.server import serve_page as main
    from app.runtime.worker import Loading
    from launch import parse_arguments

    page = SimpleNamespace(close=lambda verbose: print("page closed", flush=True))

    def serve(args, worker, *_, **__):
        {serve}
        return page

    loading = threading.Event()

    def load(config):
        loading.set()
        while True:
            time.sleep(60)

    class Ending(main.Ending):
        def wait(self):  # the start is over
            loading.wait()
            print("loads", flush=True)
            super().wait()

    main.serve, main.load, main.Ending = serve, load, Ending
    print("begins", flush=True)
    args = parse_arguments(["--data-dir", sys.argv[1]])
    args.port = 0
    code = main.run(args)
    print("Python ends", code, flush=True)
    sys.exit(code)
"""


def as_a_shell_starts_it() -> None:
    """Whoever runs the tests may ignore signals (`nohup` does), and its children would, too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in POLITE[1:]:
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def program(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True, preexec_fn=as_a_shell_starts_it
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str], *signals: signal.Signals, after: str) -> tuple[int, str, str]:
    """Exit code and output of a program that gets signals as soon as it has said `after`."""
    assert process.stdout is not None
    assert any(line.strip() == after for line in process.stdout), "it ended before"
    for number in signals:
        process.send_signal(number)
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, err


def test_a_signal_ends_the_program_while_its_model_loads(tmp_path: Path) -> None:
    """What a library does on the engine's thread cannot be cancelled, and Python's own end crashes on some of it."""
    with program(SERVES.format(serve="pass"), str(tmp_path)) as process:
        code, out, err = ended(process, signal.SIGTERM, after="loads")
    assert (code, out.split("\n")[-2], err) == (0, "page closed", "Ending.\n")


def test_an_interrupt_that_a_library_swallows_is_not_lost(tmp_path: Path) -> None:
    serve = """
        try:
            print("serves", flush=True); time.sleep(60)
        except BaseException:
            print("swallowed", flush=True)
"""
    with program(SERVES.format(serve=serve), str(tmp_path)) as process:
        code, out, err = ended(process, signal.SIGINT, after="serves")
    assert code == 0 and "swallowed" in out and err == "Ending.\n"


HANGS = """
    import sys, time
    from app.server.ending import Ending

    with Ending({seconds}) as ending:
        try:
            print("runs", flush=True)
            ending.wait()
        except KeyboardInterrupt:
            print("saving", flush=True)
            {saving}
            print("saved", flush=True)
    {after}
    print("left", flush=True)
"""


def test_what_hangs_at_the_end_is_ended_all_the_same() -> None:
    with program(HANGS.format(seconds=0.1, saving="time.sleep(600)", after="")) as process:
        code, _, err = ended(process, signal.SIGTERM, after="runs")
    assert (code, err) == (1, "Something hung for 0 s; ended all the same.\n")


def test_impatience_does_not_cut_short_what_is_being_saved() -> None:
    with program(HANGS.format(seconds=60, saving="sys.stdin.readline()", after="")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "saving\n"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            process.send_signal(number)
        out, err = process.communicate("saved\n", timeout=SECONDS)
    assert (process.returncode, out, err) == (0, "saved\nleft\n", "")


def test_ctrl_c_amid_the_first_imports_leaves_no_traceback() -> None:
    """Python itself is interrupted before a line of ours runs, so the signal is sent from inside."""
    code = """
        import os, runpy, signal, sys

        class Interrupting:
            def find_spec(self, name, *_):
                if name == "argparse":
                    os.kill(os.getpid(), signal.SIGINT)

        sys.argv = ["launch.py", "--help"]
        sys.modules.pop("argparse", None)
        sys.meta_path.insert(0, Interrupting())
        runpy.run_path("launch.py", run_name="__main__")
    """
    with program(code) as process:
        _, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (-signal.SIGINT, "")
