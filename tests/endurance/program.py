"""The app in a process of its own: started, looked at, ended one way or the other."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import psutil

from core.models.hub.catalog import ROOT
from tests.app.fakes import free_port

START_SECONDS = 300.0  # on a machine that does much else
END_SECONDS = 30.0


class Program:
    def __init__(self, folder: Path, *, more: Sequence[str] = ()) -> None:
        port = free_port()
        self.address, self.log = f"http://127.0.0.1:{port}/", folder.with_name(f"{folder.name}.log")
        folder.mkdir(parents=True, exist_ok=True)
        given = ["--port", str(port), "--data-dir", str(folder), "--context", "8192", "--no-browser", "--offline"]
        with self.log.open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.endurance.start", *given, *more],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def serves(self) -> bool:
        try:
            with urllib.request.urlopen(self.address, timeout=END_SECONDS) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def wait(self) -> None:
        """Until the page can be had."""
        deadline = time.monotonic() + START_SECONDS
        while not self.serves():
            if not self.alive or time.monotonic() > deadline:
                raise RuntimeError(f"the app did not start:\n{self.printed()[-4000:]}")
            time.sleep(0.1)

    def printed(self) -> str:
        """What it printed, of all runs on this folder."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def faults(self) -> list[str]:
        """What it printed of errors that nobody expected."""
        return [line for line in self.printed().splitlines() if "a job failed" in line or "Traceback" in line]

    def children(self) -> list[psutil.Process]:
        """Its processes, parsers above all."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> list[psutil.Process]:
        """End it without warning. Returns children that are still there END_SECONDS later."""
        children = self.children()
        self.process.kill()
        self.process.wait()
        return list(psutil.wait_procs(children, timeout=END_SECONDS)[1])

    def end(self) -> int:
        """End it as Ctrl+C does; its exit code."""
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(END_SECONDS * 2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
