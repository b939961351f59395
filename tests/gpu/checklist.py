"""One call for the day a GPU is there: what only a GPU can tell, step by step, into files.

    python -m tests.gpu.checklist --out DIR [--minutes 25] [--steps load+suite,big] [--real DIR --text FILE] [--tiny]

Steps run in the order of their worth, each in a process of its own, so that a crash, a hang or a device that is lost
takes nothing else with it; `a+b` are two steps side by side, for those whose times do not matter. A step writes
DIR/NAME.json after each of its parts, an error with its traceback too; DIR/summary.json, written again after every
step, has the hardware, versions, commit and the results of all steps in DIR, earlier calls' too. The budget of minutes
decides what is skipped, by name. `--tiny` rehearses on a processor: the same code on small sizes, and "not on a
processor" where only CUDA can be asked. Needs the project and what it needs; pytest for one step, bitsandbytes for
another, where they are installed.

Figures are committed as assets/results/gpu-*.json by whoever runs this. It exits with 1 where a step failed.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parents[2]
TINY_MINUTES = 4.0  # that any step may take on a processor, on a busy machine
GRACE = 2.0  # a step may take so many times its estimate
LEAST_MINUTES = 1.0  # to start and import, whatever is measured
LOG = 4000  # characters of a step's log that are kept where it failed


@dataclass(frozen=True, slots=True)
class Options:
    tiny: bool = False  # sizes
    more: bool = False  # parts that take longer and decide less
    real: str = ""  # a model's folder or GGUF file, or a folder with a target and a draft
    text: str = ""  # a text file that the real model reads
    commit: str = ""


class Report:
    """The results of one step, on disk as soon as they are there."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path, self.started = path, time.perf_counter()
        self.content: dict[str, Any] = {**about, "status": "running", "results": {}}
        self._write()

    def add(self, name: str, value: object) -> None:
        """One more result; of the same name, the newest counts."""
        self.content["results"][name] = value
        self._write()

    def end(self, status: str, **more: object) -> None:
        self.content |= {"status": status, **more}
        self._write()

    def _write(self) -> None:
        self.content["seconds"] = round(time.perf_counter() - self.started, 2)
        write_json(self.path, self.content)


@dataclass(frozen=True)
class Here:
    options: Options
    cuda: bool
    report: Report

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        return "cuda" if self.cuda else "cpu"

    def sized(self, real: Any, tiny: Any) -> Any:
        return tiny if self.options.tiny else real


@dataclass(frozen=True)
class Step:
    name: str
    minutes: float  # an estimate, on an H200
    module: str  # of tests.gpu, imported only where the step runs: its function has the step's name

    def run(self, here: Here) -> None:
        module = __import__(f"tests.gpu.{self.module}", fromlist=[self.name])
        function: Callable[[Here], None] = getattr(module, self.name)
        function(here)


STEPS = (
    Step("versions", 1.5, "machine"),
    Step("load", 0.5, "texts"),
    Step("suite", 1.0, "machine"),
    Step("big", 2.2, "shapes"),
    Step("in_bits", 2.2, "shapes"),
    Step("races", 1.0, "passes"),
    Step("real", 3.0, "texts"),
    Step("two", 1.5, "texts"),
    Step("sanitizer", 0.7, "passes"),
    Step("graphs", 0.5, "passes"),
    Step("waits", 1.0, "passes"),
    Step("resident", 2.0, "shapes"),
    Step("attention", 0.4, "kernels"),
    Step("products", 0.7, "kernels"),
    Step("pinning", 1.0, "kernels"),
    Step("bits", 1.5, "texts"),
)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    part = path.with_suffix(f".part{os.getpid()}")
    part.write_text(json.dumps(content, indent=1, default=_plain) + "\n", encoding="utf-8")
    part.replace(path)


def _plain(value: object) -> object:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def read_json(path: Path) -> dict[str, Any]:
    """What a step left; empty if it left nothing."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def commit() -> str:
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def about(step: Step, options: Options) -> dict[str, Any]:
    """What stands in a step's file before any result."""
    return {"step": step.name, "tiny": options.tiny, "commit": options.commit or commit()}


def run_step(step: Step, out: Path, options: Options) -> int:
    """Run one step in this process; whatever goes wrong is written down."""
    report = Report(out / f"{step.name}.json", about(step, options))
    try:
        step.run(Here(options, not options.tiny, report))
    except BaseException as error:
        report.end("failed", error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc()[-LOG:])
        return 1
    report.end("done")
    return 0


def command_of(step: Step, out: Path, options: Options) -> list[str]:
    command = [sys.executable, "-m", "tests.gpu.checklist", "--step", step.name, "--out", str(out)]
    told = {name: value for name, value in asdict(options).items() if value}
    return command + [f"--{name}" if value is True else f"--{name}={value}" for name, value in told.items()]


