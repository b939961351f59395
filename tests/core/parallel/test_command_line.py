"""`--gpus 2` as a user runs it, with the bundled pair: processes are real, and so are their deaths."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="processes are found through /proc")
@pytest.mark.parametrize("victim", ["worker", "program"])
def test_whoever_is_killed_nobody_is_left(book: Path, victim: str) -> None:
    options = ("--device", "cpu", "--gpus", 2, "--method", "autoregressive", "--temperature", 2)
    ask = command("ask", book, "-q", "Who kept the light?", "--max-new-tokens", 100_000, *options)
    with subprocess.Popen(ask, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None and program.stderr is not None
        assert program.stdout.read(1), "the answer has begun"
        (worker,) = workers_of(program.pid)
        os.kill(worker if victim == "worker" else program.pid, signal.SIGKILL)
        started = time.monotonic()
        _, complaints = program.communicate(timeout=SOON_SECONDS)
        while Path(f"/proc/{worker}").exists() and time.monotonic() - started < SOON_SECONDS:
            time.sleep(0.1)
        assert not Path(f"/proc/{worker}").exists()
    if victim == "worker":
        errors = [line for line in complaints.decode().splitlines() if line.startswith("error:")]
        assert program.returncode == 1 and b"Traceback" not in complaints
        assert errors == ["error: Process 2 of 2 was killed by signal 9. Start again, or leave out --gpus."], (
            complaints.decode()
        )


def workers_of(program: int) -> list[int]:
    """Children that multiprocessing has spawned to work; its resource tracker is none."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == program and b"spawn_main" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended meanwhile
    return found
