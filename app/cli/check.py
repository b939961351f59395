"""`python launch.py test`: the project's tests. Imports nothing that is not asked for."""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from app.cli.environment import DEV_REQUIREMENTS, ROOT, pip_install, unmet_requirement

MOST_TEST_PROCESSES = 4
LONG_TESTS = "tests.long"


def run(args: argparse.Namespace) -> int:
    """Install missing test tools and run what was asked for. Returns its exit code.

    Raises:
        Situation: pip could not install the tools.
    """
    if unmet_requirement(DEV_REQUIREMENTS):
        pip_install(Path(sys.executable), "-r", DEV_REQUIREMENTS)
    return run_module(LONG_TESTS, *args.pytest_args) if args.long else run_tests(args.pytest_args)


def run_tests(pytest_args: Sequence[str]) -> int:
    """Run pytest; the whole suite in several processes."""
    processes = min(MOST_TEST_PROCESSES, os.cpu_count() or 1)
    return run_module("pytest", *(pytest_args or ["-n", str(processes), "--dist", "loadfile"]))


def run_module(*words: str) -> int:
    """`python -m WORDS` in the project's folder."""
    return subprocess.call([sys.executable, "-m", *words], cwd=ROOT)
