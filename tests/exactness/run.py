"""Exactness under fire: random programs of everything a user may do, on tiny models and on the bundled pair.

    python launch.py test --long                    the whole suite and its table
    python -m tests.exactness.run --case 417        one case of the tiny models, step by step
    python -m tests.exactness.run --case b12        one of the bundled pair; w12: of models with windows

Greedy text must be plain decoding's to the last token; sampled text must pass the tests of `uniformity`. Engines with
one thing wrong must fail, or the suite measures nothing. Exit code 1 if anything is not as it must be.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from app.runtime.versions import versions
from assets.tools.bench.report import commit
from core.planning.hardware import this_machine
from tests.exactness.cases import World, draw_case
from tests.exactness.controls import CONTROLS, Control
from tests.exactness.playing import Outcome, play
from tests.exactness.uniformity import FALSE_ALARM, ChiSquare
from tests.exactness.worlds import bundled_world

TINY_CASES, BUNDLED_CASES, WINDOWED_CASES = 1000, 50, 200
LOW_ACCEPTANCE = 0.5
DEFAULT_JSON = Path(tempfile.gettempdir()) / "exactness.json"


@dataclass(frozen=True, slots=True)
class Detection:
    """What the suite has found in an engine with one thing wrong."""

    name: str
    by: str
    cases: int
    tokens: int
    found: float  # mismatches, or the smallest p-value
    detected: bool


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a run has found."""

    first: int
    complete: bool
    seconds: float
    worlds: dict[World, Outcome]
    tests: list[tuple[World, ChiSquare]]
    controls: list[Detection]

    @property
    def threshold(self) -> float:
        """p-value below which a test is an alarm: by Bonferroni, FALSE_ALARM for all of them."""
        return FALSE_ALARM / max(1, len(self.tests))

    @property
    def alarms(self) -> list[tuple[World, ChiSquare]]:
        return [(world, test) for world, test in self.tests if test.p_value < self.threshold]

    @property
    def failures(self) -> list[str]:
        """Whatever is not as it must be, in words."""
        found = [what for outcome in self.worlds.values() for what in outcome.mismatches]
        found += [f"{world} models, {test.name}: p = {test.p_value:.2g}" for world, test in self.alarms]
        return found + [f"not noticed: {control.name}" for control in self.controls if not control.detected]


def run_suite(
    tiny: int = TINY_CASES,
    bundled: int = BUNDLED_CASES,
    windowed: int = WINDOWED_CASES,
    *,
    first: int = 0,
    controls: Sequence[Control] = CONTROLS,
) -> Report:
    """Cases `first` and the following ones of all worlds, then the controls. Progress goes to stderr."""
    started = perf_counter()
    sizes: dict[World, int] = {"tiny": tiny, "bundled": bundled, "windowed": windowed}
    worlds: dict[World, Outcome] = {world: Outcome() for world, count in sizes.items() if count}
    detections: list[Detection] = []
    complete = True
    if bundled:
        bundled_world()  # what keeps it from loading is told at once
    try:
        for world, outcome in worlds.items():
            _play_all(world, first, sizes[world], outcome)
        for control in controls:
            detections.append(detect(control))
    except KeyboardInterrupt:
        complete = False
        _say("Interrupted: this is what was found so far.")
    tests = [(world, test) for world, outcome in worlds.items() for test in outcome.pool.tests()]
    return Report(first, complete, perf_counter() - started, worlds, tests, detections)


def _play_all(world: World, first: int, count: int, whole: Outcome) -> None:
    for number in range(first, first + count):
        one = play(draw_case(number, world))
        whole.merge(one)
        for what in one.mismatches:
            _say(what)
        if whole.cases % max(1, count // 20) == 0:
            _say(f"{world}: {whole.cases} of {count} cases, {whole.seconds:.0f} s, {len(whole.mismatches)} mismatches")


def detect(control: Control) -> Detection:
    """Play a control's cases on the engine with its error."""
    outcome = Outcome()
    with control.enter():
        for number in range(control.num_cases):
            outcome.merge(play(draw_case(number, control.world, control.flavour)))
    tests = outcome.pool.tests()
    found = min((test.p_value for test in tests), default=1.0)
    detected = found < FALSE_ALARM / max(1, len(tests))
    if control.by == "mismatches":
        found, detected = len(outcome.mismatches), bool(outcome.mismatches)
    _say(f"control: {control.name}: {'noticed' if detected else 'NOT NOTICED'}, {outcome.seconds:.0f} s")
    tokens = outcome.tokens["greedy"] + outcome.tokens["sampled"]
    return Detection(control.name, control.by, outcome.cases, tokens, found, detected)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# -------------------- telling


def table(report: Report) -> str:
    """The document of a report, for people: figures by world, then every test, control and failure."""
    told, lines = document(report), list[str]()

    def add(name: str, values: Sequence[Any]) -> None:
        if isinstance(values[0], Mapping):
            lines.append(name)
            for inner in dict.fromkeys(key for value in values for key in value):
                add(f"  {inner}", [value.get(inner, 0) for value in values])
            return
        numbers = [len(value) if isinstance(value, list) else value for value in values]
        texts = [f"{one:,.4g}" if isinstance(one, float) else str(one) for one in numbers]
        lines.append(f"{name:44}" + "".join(f"{text:>12}" for text in texts))

    rows = told["rows"]
    for name in rows[0] if rows else ():
        add(name.replace("_", " "), [row[name] for row in rows])
    lines += [
        "",
        f"{len(report.tests)} chi-square tests of sampled tokens; an exact engine fails one with a chance of "
        f"{FALSE_ALARM:.0e} in all, at p < {report.threshold:.1e}:",
        f"  {'':64}{'tokens':>8}{'chi-square':>12}{'freedom':>9}{'p':>10}",
    ]
    for one in told["tests"]:
        numbers = f"{one['tokens']:>8,}{one['chi_square']:>12.1f}{one['freedom']:>9}{one['p']:>10.2g}"
        lines.append(f"  {one['models'] + ': ' + one['name']:64}{numbers}")
    for one in told["controls"]:
        found = f"{one['found']:.2g} ({one['by']}), {one['cases']} cases, {one['tokens']:,} tokens"
        lines.append(f"  {one['name']:44}{found}, {'noticed' if one['detected'] else 'NOT NOTICED'}")
    failures = report.failures
    lines += ["", *failures, f"{len(failures)} failures" if failures else "Everything is as it must be."]
    return "\n".join(lines)


def low_share(acceptance: Sequence[float]) -> float:
    return sum(one < LOW_ACCEPTANCE for one in acceptance) / max(1, len(acceptance))


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))] if ordered else 0.0


