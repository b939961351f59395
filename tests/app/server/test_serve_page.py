"""The app's start: what it refuses, and what it says then. Its end: by Ctrl+C or a polite signal, whatever hangs."""

import argparse
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.runtime.worker import EngineWorker
from app.server import serve_page
from core.errors import InvalidSetting, NotPossibleHere, UnknownModel
from tests.app.fakes import SECONDS
from tests.app.server.asgi import client


@pytest.mark.parametrize("changed", [{"host": "0.0.0.0"}, {"host": "192.168.0.7"}, {"host": "::"}, {"share": True}])
def test_other_machines_need_a_password_that_is_not_short(
    changed: dict[str, object], arguments: argparse.Namespace
) -> None:
    vars(arguments).update(changed)
    with pytest.raises(InvalidSetting, match="--auth"):
        serve_page.run(arguments)
    arguments.auth = "reader:7letter"
    with pytest.raises(InvalidSetting, match="8 characters or more") as caught:
        serve_page.run(arguments)
    assert "7letter" not in str(caught.value)
    serve_page.check_exposure("0.0.0.0", share=True, auth=serve_page.credentials("reader:secret:with colon"))
    for host in ("127.0.0.1", "::1", "localhost", "127.0.0.2"):
        for auth in (None, ("reader", "7letter")):
            serve_page.check_exposure(host, share=False, auth=auth)


