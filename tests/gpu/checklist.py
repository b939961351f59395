"""One call for the day a GPU is there: what only a GPU can tell, step by step, into files.

    python -m tests.gpu.checklist --minutes 25 --out DIR [--steps load,big] [--tiny]

Steps run in the order of their worth, each in a process of its own, so that a crash, a hang or a device that is lost
takes nothing else with it. A step writes DIR/NAME.json after each of its parts, an error with its traceback too;
DIR/summary.json, written again after every step, has the hardware, versions, commit and all steps' results. The budget
of minutes decides what is skipped, by name. `--tiny` rehearses on a processor: the same code on small sizes, and "not
on a processor" where only CUDA can be asked. Needs the project and what it needs; pytest for one step, bitsandbytes for
another, where they are installed.

Figures are committed as assets/results/gpu-*.json by whoever runs this. It exits with 1 where a step failed.
"""

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parents[2]
TINY_MINUTES = 4.0  # that any step may take on a processor, on a busy machine
GRACE = 2.0  # a step may take so many times its estimate
LEAST_MINUTES = 1.0  # to start and import, whatever is measured


class Report:
    """The results of one step, on disk as soon as they are there."""

    def __init__(self, path: Path, name: str, *, tiny: bool) -> None:
        self.path, self.started = path, time.perf_counter()
        self.content: dict[str, Any] = {"step": name, "tiny": tiny, "status": "running", "results": {}}
        self._write()

    def add(self, name: str, value: object) -> None:
        """One more result; of the same name, the newest counts."""
        self.content["results"][name] = value
        self._write()

    def end(self, status: str, **more: object) -> None:
        """The step is over."""
        self.content |= {"status": status, **more}
        self._write()

    def _write(self) -> None:
        self.content["seconds"] = round(time.perf_counter() - self.started, 2)
        write_json(self.path, self.content)


@dataclass(frozen=True)
class Here:
    """Where a step runs, and whom it tells."""

    tiny: bool  # sizes
    cuda: bool
    report: Report

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """Where it computes."""
        return "cuda" if self.cuda else "cpu"

    def sized(self, real: Any, tiny: Any) -> Any:
        """The size for this machine."""
        return tiny if self.tiny else real


@dataclass(frozen=True)
class Step:
    """One thing to find out."""

    name: str
    minutes: float  # an estimate, on an H200
    about: str
    module: str  # of tests.gpu, imported only where the step runs: its function has the step's name

    def run(self, here: Here) -> None:
        """Do it, in this process."""
        module = __import__(f"tests.gpu.{self.module}", fromlist=[self.name])
        function: Callable[[Here], None] = getattr(module, self.name)
        function(here)


STEPS = (
    Step("versions", 0.3, "driver, versions, link, memory", "machine"),
    Step("load", 1.0, "the bundled pair answers on the GPU as on the processor", "texts"),
    Step("suite", 2.5, "the tests that are marked gpu", "machine"),
    Step("graphs", 1.0, "what recording costs, and what it leaves behind", "passes"),
    Step("big", 6.0, "Llama2-7B's shape with its cache in host memory, 128K and 64K", "shapes"),
    Step("resident", 2.5, "the same shape at 32K on the device, recorded against recorded", "shapes"),
    Step("attention", 1.5, "few rows against many keys: time, bandwidth, kernels", "kernels"),
    Step("pinning", 2.0, "pinning gigabytes, and what the link carries from there", "kernels"),
    Step("races", 1.5, "random delays on both streams change no text", "passes"),
    Step("waits", 1.0, "how often the processor waits for the device, and where", "passes"),
    Step("halves", 3.0, "16-bit texts against float32 ones at 32K and 120K", "texts"),
    Step("bits", 1.5, "weights of 8 and 4 bits", "texts"),
)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file whole."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1, default=_plain) + "\n", encoding="utf-8")
    part.replace(path)