def document(report: Report) -> dict[str, Any]:
    """All of a report, for programs."""
    return {
        "hardware": asdict(this_machine()),
        "versions": versions(),
        "commit": commit(),
        "config": {"suite": "exactness", "first_case": report.first, "false_alarm": FALSE_ALARM},
        "complete": report.complete,
        "seconds": round(report.seconds, 1),
        "rows": [
            {
                "models": world,
                "cases": outcome.cases,
                "seconds": round(outcome.seconds, 1),
                "cpu_seconds": round(outcome.cpu_seconds, 1),
                "engines": outcome.setups,
                "actions": outcome.actions,
                "answers_by_method": outcome.methods,
                "answers_by_ending": outcome.endings,
                "tokens": outcome.tokens,
                "near_ties": outcome.near_ties,
                "tokens_at_a_cut": outcome.at_a_cut,
                "largest_error_of_a_probability": outcome.worst_gap,
                "mismatches": outcome.mismatches,
                "level2_acceptance": {
                    "cases": len(outcome.acceptance),
                    "share_below_half": round(low_share(outcome.acceptance), 3),
                    "quantiles": {
                        str(q): round(quantile(outcome.acceptance, q), 3) for q in (0.1, 0.25, 0.5, 0.75, 0.9)
                    },
                },
            }
            for world, outcome in report.worlds.items()
        ],
        "alarm_below": report.threshold,
        "tests": [
            {
                "models": world,
                "name": test.name,
                "tokens": test.samples,
                "chi_square": round(test.statistic, 3),
                "freedom": test.freedom,
                "p": test.p_value,
            }
            for world, test in report.tests
        ],
        "controls": [asdict(control) for control in report.controls],
        "failures": report.failures,
    }


def main(argv: Sequence[str]) -> int:
    """Run what the command line says. Returns 0 if everything is as it must be, 1 if not, 130 if interrupted."""
    parser = argparse.ArgumentParser(
        prog="launch.py test --long", description="Exactness under fire.", allow_abbrev=False
    )
    parser.add_argument("--tiny", type=int, default=TINY_CASES, metavar="N", help="cases on tiny models")
    parser.add_argument("--bundled", type=int, default=BUNDLED_CASES, metavar="N", help="cases on the bundled pair")
    parser.add_argument(
        "--windowed", type=int, default=WINDOWED_CASES, metavar="N", help="cases on models with windows"
    )
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first case")
    parser.add_argument("--case", metavar="N|bN|wN", help="only this case, step by step; b: bundled, w: windows")
    parser.add_argument("--no-controls", dest="controls", action="store_false", help="leave out the negative controls")
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON, metavar="F", help=f"default: {DEFAULT_JSON}")
    args = parser.parse_args(argv)
    if args.case:
        return play_one(args.case)
    controls = CONTROLS if args.controls else ()
    report = run_suite(args.tiny, args.bundled, args.windowed, first=args.first, controls=controls)
    args.json.write_text(json.dumps(document(report), indent=1) + "\n", encoding="utf-8")
    print(table(report))
    return 130 if not report.complete else bool(report.failures)


def play_one(name: str) -> int:
    """One case, told as it is played."""
    worlds: dict[str, World] = {"b": "bundled", "w": "windowed"}
    case = draw_case(int(name.lstrip("bw")), worlds.get(name[0], "tiny"))
    print(case.setup)
    outcome = play(case, print, stop_on_error=True)
    print("\n".join(outcome.mismatches) or "Everything is as it must be.")
    return bool(outcome.mismatches)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
