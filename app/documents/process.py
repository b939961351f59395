"""A parsing process with limits enforced from outside, and its output, line by line.

The process limits itself where the system can (`worker.py`). The watch here works everywhere, also where the
address space cannot be limited (macOS) or nothing can (Windows), and while the process does not respond. The process
ends with this one, because only this one holds the pipe of its standard input.
"""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psutil

PROJECT = Path(__file__).parents[2]
WATCH_SECONDS = 0.1
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
        self.limit: Limit | None = None  # why the watch has ended the process
        self._most = memory_bytes, cpu_seconds
        self._line_bytes = line_bytes
        self._lines: queue.Queue[bytes] = queue.Queue(WAITING_LINES)
        self._over = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=PROJECT,
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # libraries complain without end
        )
        self._threads = [threading.Thread(target=job, daemon=True) for job in (self._forward, self._watch)]
        for thread in self._threads:
            thread.start()

    def line(self, timeout_seconds: float) -> bytes:
        """The next line; empty: the output has ended.

        Raises:
            queue.Empty: no line within the timeout.
        """
        return self._lines.get(timeout=timeout_seconds)

    def wait(self) -> int:
        """The exit status, once the output is closed."""
        return self._process.wait()

    def close(self) -> None:
        """End the process, whatever it does."""
        self._over.set()
        self._kill()
        self._process.kill()
        self._process.wait()
        while self._threads[0].is_alive():  # it may wait for space in the queue
            with suppress(queue.Empty):
                self._lines.get(timeout=0.01)
        for thread in self._threads:
            thread.join()
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

    def _watch(self) -> None:
        """End the process when it exceeds a limit."""
        memory_bytes, cpu_seconds = self._most
        while not self._over.wait(WATCH_SECONDS) and (family := self._family()):
            memory = seconds = 0.0
            for one in family:
                with suppress(psutil.Error):
                    memory += one.memory_info().rss
                    seconds += sum(one.cpu_times()[:2])
            if memory > memory_bytes or seconds > cpu_seconds:
                self.limit = "memory" if memory > memory_bytes else "time"
                self._kill()
                return

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