def _plain(value: object) -> object:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def read_json(path: Path) -> dict[str, Any]:
    """What a step left; empty if it left nothing."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def commit() -> str:
    """The revision that runs, or unknown."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def run_step(step: Step, out: Path, *, tiny: bool) -> int:
    """Run one step in this process; whatever goes wrong is written down."""
    report = Report(out / f"{step.name}.json", step.name, tiny=tiny)
    try:
        step.run(Here(tiny, not tiny, report))
    except BaseException as error:
        report.end("failed", error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
        return 1
    report.end("done")
    return 0


def command_of(step: Step, out: Path, *, tiny: bool) -> list[str]:
    """What runs one step."""
    command = [sys.executable, "-m", "tests.gpu.checklist", "--step", step.name, "--out", str(out)]
    return [*command, "--tiny"] if tiny else command


def spawn(step: Step, out: Path, minutes: float, *, tiny: bool) -> dict[str, Any]:
    """Run one step in a process of its own, at most so long; returns what its file says in the end."""
    file, started = out / f"{step.name}.json", time.perf_counter()
    file.unlink(missing_ok=True)
    with (out / f"{step.name}.log").open("wb") as log:
        process = subprocess.Popen(
            command_of(step, out, tiny=tiny), cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code, late = process.wait(60 * minutes), False
        except subprocess.TimeoutExpired:
            process.kill()
            code, late = process.wait(), True
    content = read_json(file) or {"step": step.name, "tiny": tiny, "results": {}}
    if late:
        content |= {"status": "late", "error": f"stopped after {minutes:.1f} minutes"}
    elif content.get("status") not in ("done", "failed"):
        tail = (out / f"{step.name}.log").read_text(encoding="utf-8", errors="replace")[-4000:]
        content |= {"status": "crashed", "error": f"the process ended with code {code}", "log": tail}
    content["seconds"] = round(time.perf_counter() - started, 1)
    write_json(file, content)
    return content


def run_all(steps: Sequence[Step], out: Path, minutes: float, *, tiny: bool) -> dict[str, Any]:
    """Run what fits into the budget; the summary."""
    started = time.perf_counter()
    done: dict[str, dict[str, Any]] = {}
    skipped: list[str] = []

    def summary() -> dict[str, Any]:
        return {
            "commit": commit(),
            "tiny": tiny,
            "hardware": done.get("versions", {}).get("results", {}),
            "seconds": round(time.perf_counter() - started, 1),
            "skipped": skipped,
            "failed": [name for name, content in done.items() if content["status"] != "done"],
            "steps": done,
        }

    for step in steps:
        left = minutes - (time.perf_counter() - started) / 60
        if left < (LEAST_MINUTES if tiny else step.minutes):
            skipped.append(step.name)
            print(f"{step.name}: skipped, {left:.1f} minutes are left", flush=True)
            continue
        longest = TINY_MINUTES if tiny else max(LEAST_MINUTES, GRACE * step.minutes)
        content = done[step.name] = spawn(step, out, min(left, longest), tiny=tiny)
        error = f": {content['error']}" if "error" in content else ""
        print(f"{step.name}: {content['status']} in {content['seconds']} s{error}", flush=True)
        write_json(out / "summary.json", summary())
    write_json(out / "summary.json", summary())
    return summary()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    parser.add_argument("--minutes", type=float, default=25.0, help="budget; what does not fit is skipped")
    parser.add_argument("--steps", default=",".join(names), help=f"some of {','.join(names)}, in this order")
    parser.add_argument("--tiny", action="store_true", help="rehearse on a processor")
    parser.add_argument("--step", choices=names, help=argparse.SUPPRESS)  # one, in this process
    given = parser.parse_args(arguments)
    by_name = {step.name: step for step in STEPS}
    out: Path = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if given.step:
        return run_step(by_name[given.step], out, tiny=given.tiny)
    wanted = given.steps.split(",")
    if unknown := sorted(set(wanted) - set(names)):
        parser.error(f"no such step: {', '.join(unknown)}")
    found = run_all([by_name[name] for name in wanted], out, given.minutes, tiny=given.tiny)
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
