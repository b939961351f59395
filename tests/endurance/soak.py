"""Several people use the app at random for a long time: nothing crashes, hangs, is lost, or grows.

    python -m tests.endurance.soak --minutes 120 --people 6 --json F

They upload good and bad files, ask, stop, walk away, race, reload and send what no page sends. Before the time begins
more pages than the app remembers are opened, so that what it keeps of pages is at its bounds. Memory is compared
between the time after a warm-up and the end, by medians; threads and open files likewise.
"""

import argparse
import datetime
import json
import math
import random
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from app.runtime.sessions import MOST_SESSIONS
from assets.tools.bench.report import commit
from core.planning.hardware import this_machine
from tests.endurance.kills import Found, look
from tests.endurance.person import Ledger, Person
from tests.endurance.program import Program

SAMPLE_SECONDS = 5.0
WARM_UP, TAIL = 0.2, 0.2  # shares of the time
FILL = 1.1  # times the pages that the app remembers come before the time begins
MOST_GROWTH = 0.02
MOST_MORE = 8  # threads or open files: what a few requests under way need


@dataclass(frozen=True, slots=True)
class Sample:
    """The app at one moment."""

    seconds: float
    rss_bytes: int
    threads: int
    files: int


@dataclass(slots=True)
class Soak:
    """What a run has shown."""

    people: int
    minutes: float
    samples: list[Sample] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)

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

    def failures(self, ledger: Ledger, found: Found) -> list[str]:
        """Whatever is not as it must be."""
        told = [*self.crashes, *(f"hang: {what}" for what in ledger.hangs), *found.damaged, *found.doubled]
        told += [f"a reload shows another conversation: {what}" for what in ledger.changed]
        told += [f"lost: {question}" for question in found.lost]
        if self.growth > MOST_GROWTH:
            told.append(f"memory grew by {self.growth:.1%} after the warm-up")
        for what in ("threads", "files"):
            more = self.middle(what, end=True) - self.middle(what, end=False)
            if more > MOST_MORE:
                told.append(f"{more:.0f} more {what} at the end than after the warm-up")
        return told


def run(minutes: float, people: int, seed: int, place: Path, *, filled: bool = True) -> tuple[Soak, Ledger, Found]:
    """The whole soak; without `filled` it begins with no page."""
    soak, ledger, found, stop = Soak(people, minutes), Ledger(), Found(), threading.Event()
    program = Program(place / "data")
    program.wait()
    threads = [
        threading.Thread(
            target=use, args=(program, ledger, random.Random(f"{seed} {number}"), place, number, stop, soak)
        )
        for number in range(people)
    ]
    if filled:
        fill(program, ledger, people, seed, place, soak)
    for thread in threads:
        thread.start()
    started = time.monotonic()
    while time.monotonic() < started + 60 * minutes and program.alive:
        soak.samples.append(measure(program, time.monotonic() - started))
        stop.wait(SAMPLE_SECONDS)
    stop.set()
    for thread in threads:
        thread.join(600)
    if not program.alive:
        soak.crashes.append(f"the app ended by itself: {program.tail()}")
    elif not program.serves():
        soak.crashes.append("the page cannot be had any more")
    program.end()
    look(place / "data", ledger, time.monotonic() + 2.0, found)
    soak.crashes += program.faults()
    return soak, ledger, found


def fill(program: Program, ledger: Ledger, people: int, seed: int, place: Path, soak: Soak) -> None:
    """As many people come, do each thing once and leave as the app remembers pages, and some more."""
    visits = math.ceil(FILL * MOST_SESSIONS / people)

    def come(number: int) -> None:
        rng = random.Random(f"{seed} {number} before")
        for visit in range(visits):
            try:
                person = Person(program.address, ledger, rng, place / f"files {number}", f"{number}.before {visit}")
                with person:
                    for act in (person.open, person.ask, person.race, person.regenerate, person.look_around):
                        act()
                    for act in (person.new_conversation, person.start_over, person.wrong_input):
                        act()
            except Exception as error:
                soak.crashes.append(f"person {number}, before: {error!r}")

    threads = [threading.Thread(target=come, args=(number,)) for number in range(people)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def use(
    program: Program, ledger: Ledger, rng: random.Random, place: Path, number: int, stop: threading.Event, soak: Soak
) -> None:
    """One person's time; now and then the person leaves for good and another one comes."""
    visits = 0
    while not stop.is_set() and program.alive:
        visits += 1
        try:
            person = Person(program.address, ledger, rng, place / f"files {number}", f"{number}.{visits}")
            with person:
                for _ in range(rng.randrange(5, 60)):
                    if stop.is_set():
                        break
                    person.act()
        except Exception as error:
            if program.alive:
                soak.crashes.append(f"person {number}: {error!r}")


def measure(program: Program, seconds: float) -> Sample:
    """Resident memory, threads and open files of the app and its children."""
    processes = [psutil.Process(program.process.pid), *program.children()]
    rss = threads = files = 0
    for process in processes:
        try:
            with process.oneshot():
                rss += process.memory_info().rss
                threads += process.num_threads()
                files += process.num_fds() if hasattr(process, "num_fds") else process.num_handles()
        except psutil.Error:  # a parser that has just ended
            continue
    return Sample(round(seconds, 1), rss, threads, files)


def table(soak: Soak, ledger: Ledger, found: Found) -> str:
    """What to print at the end."""
    mib = soak.middle("rss_bytes", end=True) / (1 << 20)
    rows: list[tuple[str, object]] = [
        ("minutes, people", f"{soak.minutes:g}, {soak.people}"),
        ("acts", f"{sum(ledger.acts.values()):,}"),
        ("of them", ", ".join(f"{what} {count}" for what, count in ledger.acts.most_common())),
        ("answers told to the end", len(ledger.answered)),
        ("answers lost", len(found.lost)),
        ("answers doubled", len(found.doubled)),
        ("files damaged", len(found.damaged)),
        ("hangs", len(ledger.hangs)),
        ("crashes and faults", len(soak.crashes)),
        ("memory", f"{mib:,.0f} MiB, {soak.growth:+.1%} since the warm-up"),
        ("threads", f"{soak.middle('threads', end=False):.0f} then {soak.middle('threads', end=True):.0f}"),
        ("open files", f"{soak.middle('files', end=False):.0f} then {soak.middle('files', end=True):.0f}"),
    ]
    return "\n".join(f"{name:<26}{value}" for name, value in rows)


def main(argv: list[str]) -> int:
    """Returns 1 if anything crashed, hung, was lost or grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--people", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as place:
        soak, ledger, found = run(args.minutes, args.people, args.seed, Path(place))
    failures = soak.failures(ledger, found)
    print(table(soak, ledger, found))
    for failure in failures[:20]:
        print("FAULT:", failure)
    if args.json:
        told: dict[str, Any] = {"command": "python -m tests.endurance.soak", "seed": args.seed, "commit": commit()}
        told |= {"date": str(datetime.date.today())}
        told |= {"machine": asdict(this_machine()), "minutes": args.minutes, "people": args.people}
        told |= {"acts": ledger.acts, "refused": ledger.refused, "answered": len(ledger.answered), "failures": failures}
        told |= {"memory_growth": soak.growth, "samples": [asdict(sample) for sample in soak.samples]}
        args.json.write_text(json.dumps(told, indent=1, default=str) + "\n", encoding="utf-8")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
