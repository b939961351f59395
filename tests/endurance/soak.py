"""Several people use the app at random for a long time: nothing crashes, hangs, is lost, or grows.

    python -m tests.endurance.soak --minutes 120 --people 6 --json F

They upload good and bad files, ask, stop, walk away, race, reload and send what no page sends. Before the time begins
more pages than the app remembers are opened, so that what it keeps of pages is at its bounds. Memory is compared
between the time after a warm-up and the end, by medians; threads and open files likewise.
"""

import math
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import psutil

from app.runtime.sessions import MOST_SESSIONS
from tests.endurance.kills import Found
from tests.endurance.person import Ledger, Person
from tests.endurance.program import Program
from tests.endurance.report import options, tell

SAMPLE_SECONDS = 5.0
WARM_UP, TAIL = 0.2, 0.2  # shares of the time
FILL = 1.1  # times the pages that the app remembers come before the time begins
MOST_GROWTH = 0.02
MOST_MORE = 8  # threads or open files: what a few requests under way need


@dataclass(frozen=True, slots=True)
class Sample:
    seconds: float
    rss_bytes: int
    threads: int
    files: int


@dataclass(slots=True)
class Soak:
    samples: list[Sample] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def middle(self, what: str, *, end: bool) -> float:
        """The median after the warm-up, or at the end."""
        total = self.samples[-1].seconds
        start, stop = (1 - TAIL, 1.0) if end else (WARM_UP, WARM_UP + TAIL)
        chosen = [sample for sample in self.samples if start * total <= sample.seconds <= stop * total]
        return float(statistics.median(getattr(sample, what) for sample in chosen))

    @property
    def growth(self) -> float:
        """Of resident memory after the warm-up, as a share."""
        return self.middle("rss_bytes", end=True) / self.middle("rss_bytes", end=False) - 1

    def growths(self) -> list[str]:
        told = [f"memory grew by {self.growth:.1%} after the warm-up"] if self.growth > MOST_GROWTH else []
        for what in ("threads", "files"):
            more = self.middle(what, end=True) - self.middle(what, end=False)
            told += [f"{more:.0f} more {what} at the end than after the warm-up"] if more > MOST_MORE else []
        return told


def run(minutes: float, people: int, seed: int, place: Path, *, filled: bool = True) -> tuple[Soak, Ledger]:
    """The whole soak; without `filled` it begins with no page. Its faults are those of the ledger and the disk, too."""
    soak, ledger, found, stop = Soak(), Ledger(), Found(), threading.Event()
    program = Program(place / "data")
    program.wait()

    def visit(name: str, rng: random.Random, folder: Path, acts: Callable[[Person], None]) -> None:
        try:
            with Person(program.address, ledger, rng, folder, name) as person:
                acts(person)
        except Exception as error:
            if program.alive:
                soak.faults.append(f"{name}: {error!r}")

    def come(number: int, *, before: bool) -> None:
        """One after the other: before the time begins so many that do each thing once, then while it lasts."""
        rng, visits = random.Random(f"{seed} {number} {before}"), 0
        while program.alive and (visits < FILL * MOST_SESSIONS / people if before else not stop.is_set()):
            visits += 1
            acts = each_thing_once if before else partial(anything, rng, stop)
            visit(f"{number}.{visits}, before {before}", rng, place / f"files {number}", acts)

    def all_come(*, before: bool) -> list[threading.Thread]:
        threads = [threading.Thread(target=partial(come, number, before=before)) for number in range(people)]
        for thread in threads:
            thread.start()
        return threads

    for thread in all_come(before=True) if filled else ():
        thread.join()
    threads, started = all_come(before=False), time.monotonic()
    while time.monotonic() < started + 60 * minutes and program.alive:
        soak.samples.append(measure(program, time.monotonic() - started))
        stop.wait(SAMPLE_SECONDS)
    stop.set()
    for thread in threads:
        thread.join(600)
    if not program.alive or not program.serves():
        soak.faults.append(f"the page cannot be had any more: {program.printed()[-4000:]}")
    program.end()
    found.look(place / "data", ledger, math.inf)
    soak.faults += [*program.faults(), *ledger.faults, *found.faults]
    return soak, ledger


def each_thing_once(person: Person) -> None:
    """Leave on a page all that the app keeps of pages."""
    for act in (person.open, person.ask, person.race, person.regenerate, person.look_around, person.new_conversation):
        act()
    person.start_over()
    person.wrong_input()


def anything(rng: random.Random, stop: threading.Event, person: Person) -> None:
    """A visit; then the person leaves for good."""
    for _ in range(rng.randrange(5, 60)):
        if not stop.is_set():
            person.act()


def measure(program: Program, seconds: float) -> Sample:
    rss = threads = files = 0
    for process in (psutil.Process(program.process.pid), *program.children()):
        with suppress(psutil.Error), process.oneshot():  # a parser that has just ended
            rss += process.memory_info().rss
            threads += process.num_threads()
            files += process.num_fds() if hasattr(process, "num_fds") else process.num_handles()
    return Sample(round(seconds, 1), rss, threads, files)


def main(argv: list[str]) -> int:
    """Returns 1 if anything crashed, hung, was lost or grew."""
    args = options(__doc__, argv, minutes=120.0, people=6, seed=0)
    with tempfile.TemporaryDirectory() as place:
        soak, ledger = run(args.minutes, args.people, args.seed, Path(place))
    memory, threads, files = (
        [soak.middle(what, end=end) for end in (False, True)] for what in ("rss_bytes", "threads", "files")
    )
    rows = {
        "minutes, people": f"{args.minutes:g}, {args.people}",
        "acts": f"{ledger.acts.total():,}",
        "of them": ", ".join(f"{what} {count}" for what, count in ledger.acts.most_common()),
        "answers told to the end": len(ledger.answered),
        "memory": f"{memory[1] / (1 << 20):,.0f} MiB, {soak.growth:+.1%} since the warm-up",
        "threads": f"{threads[0]:.0f} then {threads[1]:.0f}",
        "open files": f"{files[0]:.0f} then {files[1]:.0f}",
    }
    seen = asdict(soak) | vars(args) | {"acts": ledger.acts, "refused": ledger.refused}
    seen |= {"answered": len(ledger.answered), "memory_growth": soak.growth}
    return tell("soak", args, rows, [*soak.faults, *soak.growths()], seen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
