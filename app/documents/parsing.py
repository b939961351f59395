"""Runs the limited process that parses a hostile file, and turns its failures into error messages.

The process limits itself where the system can (`worker.py`). Who waits for its lines watches it everywhere, also where
the address space cannot be limited (macOS) or nothing can (Windows).
"""

import compileall
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import psutil

from app.document_formats import NAMES
from app.documents.archive import most_text
from app.documents.document import Extracting
from app.documents.errors import (
    DamagedDocument,
    DocumentError,
    DocumentTooLarge,
    DrmProtected,
    OcrBroken,
    OcrMissing,
    ParserCrashed,
    ParsingLimitReached,
    PasswordProtected,
    UnsupportedFormat,
)
from app.documents.messages import Heading, Message, Opened, PageRead, Reason

log = logging.getLogger(__name__)

PROJECT = Path(__file__).parents[2]
HEARTBEAT_SECONDS = 0.1
WAITING_LINES = 64  # lines read ahead of requests
ENVIRONMENT = (  # what a parser is told of this program's variables: no keys
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE",
    "LD_LIBRARY_PATH", "SYSTEMROOT", "USERPROFILE", "APPDATA", "TEMP", "TMP",
)  # fmt: skip
MOST_PARSERS = 2  # at once in this program: fifty files may be dropped together
BYTES_PER_CHAR = 6  # of a message, at most
MOST_OTHER_BYTES = 1 << 24  # of a message beside its text
WINDOWS_CRASHES = 0x8000_0000  # the exit codes of a process that an exception ended begin here
_turns = threading.BoundedSemaphore(MOST_PARSERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsingLimits:
    """What reading one file may take. A plain PDF book of 1,000 pages takes about 0.1 GB and six seconds."""

    memory_bytes: int = 2 << 30  # of RAM, on Linux of address space, where an idle worker maps about 0.3 GB
    cpu_seconds: int = 900
    silence_seconds: float = 60  # without a new page
    chars: int = 20_000_000  # thirty times 128K tokens

    def of(self, file: Path) -> "ParsingLimits":
        """Those of one file: a small one holds less text."""
        return replace(self, chars=min(self.chars, most_text(file.stat().st_size)))


LIMITS = ParsingLimits()


class ParsingProcess:
    """A child process that parses one file, and its output, line by line. `close` ends it and everything it started.

    It ends with this process, because only this one holds the pipe of its standard input.
    """

    def __init__(self, arguments: Sequence[str], limits: ParsingLimits) -> None:
        """Start the process. `arguments`: those after the interpreter."""
        self.limit: Literal["memory", "time"] | None = None  # why the process was ended
        self._limits = limits
        self._lines: queue.Queue[bytes] = queue.Queue(WAITING_LINES)
        self._next_look = 0.0  # at what the process has taken
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=PROJECT,
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # libraries complain without end
        )
        self._forwarding = threading.Thread(target=self._forward, daemon=True)
        self._forwarding.start()

    def line(self) -> bytes | None:
        """The next line; empty: the output has ended; None: there is none for a moment. Ends a process that takes more.

        For that, it is called again and again.
        """
        if time.monotonic() >= self._next_look:
            self._look()
            self._next_look = time.monotonic() + HEARTBEAT_SECONDS
        try:
            return self._lines.get(timeout=HEARTBEAT_SECONDS)
        except queue.Empty:
            return None

    def wait(self) -> int:
        """The exit status, once the output is closed."""
        return self._process.wait()

    def close(self) -> None:
        """End the process, whatever it does."""
        self._kill()
        self._process.kill()
        self._process.wait()
        while self._forwarding.is_alive():  # it may wait for space in the queue
            with suppress(queue.Empty):
                self._lines.get(timeout=0.01)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()

    def _forward(self) -> None:
        """Put each line into a queue, and an empty one at the end. (A queue allows timeouts, on Windows too.)

        A line that is too long is cut, and is the last.
        """
        assert self._process.stdout
        while line := self._process.stdout.readline(BYTES_PER_CHAR * self._limits.chars + MOST_OTHER_BYTES):
            self._lines.put(line)
            if not line.endswith(b"\n"):
                break
        self._lines.put(b"")

    def _look(self) -> None:
        """End the process if it has exceeded a limit."""
        memory = seconds = 0.0
        for one in self._family():
            with suppress(psutil.Error):
                memory += one.memory_info().rss
                seconds += sum(one.cpu_times()[:2])
        if memory > self._limits.memory_bytes or seconds > self._limits.cpu_seconds:
            self.limit = "memory" if memory > self._limits.memory_bytes else "time"
            self._kill()

    def _kill(self) -> None:
        for one in self._family():
            with suppress(psutil.Error):
                one.kill()

    def _family(self) -> list[psutil.Process]:
        """The process, and on Windows its children, because a virtual environment's interpreter starts another one."""
        if self._process.poll() is not None:
            return []
        try:
            own = psutil.Process(self._process.pid)
            return [own, *(own.children(recursive=True) if sys.platform == "win32" else ())]
        except psutil.Error:
            return []


