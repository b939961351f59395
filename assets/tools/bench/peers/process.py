"""Runs peers: an environment for each, a venv filled with pinned packages (this program's own is never changed), and
workers, each a process that takes one request as a JSON line on its stdin and gives one answer on its stdout."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from app.cli.environment import torch_wheels
from assets.tools.bench.peers.lanes import Recipe

ROOT = Path(__file__).resolve().parents[4]
QUIET = {  # no network, no questions to other services
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
GPU_PACKAGES = ("nvidia-", "cuda-", "triton")
BUILD_SECONDS = 3600.0
BUILD_PROCESSES = ("CMAKE_BUILD_PARALLEL_LEVEL", "LLAMA_CPP_BUILD_JOBS")


class NotMeasured(Exception):
    """A peer that could not be built, or refused; the text is the reason, in one line."""


def run_killable(
    command: Sequence[str], *, given: str, log: IO[str], seconds: float, variables: Mapping[str, str]
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
    with process:
        try:
            written, _ = process.communicate(given, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise NotMeasured(f"it took longer than {seconds:.0f} s") from error
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError, AttributeError):  # no groups on Windows
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()
    return written, process.returncode


def ask(
    python: Path | str, worker: str, request: Mapping[str, Any], *, threads: int, log: Path, seconds: float
) -> dict[str, Any]:
    """A worker's answer to one request.

    Raises:
        NotMeasured: the worker refused, ended without an answer or took too long.
    """
    variables = {**QUIET, **dict.fromkeys(THREADS, str(threads)), "PYTHONPATH": str(ROOT)}
    given, command = json.dumps({**request, "threads": threads}) + "\n", [str(python), "-m", worker]
    with log.open("w", encoding="utf-8") as errors:
        written, code = run_killable(command, given=given, log=errors, seconds=seconds, variables=variables)
    if code < 0:
        raise NotMeasured(f"it was ended by {signal.Signals(-code).name}")
    try:
        answer: dict[str, Any] = json.loads(written.splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise NotMeasured(f"it ended without an answer: {last_line(log) or 'no reason given'}") from error
    if "refused" in answer:
        raise NotMeasured(str(answer["refused"]))
    return answer


def last_line(log: Path, beginning: str = "") -> str:
    """The last line of a log that is not empty and begins so."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip().startswith(beginning) and line.strip()), "")


# -------------------- environments


def environment(recipe: Recipe, folder: Path, tell: Callable[[str], object], *, offline: bool = False) -> Path:
    """The Python of an environment, made if it is not there yet.

    Args:
        folder: the environment's own; what is in it may be replaced.
        offline: make none, as that needs the network.
    Raises:
        NotMeasured: it cannot be made.
    """
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp, digest = folder / "recipe.sha256", hashlib.sha256(json.dumps([asdict(recipe), sys.version]).encode())
    if python.exists() and stamp.is_file() and stamp.read_text(encoding="utf-8") == digest.hexdigest():
        return python
    if offline:
        raise NotMeasured("its environment is not made yet, and --offline asks no network")
    tell(f"Making the environment {folder}. This happens once.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_name(f"{folder.name}.log")
    log.unlink(missing_ok=True)
    variables = {name: os.environ.get(name, str(os.cpu_count() or 1)) for name in BUILD_PROCESSES}
    variables |= recipe.variables

    def run(*command: str) -> str:
        with log.open("a", encoding="utf-8") as errors:
            written, code = run_killable(command, given="", log=errors, seconds=BUILD_SECONDS, variables=variables)
        if code:
            reason = last_line(log, "ERROR:").removeprefix("ERROR:").strip() or last_line(log)
            raise NotMeasured(f"its environment cannot be made: {reason} (see {log})")
        return written

    run(sys.executable, "-m", "venv", str(folder))
    pip = (str(python), "-m", "pip", "--no-input", "--disable-pip-version-check")
    run(*pip, "install", *_torch(recipe), *recipe.packages)
    if recipe.removed:
        run(*pip, "uninstall", "--yes", *recipe.removed)
    listed = run(*pip, "list", "--format=freeze").splitlines()
    if wrong := [line for line in listed if line.startswith(GPU_PACKAGES)]:
        raise NotMeasured(f"its packages bring builds for a GPU: {', '.join(wrong)}")
    stamp.write_text(digest.hexdigest(), encoding="utf-8")
    return python


def _torch(recipe: Recipe) -> list[str]:
    """pip's words for the CPU build of the torch that this program uses."""
    if not recipe.torch:
        return []
    version = metadata.version("torch").partition("+")[0]
    place = torch_wheels().rstrip("/")
    if sys.platform == "darwin" or not place:
        return [f"torch=={version}"]
    return [f"torch=={version}+cpu", "--retries", "1", "--extra-index-url", f"{place}/cpu"]
