"""`python launch.py test` and `check`: the tests, and all other checks of a change. Loads no model."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from app.cli.environment import DEV_REQUIREMENTS, ROOT, pip_install, unmet_requirement

MOST_TEST_PROCESSES = 4
LONG_TESTS = "tests.long"
PROCESSES = str(min(MOST_TEST_PROCESSES, os.cpu_count() or 1))
SLOW, REAL = ("-m", "slow and not gpu"), ("-m", "real")
FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"  # names of the tests that failed, by pytest
STEPS = {  # run by `check` after the tests, as `python -m`
    "slow tests": ("pytest", *SLOW, "-n", PROCESSES, "--dist", "worksteal"),  # most are one file's
    "real models": ("pytest", *REAL, "-n", PROCESSES, "--dist", "loadfile"),  # skipped without a network
    "format": ("ruff", "format", "--check", "."),
    "style": ("ruff", "check", "."),
    "types": ("mypy", "--strict", "core", "app", "assets/tools"),
}


def run(args: argparse.Namespace) -> int:
    """Install missing test tools and run the requested checks. Returns their exit code.

    Raises:
        NotPossibleHere: pip could not install the tools.
    """
    if unmet_requirement(DEV_REQUIREMENTS):
        pip_install(Path(sys.executable), "-r", DEV_REQUIREMENTS)
    if args.command == "check":
        return run_steps(tests=args.tests)
    return run_module(LONG_TESTS, *args.pytest_args) if args.long else run_step(tests_command(args.pytest_args))


def run_steps(*, tests: bool) -> int:
    """Run every step, up to the first that fails. Returns its exit code, or 0."""
    steps = {"tests": tests_command()} | STEPS if tests else STEPS
    for name, words in steps.items():
        print(f"== {name}", file=sys.stderr, flush=True)
        if code := run_step(words):
            print(f"Failed: {name}", file=sys.stderr, flush=True)
            return code
    return 0


def run_step(words: Sequence[str]) -> int:
    """Run a step. Tests that fail are run once more, alone in one process; what then passes is printed as flaky.

    Returns:
        The exit code: 0 if nothing failed twice.
    """
    if "-n" not in words:
        return run_module(*words)
    code = run_module(*words, "--cache-clear")
    if code != 1:  # passed; or no tests ran to their end
        return code
    once, again = failed_tests(), [word for word in words if word in {*SLOW, *REAL}]
    print(f"== {len(once)} failed: once more, alone", file=sys.stderr, flush=True)
    code = run_module("pytest", *again, "--last-failed", "--last-failed-no-failures", "none")
    for name in sorted(once - failed_tests()) if code in (0, 1) else ():
        print(f"FLAKY {name}: failed, then passed alone", file=sys.stderr, flush=True)
    return code


def failed_tests() -> set[str]:
    """The names of the tests that failed in pytest's newest run."""
    return set(json.loads(FAILED.read_text(encoding="utf-8"))) if FAILED.exists() else set()


def tests_command(pytest_args: Sequence[str] = ()) -> Sequence[str]:
    """The command for the requested tests; the whole suite runs in several processes, and tells its slowest tests."""
    return ("pytest", *(pytest_args or ("-n", PROCESSES, "--dist", "loadfile", "--durations", "20")))


def run_module(*words: str) -> int:
    """`python -m WORDS` in the project's folder."""
    return subprocess.call([sys.executable, "-m", *words], cwd=ROOT)
