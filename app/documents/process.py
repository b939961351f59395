"""A parsing process with limits enforced from outside, and its output, line by line.

The process limits itself where the system can (`worker.py`). Who waits for its lines watches it everywhere, also where
the address space cannot be limited (macOS) or nothing can (Windows). It ends with this process, because only this one
holds the pipe of its standard input.
"""

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psutil

PROJECT = Path(__file__).parents[2]
HEARTBEAT_SECONDS = 0.1
WAITING_LINES = 64  # lines read ahead of requests
ENVIRONMENT = (  # what a parser is told of this program's variables: no keys
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE",
    "LD_LIBRARY_PATH", "SYSTEMROOT", "USERPROFILE", "APPDATA", "TEMP", "TMP",
)  # fmt: skip
Limit = Literal["memory", "time"]


class ParsingProcess:
    """A child process that parses one file. `close` ends it and everything it started."""

    def __init__(self, arguments: Sequence[str], memory_bytes: int, cpu_seconds: int, line_bytes: int) -> None:
        """Start the process.

        Args:
            arguments: those after the interpreter.
            memory_bytes: of RAM.
            cpu_seconds: of all its threads.
            line_bytes: limit of one line; a longer one is cut and is the last.
        """
        self.limit: Limit | None = None  # why the process was ended
        self._most = memory_bytes, cpu_seconds
        self._line_bytes = line_bytes
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
        """Put each line into a queue, and an empty one at the end. (A queue allows timeouts, on Windows too.)"""
        assert self._process.stdout
        while line := self._process.stdout.readline(self._line_bytes):
            self._lines.put(line)
            if not line.endswith(b"\n"):
                break
        self._lines.put(b"")

    def _look(self) -> None:
        """End the process if it has exceeded a limit."""
        memory_bytes, cpu_seconds = self._most
        memory = seconds = 0.0
        for one in self._family():
            with suppress(psutil.Error):
                memory += one.memory_info().rss
                seconds += sum(one.cpu_times()[:2])
        if memory > memory_bytes or seconds > cpu_seconds:
            self.limit = "memory" if memory > memory_bytes else "time"
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