def parse(
    parser: str, file: Path, name: str, limits: ParsingLimits, more: Sequence[str] = ()
) -> Generator[Extracting, None, tuple[Opened, list[PageRead]]]:
    """Read a file in a process of its own, yielding progress; returns the worker's messages.

    The process has ended when this iterator ends, for whatever reason.

    Raises:
        DocumentError: the worker refused the file, failed, stopped responding or died, or there is too much text.
    """
    opened: Opened | None = None
    pages: list[PageRead] = []
    num_chars, limits = 0, limits.of(file)
    for message in worker_messages(parser, file, name, limits, more):
        if message and message["kind"] == "opened":
            opened = message
        if message and message["kind"] == "page":
            pages.append({**message, "headings": [Heading(*heading) for heading in message["headings"]]})
            num_chars += len(message["text"])
        if num_chars > limits.chars:
            raise DocumentTooLarge(name, f"more than {limits.chars:,} characters")
        yield Extracting(num_done=len(pages), num_pages=len(opened["labels"]) if opened else None)
    assert opened, "the worker was done before it had opened the file"
    return opened, pages


def worker_messages(
    parser: str,
    file: Path,
    name: str,
    limits: ParsingLimits,
    more: Sequence[str] = (),
    turns: threading.BoundedSemaphore = _turns,
) -> Generator[Message | None]:
    """The messages of a worker up to "done", and None whenever there is none for a moment. Raises the document's error.

    Args:
        parser: a module of `app.documents.parsers`, or any other by its full name.
        more: further arguments of the worker.
        turns: how many may run at once; the next one waits.
    """
    while not turns.acquire(timeout=HEARTBEAT_SECONDS):
        yield None
    try:
        compile_parsers()
        taken = [str(file), str(limits.memory_bytes), str(limits.cpu_seconds)]
        arguments = ["-m", "app.documents.worker", parser, *taken, *more]
        with closing(ParsingProcess(arguments, limits)) as process:
            yield from receive(process, parser, name, limits)
    finally:
        turns.release()


@cache
def compile_parsers() -> None:
    """Store the bytecode of the parsers' modules, because their processes may write nothing."""
    if not sys.dont_write_bytecode:
        compileall.compile_dir(Path(__file__).parent, quiet=2)


def receive(process: ParsingProcess, parser: str, name: str, limits: ParsingLimits) -> Iterator[Message | None]:
    """See `worker_messages`."""
    heard = time.monotonic()
    while True:
        line = process.line()
        if line is None:
            if time.monotonic() - heard >= limits.silence_seconds:
                raise ParsingLimitReached(name, f"{limits.silence_seconds:g} seconds for one page")
            yield None
            continue
        if not line:
            raise explain_death(process, parser, name, limits)
        if not line.endswith(b"\n"):
            raise DocumentTooLarge(name, f"more than {limits.chars:,} characters")
        message = json.loads(line)
        if message["kind"] == "failed":
            raise explain_failure(message["reason"], parser, name, limits)
        if message["kind"] == "done":
            return
        heard = time.monotonic()
        yield message


FAILURES: Mapping[Reason, tuple[type[DocumentError], str]] = {
    "password": (PasswordProtected, ""),
    "protected": (DrmProtected, ""),
    "cut off": (DamagedDocument, "is cut off: its end is missing"),
    "no container": (DamagedDocument, "is not {what}: the list of its contents is missing"),
    "damaged": (DamagedDocument, "is damaged and cannot be read as {what}"),
    "oversized": (DocumentTooLarge, "it holds more than any book"),
    "entities": (UnsupportedFormat, "{what} that declares XML entities of its own"),
    "binary": (UnsupportedFormat, "binary data and not text"),
    "no text": (UnsupportedFormat, "a picture, a sound or a font"),
    "packed": (UnsupportedFormat, "packed in another way than by deflate"),
    "memory": (ParsingLimitReached, "{memory:.1f} GB of memory"),
    "no engine": (OcrMissing, ""),
    "broken engine": (OcrBroken, ""),
}


def explain_failure(reason: Reason, parser: str, name: str, limits: ParsingLimits) -> DocumentError:
    """The error for a worker's reason."""
    kind, words = FAILURES[reason]
    _, _, what = NAMES.get(parser, ("", "", "a ZIP file" if parser == "zip" else "a PDF"))
    return kind(name, words.format(what=what, memory=limits.memory_bytes / 1e9))


def explain_death(process: ParsingProcess, parser: str, name: str, limits: ParsingLimits) -> DocumentError:
    """The error for a worker that died before it was done."""
    code = process.wait()
    log.warning("the parser %s ended with code %d", parser, code)
    if process.limit == "time" or code == -getattr(signal, "SIGXCPU", 0):
        return ParsingLimitReached(name, f"{limits.cpu_seconds} seconds of computing")
    if process.limit == "memory":
        return explain_failure("memory", parser, name, limits)
    if code < 0 or code >= WINDOWS_CRASHES:
        return ParserCrashed(name, f"{limits.memory_bytes / 1e9:.1f} GB of memory")
    return explain_failure("damaged", parser, name, limits)
