"""Makes the peers' environments: a venv for each, filled with pinned packages. This program's own is never changed."""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from assets.tools.bench.peers.lanes import Recipe
from assets.tools.bench.peers.process import NotMeasured, last_line, run_killable

TORCH_WHEELS, TORCH_WHEELS_VARIABLE = "https://download.pytorch.org/whl", "TRIFORCE_TORCH_INDEX"  # as for launch.py
GPU_PACKAGES = ("nvidia-", "cuda-", "triton")
BUILD_SECONDS = 3600.0
BUILD_PROCESSES = ("CMAKE_BUILD_PARALLEL_LEVEL", "LLAMA_CPP_BUILD_JOBS")


def environment(recipe: Recipe, folder: Path, tell: Callable[[str], object], *, offline: bool = False) -> Path:
    """The Python of an environment, made if it is not there yet.

    Args:
        folder: the environment's own; what is in it may be replaced.
        offline: make none, as that needs the network.
    Raises:
        NotMeasured: it cannot be made.
    """
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp, digest = folder / "recipe.sha256", _digest(recipe)
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == digest and python.exists():
        return python
    if offline:
        raise NotMeasured("its environment is not made yet, and --offline asks no network")
    tell(f"Making the environment {folder}. This happens once.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_name(f"{folder.name}.log")
    log.write_text("", encoding="utf-8")
    _run([sys.executable, "-m", "venv", str(folder)], log, recipe)
    install = [str(python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    _run([*install, *_torch(recipe), *recipe.packages], log, recipe)
    if recipe.removed:
        _run([str(python), "-m", "pip", "uninstall", "--yes", *recipe.removed], log, recipe)
    listed = _run([str(python), "-m", "pip", "list", "--format=freeze"], log, recipe)
    wrong = [line for line in listed.splitlines() if line.startswith(GPU_PACKAGES)]
    if wrong:
        raise NotMeasured(f"its packages bring builds for a GPU: {', '.join(wrong)}")
    stamp.write_text(digest, encoding="utf-8")
    return python


def _digest(recipe: Recipe) -> str:
    return hashlib.sha256(json.dumps([asdict(recipe), sys.version]).encode()).hexdigest()


def _torch(recipe: Recipe) -> list[str]:
    """pip's words for the CPU build of the torch that this program uses."""
    if not recipe.torch:
        return []
    version = metadata.version("torch").partition("+")[0]
    place = os.environ.get(TORCH_WHEELS_VARIABLE, TORCH_WHEELS).rstrip("/")
    if sys.platform == "darwin" or not place:
        return [f"torch=={version}"]
    return [f"torch=={version}+cpu", "--retries", "1", "--extra-index-url", f"{place}/cpu"]


def _run(command: Sequence[str], log: Path, recipe: Recipe) -> str:
    level = {name: os.environ.get(name, str(os.cpu_count() or 1)) for name in BUILD_PROCESSES}
    with log.open("a", encoding="utf-8") as errors:
        written, code = run_killable(
            command, given="", log=errors, seconds=BUILD_SECONDS, variables={**level, **recipe.variables}
        )
    if code:
        said = log.read_text(encoding="utf-8", errors="replace")
        complaints = [line for line in said.splitlines() if line.startswith("ERROR:")]
        reason = complaints[-1].removeprefix("ERROR:").strip() if complaints else last_line(said or written)
        raise NotMeasured(f"its environment cannot be made: {reason} (see {log})")
    return written
