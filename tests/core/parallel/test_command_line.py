"""`--gpus 2` as a user runs it, with the bundled pair: processes are real, and so are their deaths."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow  # each starts programs that load torch
ROOT = Path(__file__).parents[3]
SOON_SECONDS = 30.0  # a machine that is busy included


@pytest.fixture
def book(tmp_path: Path) -> Path:
    file = tmp_path / "small.txt"
    file.write_text("Chapter 1: The Quay\n\n" + "Martha Voss kept the light at Gull Point. " * 40, encoding="utf-8")
    return file


def command(*arguments: object) -> list[str]:
    return [sys.executable, str(ROOT / "launch.py"), *map(str, arguments), "--no-venv"]


def test_a_race_over_two_processes_writes_the_text_of_one(book: Path) -> None:
    texts = []
    for gpus in (1, 2):
        race = command("race", book, "-q", "Who kept the light?", "--device", "cpu", "--gpus", gpus, "--json")
        done = subprocess.run([*race, "--max-new-tokens", "24"], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout.splitlines()[-1])
        assert report["processes"] == gpus and report["equality"]["verdict"] == "identical"
        texts.append(report["methods"]["triforce"]["token_ids"])
    assert texts[0] == texts[1]


@pytest.mark.skipif(sys.platform == "win32", reason="no kill -9")
@pytest.mark.parametrize("victim", ["worker", "program"])
def test_whoever_is_killed_nobody_is_left(book: Path, victim: str) -> None:
    options = ("--device", "cpu", "--gpus", 2, "--method", "autoregressive", "--temperature", 2)
    ask = command("ask", book, "-q", "Who kept the light?", "--max-new-tokens", 100_000, *options)
    with subprocess.Popen(ask, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None and program.stderr is not None
        assert program.stdout.read(1), "the answer has begun"
        (worker,) = workers_of(program.pid)
        os.kill(worker.pid if victim == "worker" else program.pid, signal.SIGKILL)
        _, complaints = program.communicate(timeout=SOON_SECONDS)
        assert psutil.wait_procs([worker], SOON_SECONDS)[0] == [worker]
    if victim == "worker":
        errors = [line for line in complaints.decode().splitlines() if line.startswith("error:")]
        assert program.returncode == 1 and b"Traceback" not in complaints
        assert errors == ["error: Process 2 of 2 was killed by signal 9. Start again, or leave out --gpus."], (
            complaints.decode()
        )


def workers_of(program: int) -> list[psutil.Process]:
    """Children that multiprocessing has spawned to work; its resource tracker is none."""
    found = []
    for child in psutil.Process(program).children():
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            found += [child] if "spawn_main" in " ".join(child.cmdline()) else []
    return found