def spawn(step: Step, out: Path, minutes: float, options: Options) -> dict[str, Any]:
    """Run one step in a process of its own, at most so long; returns what its file says in the end."""
    file, started = out / f"{step.name}.json", time.perf_counter()
    file.unlink(missing_ok=True)
    with (out / f"{step.name}.log").open("wb") as log:
        process = subprocess.Popen(
            command_of(step, out, options), cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code, late = process.wait(60 * minutes), False
        except subprocess.TimeoutExpired:
            end = partial(os.killpg, process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill
            end()  # with the processes that it has started
            code, late = process.wait(), True
    content = read_json(file) or {**about(step, options), "results": {}}
    if late:
        content |= {"status": "late", "error": f"stopped after {minutes:.1f} minutes"}
    elif content.get("status") not in ("done", "failed"):
        content |= {"status": "crashed", "error": f"the process ended with code {code}"}
    if content["status"] != "done":
        content["log"] = (out / f"{step.name}.log").read_text(encoding="utf-8", errors="replace")[-LOG:]
    content["seconds"] = round(time.perf_counter() - started, 1)
    write_json(file, content)
    return content


def summary_of(out: Path, skipped: Sequence[str], seconds: float) -> dict[str, Any]:
    """All that lies in a folder, of earlier calls too."""
    steps = {step.name: found for step in STEPS if (found := read_json(out / f"{step.name}.json"))}
    return {
        "commit": sorted({found["commit"] for found in steps.values()}),
        "hardware": steps.get("versions", {}).get("results", {}),
        "seconds": round(seconds, 1),  # of the newest call
        "skipped": [name for name in skipped if name not in steps],
        "failed": [name for name, found in steps.items() if found["status"] not in ("done", "running")],
        "steps": {name: found for name, found in steps.items() if name != "versions"},
    }


def run_all(groups: Sequence[Sequence[Step]], out: Path, minutes: float, options: Options) -> dict[str, Any]:
    """Run what fits into the budget, the steps of a group side by side; the summary, and which of these failed."""
    started, skipped, failed = time.perf_counter(), list[str](), list[str]()
    for group in groups:
        left = minutes - (time.perf_counter() - started) / 60
        fitting = [step for step in group if left >= (LEAST_MINUTES if options.tiny else step.minutes)]
        for step in group:
            if step not in fitting:
                skipped.append(step.name)
                print(f"{step.name}: skipped, {left:.1f} minutes are left", flush=True)

        def run(step: Step, left: float = left) -> dict[str, Any]:
            longest = TINY_MINUTES if options.tiny else max(LEAST_MINUTES, GRACE * step.minutes)
            return spawn(step, out, min(left, longest), options)

        with ThreadPoolExecutor(max(1, len(fitting))) as pool:
            for step, content in zip(fitting, pool.map(run, fitting), strict=True):
                error = f": {content['error']}" if "error" in content else ""
                print(f"{step.name}: {content['status']} in {content['seconds']} s{error}", flush=True)
                failed += [step.name] if content["status"] != "done" else []
        write_json(out / "summary.json", summary_of(out, skipped, time.perf_counter() - started))
    return {**read_json(out / "summary.json"), "failed now": failed}


def main(arguments: Sequence[str] | None = None) -> int:
    by_name = {step.name: step for step in STEPS}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    parser.add_argument("--minutes", type=float, default=25.0, help="budget; what does not fit is skipped")
    parser.add_argument(
        "--steps", default=",".join(by_name), help=f"in this order, a+b side by side: {', '.join(by_name)}"
    )
    parser.add_argument("--tiny", action="store_true", help="rehearse on a processor")
    parser.add_argument("--more", action="store_true", help="parts that take longer and decide less, too")
    parser.add_argument("--real", default="", metavar="DIR", help="a model, or a folder with a target and a draft")
    parser.add_argument(
        "--text", default="", metavar="FILE", help="what the real model reads (default: a generated book)"
    )
    parser.add_argument("--commit", default="", help="the revision that runs, where git does not know it")
    parser.add_argument("--step", choices=by_name, help=argparse.SUPPRESS)  # one, in this process
    given = parser.parse_args(arguments)
    paths = [str(Path(path).resolve()) if path else "" for path in (given.real, given.text)]
    options, out = Options(given.tiny, given.more, *paths, given.commit), given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if given.step:
        return run_step(by_name[given.step], out, options)
    names = [group.split("+") for group in given.steps.split(",")]
    if unknown := sorted({name for group in names for name in group} - set(by_name)):
        parser.error(f"no such step: {', '.join(unknown)}")
    found = run_all([[by_name[name] for name in group] for group in names], out, given.minutes, options)
    return 1 if found["failed now"] else 0


if __name__ == "__main__":
    sys.exit(main())
