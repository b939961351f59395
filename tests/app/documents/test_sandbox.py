"""A parser that has been taken over reads nothing but its document, writes nothing and reaches nobody."""

import ctypes
import json
import os
import socket
import sys
from pathlib import Path

import pytest

from app.documents import parsing, sandbox
from app.documents.parsing import LIMITS, worker_messages
from app.documents.sandbox import REFUSED, SCOPES_SINCE, left_open
from tests.app.documents.conftest import lines

LEFT = left_open() if sys.platform == "linux" else ["files", "network"]
files = pytest.mark.skipif("files" in LEFT, reason="no Landlock here")
network = pytest.mark.skipif("network" in LEFT, reason="no filters of system calls here")


def landlock_version() -> int:
    libc = ctypes.CDLL(None)
    return int(libc.syscall(sandbox.CREATE_RULESET, None, 0, sandbox.VERSION)) if sys.platform == "linux" else 0


WORKER = """
import ctypes, json, os, socket, subprocess, sys
from pathlib import Path

def read(stream, *expressions):
    for expression in expressions:
        try:
            said = str(eval(expression))
        except OSError as error:
            said = type(error).__name__
        yield {"kind": "page", "text": said}
"""


class Trap:
    """A document, and a parser that evaluates what it is told to: confined, or free."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.code, self.document = folder, folder / "code", folder / "book.txt"
        (self.code / "hostile").mkdir(parents=True)
        (self.code / "hostile" / "parser.py").write_text(WORKER)
        self.document.write_text("a book")

    def files(self) -> dict[Path, str | None]:
        """All that is there, and what is in it."""
        found = [file for file in self.folder.rglob("*") if "__pycache__" not in file.parts]
        return {file: file.read_text() if file.is_file() else None for file in found}

    def sandboxed(self, *expressions: str) -> list[str]:
        """The values of expressions, or the names of errors."""
        messages = worker_messages("hostile.parser", self.document, "a", LIMITS, expressions)
        return [message["text"] for message in messages if message and message["kind"] == "page"]

    def free(self, *expressions: str) -> list[str]:
        """The same by a parser that is not confined."""
        code = "import sys; from app.documents import worker; worker.confine = id; worker.main(sys.argv[1:])"
        taken = ["hostile.parser", str(self.document), str(LIMITS.memory_bytes), "100", *expressions]
        return [str(json.loads(line).get("text")) for line in lines(code, *taken)][:-1]

    def all_refused(self, *attempts: str) -> None:
        """Nothing of it happens in the sandbox, and all of it would without. Each has a private folder with a diary."""
        expressions = []
        for number, attempt in enumerate(attempts):
            private = self.folder / f"private {number}"
            private.mkdir()
            (private / "diary.txt").write_text("a diary")
            places = {"private": private, "diary": private / "diary.txt", "document": self.document, "code": self.code}
            expressions.append(attempt.format(**{name: str(place) for name, place in places.items()}))
        before = self.files()
        assert self.sandboxed(*expressions) == ["PermissionError"] * len(attempts) and self.files() == before
        told = self.free(*expressions)
        assert len(told) == len(attempts) and not [one for one in told if one.endswith("Error")], "it fails anyway"


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trap:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "code"))
    return Trap(tmp_path)


@files
def test_no_other_file_is_read(trap: Trap) -> None:
    """Nor a folder, a file by another name, this program's variables, or one by another program."""
    trap.all_refused(
        "Path({diary!r}).read_text()",
        "os.listdir({private!r})",
        "Path('/proc/self/root' + {diary!r}).read_text()",
        "len(Path(f'/proc/{{os.getppid()}}/environ').read_bytes()) > 0",
        "subprocess.run([sys.executable, '-c', 'open(' + repr({diary!r}) + ')'], stderr=-3, check=False).returncode "
        "and 1 / (not os.listdir({private!r}))",
    )


