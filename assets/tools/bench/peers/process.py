"""Runs a worker: one process, one request as a JSON line on its stdin, one answer as a JSON line on its stdout."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[4]
QUIET = {  # no network, no questions to other services
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class NotMeasured(Exception):
    """A peer that could not be built, or refused; the text is the reason, in one line."""


def run_killable(
    command: Sequence[str], *, given: str, log: IO[str], seconds: float | None, variables: Mapping[str, str]
) -> tuple[str, int]:
    """A command's stdout and exit code; stderr goes to the log. It and all that it started end with this call.

    Raises:
        NotMeasured: it took too long, or cannot be started.
    """
    try:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise NotMeasured(f"{command[0]} cannot be started: {error.strerror}") from error
    try:
        written, _ = process.communicate(given, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise NotMeasured(f"it took longer than {seconds:.0f} s") from error
    finally:
        _end(process)
    return written, process.returncode


def _end(process: "subprocess.Popen[str]") -> None:
    """End the process with all that it started, and free its pipes."""
    if process.poll() is None:
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def ask(
    python: Path | str, worker: str, request: Mapping[str, Any], *, threads: int, log: Path, seconds: float
) -> dict[str, Any]:
    """A worker's answer to one request.

    Raises:
        NotMeasured: the worker refused, ended without an answer or took too long.
    """
    variables = {**QUIET, **dict.fromkeys(THREADS, str(threads)), "PYTHONPATH": str(ROOT)}
    with log.open("w", encoding="utf-8") as errors:
        given = json.dumps({**request, "threads": threads}) + "\n"
        command = [str(python), "-m", worker]
        written, code = run_killable(command, given=given, log=errors, seconds=seconds, variables=variables)
    lines = written.splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else None
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise NotMeasured(_ending(code, log))
    if "refused" in answer:
        raise NotMeasured(str(answer["refused"]))
    return answer


def _ending(code: int, log: Path) -> str:
    if code < 0:
        return f"it was ended by {signal.Signals(-code).name}"
    return f"it ended without an answer: {last_line(log.read_text(encoding='utf-8', errors='replace'))}"


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no reason given")
