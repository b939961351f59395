"""Exactness under fire: random programs of everything a user may do, on tiny models and on the bundled pair.

    python launch.py test --long exactness          the whole suite, and what it has found as JSON
    python -m tests.exactness.run --case 417        one case of the tiny models, step by step
    python -m tests.exactness.run --case b12        one of the bundled pair; w12: of models with windows

Greedy text must be plain decoding's to the last token; sampled text must pass the tests of `uniformity`. Engines with
one thing wrong must fail, or the suite measures nothing. Exit code 1 if anything is not as it must be.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from app.runtime.versions import versions
from assets.tools.bench.report import commit
from core.planning.hardware import this_machine
from tests.exactness.cases import World, drawing_of
from tests.exactness.controls import CONTROLS, Control
from tests.exactness.judging import Outcome
from tests.exactness.playing import play
from tests.exactness.uniformity import FALSE_ALARM

SIZES: dict[World, int] = {"tiny": 1000, "bundled": 50, "windowed": 200}  # cases
DEFAULT_JSON = Path(tempfile.gettempdir()) / "exactness.json"


def run_suite(sizes: dict[World, int], *, first: int = 0, controls: Sequence[Control] = CONTROLS) -> dict[str, Any]:
    """Cases `first` and the following ones of all worlds, then the controls. Progress goes to stderr."""
    started, complete = perf_counter(), True
    worlds: dict[World, Outcome] = {world: Outcome() for world, count in sizes.items() if count}
    noticed: dict[str, dict[str, Any]] = {}
    try:
        for world, whole in worlds.items():
            for number in range(first, first + sizes[world]):
                one = play(drawing_of(number, world))
                whole.merge(one)
                for what in one.mismatches:
                    _say(what)
                if (done := whole.counts["cases"]) % max(1, sizes[world] // 20) == 0:
                    _say(f"{world}: {done} of {sizes[world]} cases, {len(whole.mismatches)} mismatches")
        for control in controls:
            noticed[control.name] = detect(control)
    except KeyboardInterrupt:
        complete = False
        _say("Interrupted: this is what was found so far.")
    tests = [(world, test) for world, whole in worlds.items() for test in whole.pool.tests()]
    alarms = [(world, test) for world, test in tests if test.p_value < FALSE_ALARM / len(tests)]  # by Bonferroni
    failures = [what for whole in worlds.values() for what in whole.mismatches]
    failures += [f"{world} models, {test.name}: p = {test.p_value:.2g}" for world, test in alarms]
    failures += [f"not noticed: {name}" for name, found in noticed.items() if not found["detected"]]
    return {
        "hardware": asdict(this_machine()),
        "versions": versions(),
        "commit": commit(),
        "config": {"suite": "exactness", "first_case": first, "false_alarm": FALSE_ALARM},
        "complete": complete,
        "seconds": round(perf_counter() - started, 1),
        "worlds": {world: _figures(whole) for world, whole in worlds.items()},
        "tests": [{"models": world, **asdict(test), "p": test.p_value} for world, test in tests],
        "controls": noticed,
        "failures": failures,
    }


def _figures(one: Outcome) -> dict[str, Any]:
    ordered = sorted(one.acceptance) or [0.0]
    quantiles = {q: round(ordered[round(q * (len(ordered) - 1))], 3) for q in (0, 0.1, 0.25, 0.5, 0.75, 0.9, 1)}
    return dict(sorted(one.counts.items())) | {"largest error of p": one.worst_gap, "level 2 acceptance": quantiles}


def detect(control: Control) -> dict[str, Any]:
    """Play a control's cases on the engine with its error: mismatches or the smallest p, and whether that is enough."""
    outcome = Outcome()
    with control.enter():
        for number in range(control.num_cases):
            outcome.merge(play(drawing_of(number, control.world, control.flavour)))
    tests, mismatches = outcome.pool.tests(), len(outcome.mismatches)
    least = min((test.p_value for test in tests), default=1.0)
    detected = mismatches > 0 if control.by == "mismatches" else least < FALSE_ALARM / max(1, len(tests))
    _say(f"control: {control.name}: {'noticed' if detected else 'NOT NOTICED'}")
    return {"by": control.by, "found": mismatches if control.by == "mismatches" else least, "detected": detected}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(argv: Sequence[str]) -> int:
    """Run what the command line says. Returns 0 if everything is as it must be, 1 if not, 130 if interrupted."""
    parser = argparse.ArgumentParser(
        prog="launch.py test --long", description="Exactness under fire.", allow_abbrev=False
    )
    for world, count in SIZES.items():
        parser.add_argument(f"--{world}", type=int, default=count, metavar="N", help=f"cases on {world} models")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first case")
    parser.add_argument("--case", metavar="N|bN|wN", help="only this case, step by step; b: bundled, w: windows")
    parser.add_argument("--no-controls", dest="controls", action="store_false", help="leave out the negative controls")
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON, metavar="F", help=f"default: {DEFAULT_JSON}")
    args = parser.parse_args(argv)
    if args.case:
        worlds: dict[str, World] = {"b": "bundled", "w": "windowed"}
        case = drawing_of(int(args.case.lstrip("bw")), worlds.get(args.case[0], "tiny"))
        failures = play(case, print, stop_on_error=True).mismatches
    else:
        sizes = {world: getattr(args, world) for world in SIZES}
        told = run_suite(sizes, first=args.first, controls=CONTROLS if args.controls else ())
        args.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(told, indent=1))
        if not told["complete"]:
            return 130
        failures = told["failures"]
    print("\n".join([*failures, f"{len(failures)} failures"]) if failures else "Everything is as it must be.")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