@files
def test_nothing_is_written_deleted_or_renamed(trap: Trap) -> None:
    trap.all_refused(
        "open({diary!r}, 'r+').truncate()",
        "open({diary!r}, 'w').close()",
        "Path({private!r}, 'new').touch()",
        "Path({private!r}, 'new').mkdir()",
        "Path({private!r}, 'new').symlink_to({diary!r})",
        "Path({private!r}, 'new').hardlink_to({document!r})",
        "Path({diary!r}).rename({private!r} + '/new')",
        "Path({diary!r}).unlink()",
        "open({document!r}, 'w').close()",
        "Path({code!r}, 'new.py').touch()",
    )


@pytest.mark.skipif(landlock_version() < SCOPES_SINCE, reason="Landlock keeps no signals here")
def test_no_other_process_is_signalled(trap: Trap) -> None:
    trap.all_refused("os.kill(os.getppid(), 0)")


@network
def test_no_server_of_this_machine_is_reached_and_no_socket_of_any_kind_is_made(trap: Trap) -> None:
    """A connection; a socket in a folder, a datagram, the kernel's, a pair."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        path = str(trap.folder / "s")[-100:]
        local.bind(path)
        local.listen()
        trap.all_refused(
            f"socket.create_connection({server.getsockname()!r}).close()",
            f"socket.socket(socket.AF_UNIX).connect({path!r})",
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
            "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()",
            "[one.close() for one in socket.socketpair()]",
        )


@network
def test_no_call_of_another_kind_makes_one(trap: Trap) -> None:
    """io_uring, whose number is the same on every processor, and on x86-64 the numbers of x32."""
    calls = [425, sandbox.OTHER_CALLS + REFUSED[os.uname().machine][1][0]]
    attempts = [
        f"(ctypes.CDLL(None, use_errno=True).syscall({number}, 0, 0, 0), ctypes.get_errno())" for number in calls
    ]
    assert trap.sandboxed(*attempts) == ["(-1, 1)"] * 2
    assert "(-1, 1)" not in trap.free(*attempts), "it fails anyway"


def test_a_parser_is_told_no_keys(trap: Trap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "a key")
    monkeypatch.setenv("TRIFORCE_AUTH", "name:password")
    seen = "sorted(set(os.environ) & {'HF_TOKEN', 'TRIFORCE_AUTH', 'PATH'})"
    known = "set(os.environ) <= {'LC_CTYPE', *" + repr(parsing.ENVIRONMENT) + "}"
    assert trap.sandboxed(seen, known) == ["['PATH']", "True"]
    monkeypatch.setattr(parsing, "ENVIRONMENT", (*parsing.ENVIRONMENT, "HF_TOKEN"))
    assert trap.sandboxed(seen) == ["['HF_TOKEN', 'PATH']"]


def test_a_parser_may_read_its_document_and_start_a_program_that_is_installed(trap: Trap) -> None:
    started = "subprocess.check_output(['ls', os.__file__], text=True) == os.__file__ + chr(10)"
    assert trap.sandboxed(f"Path({str(trap.document)!r}).read_text()", started) == ["a book", "True"]


# -------------------- systems that cannot

WITHOUT_LANDLOCK = """
import os, runpy, sys
from app.documents import sandbox
keep_files, refused = sandbox.keep_files, sandbox.REFUSED
sandbox.keep_files, machine = lambda *_: None, os.uname().machine
sandbox.REFUSED = {machine: (refused[machine][0], (sandbox.CREATE_RULESET,))}
assert sandbox.confine(sandbox.PROJECT) == []
runpy.run_module("app.documents.sandbox", run_name="__main__", alter_sys=True)
"""


UNKNOWN = "from app.documents import sandbox; sandbox.REFUSED = {}; print(sandbox.confine(sandbox.PROJECT)[-1])"


@network
@pytest.mark.parametrize(("code", "told"), [(WITHOUT_LANDLOCK, b"files"), (UNKNOWN, b"network")])
def test_a_kernel_without_landlock_or_an_unknown_processor_is_told_and_the_rest_is_refused(
    code: str, told: bytes
) -> None:
    assert b"".join(lines(code)).split() == [told]


def test_another_system_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert sandbox.confine(tmp_path) == ["files", "network"]