def test_the_password_may_stand_in_the_environment(
    arguments: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments.model, arguments.share = "no-such-model", True
    monkeypatch.setenv("TRIFORCE_AUTH", "reader:long enough")
    with pytest.raises(UnknownModel):  # what comes next
        serve_page.run(arguments)
    assert "TRIFORCE_AUTH" not in os.environ, "no parser of a document inherits it"
    with pytest.raises(InvalidSetting, match="--auth"):
        serve_page.run(arguments)
    assert serve_page.credentials("reader:secret:with colon") == ("reader", "secret:with colon")
    for auth in ("reader", "reader:", ":secret", ""):
        with pytest.raises(InvalidSetting, match="NAME:PASSWORD"):
            serve_page.credentials(auth)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
def test_an_address_that_cannot_be_listened_at_is_one_line_with_an_action(
    host: str, arguments: argparse.Namespace
) -> None:
    arguments.host = host
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", arguments.port))
        taken.listen()
        with pytest.raises(NotPossibleHere) as caught:
            serve_page.run(arguments)
    assert str(arguments.port) in caught.value.problem and f"--port {arguments.port + 1}" in caught.value.hint
    with pytest.raises(InvalidSetting, match="not an address of this machine"):
        serve_page.check_port("203.0.113.7", 7860)


def test_an_address_of_the_sixth_version_is_served(
    serve: Callable[[EngineWorker], str], worker: EngineWorker, arguments: argparse.Namespace
) -> None:
    arguments.host = "::1"
    try:
        serve_page.check_port(arguments.host, arguments.port)
    except NotPossibleHere:
        pytest.skip("this machine has no such address")
    serve(worker)
    with client() as browser:
        assert browser.get(f"http://[::1]:{arguments.port}/config").status_code == 200


def test_a_start_deletes_what_a_killed_program_had_unpacked(
    arguments: argparse.Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[bool] = []

    def ended(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(serve_page, "sweep_unpacked", lambda: swept.append(True))
    monkeypatch.setattr(serve_page, "serve", ended)
    arguments.data_dir, arguments.port = tmp_path, 0
    assert serve_page.run(arguments) == serve_page.INTERRUPTED and swept == [True]


def test_uploads_lie_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "intranet")
    for name in ("GRADIO_TEMP_DIR", "GRADIO_ANALYTICS_ENABLED", "no_proxy"):
        monkeypatch.setenv(name, "")
    serve_page.prepare_process(serve_page.data_dir(tmp_path / "data"), "192.0.2.1")
    assert Path(os.environ["GRADIO_TEMP_DIR"]).is_relative_to(tmp_path)
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    for name in ("NO_PROXY", "no_proxy"):
        assert os.environ[name].split(",") == ["intranet", "127.0.0.1", "localhost", "192.0.2.1"]


BROKEN = {"ALL_PROXY": "socks5://127.0.0.1:9", "SSL_CERT_FILE": "gone.pem", "NO_PROXY": "::1/128"}


@pytest.mark.parametrize("broken", [{}, *({name: value} for name, value in BROKEN.items())])
def test_a_page_that_asks_only_itself_needs_no_proxy_or_certificate(
    broken: dict[str, str],
    serve: Callable[[EngineWorker], str],
    worker: EngineWorker,
    arguments: argparse.Namespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"HTTP_PROXY": "http://127.0.0.1:9", **broken}.items():
        monkeypatch.setenv(name, value)
    arguments.host = "127.0.0.2"
    assert serve(worker) and os.environ["HTTP_PROXY"], "downloads still see it"


# -------------------- the end, each in a process of its own


ROOT = Path(__file__).resolve().parents[3]
POLITE = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
SERVES = """
    import sys, threading, time
    from types import SimpleNamespace
    from app.server import serve_page as main
    from launch import parse_arguments

    def serve(*_, **__):
        {serve}
        return SimpleNamespace(close=lambda verbose: print("page closed", flush=True))

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
    args = parse_arguments(["--data-dir", sys.argv[1]])
    args.port = 0
    code = main.run(args)
    print("Python ends", code, flush=True)
    sys.exit(code)
"""
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
    print("left", flush=True)
"""


def as_a_shell_starts_it() -> None:
    """Whoever runs the tests may ignore signals (`nohup` does), and its children would, too."""
    for number in POLITE:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@contextmanager
def program(code: str, *arguments: str, after: str = "") -> Iterator[subprocess.Popen[str]]:
    """A program, as soon as it has said `after`."""
    if os.name != "posix":
        pytest.skip("another system's signals cannot be sent from here")
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, cwd=ROOT, text=True, preexec_fn=as_a_shell_starts_it, **pipes) as process:  # type: ignore[call-overload]
        try:
            assert not after or any(line.strip() == after for line in process.stdout), "it ended before"
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str], *signals: signal.Signals, typed: str = "") -> tuple[int, str, str]:
    """Exit code and output of a program that gets signals."""
    for number in signals:
        process.send_signal(number)
    out, err = process.communicate(typed, timeout=SECONDS)
    return process.returncode, out, err


def test_a_signal_ends_the_program_while_its_model_loads(tmp_path: Path) -> None:
    """What a library does on the engine's thread cannot be cancelled, and Python's own end crashes on some of it."""
    with program(SERVES.format(serve="pass"), str(tmp_path), after="loads") as process:
        code, out, err = ended(process, signal.SIGTERM)
    assert (code, out.split("\n")[-2], err) == (0, "page closed", "Ending.\n")


def test_an_interrupt_that_a_library_swallows_is_not_lost(tmp_path: Path) -> None:
    serve = """
        try:
            print("serves", flush=True); time.sleep(60)
        except BaseException:
            print("swallowed", flush=True)
"""
    with program(SERVES.format(serve=serve), str(tmp_path), after="serves") as process:
        code, out, err = ended(process, signal.SIGINT)
    assert code == 0 and "swallowed" in out and err == "Ending.\n"


def test_what_hangs_at_the_end_is_ended_all_the_same() -> None:
    with program(HANGS.format(seconds=0.1, saving="time.sleep(600)"), after="runs") as process:
        code, _, err = ended(process, signal.SIGTERM)
    assert (code, err) == (1, "Something hung for 0 s; ended all the same.\n")


def test_impatience_does_not_cut_short_what_is_being_saved() -> None:
    with program(HANGS.format(seconds=60, saving="sys.stdin.readline()"), after="runs") as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None and process.stdout.readline() == "saving\n"
        told = ended(process, signal.SIGINT, signal.SIGTERM, signal.SIGINT, typed="saved\n")
    assert told == (0, "saved\nleft\n", "")


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
        code_, _, err = ended(process)
    assert (code_, err) == (-signal.SIGINT, "")
