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
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from app.runtime.sessions import MOST_SESSIONS
from tests.endurance.kills import Found, look
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


def main(argv: list[str]) -> int:
    """Returns 1 if anything crashed, hung, was lost or grew."""
    args = options(__doc__, argv, minutes=120.0, people=6, seed=0)
    with tempfile.TemporaryDirectory() as place:
        soak, ledger, found = run(args.minutes, args.people, args.seed, Path(place))
    then, now = (
        {what: soak.middle(what, end=end) for what in ("rss_bytes", "threads", "files")} for end in (False, True)
    )
    rows = {
        "minutes, people": f"{soak.minutes:g}, {soak.people}",
        "acts": f"{sum(ledger.acts.values()):,}",
        "of them": ", ".join(f"{what} {count}" for what, count in ledger.acts.most_common()),
        "answers told to the end": len(ledger.answered),
        "answers lost": len(found.lost),
        "answers doubled": len(found.doubled),
        "files damaged": len(found.damaged),
        "hangs": len(ledger.hangs),
        "crashes and faults": len(soak.crashes),
        "memory": f"{now['rss_bytes'] / (1 << 20):,.0f} MiB, {soak.growth:+.1%} since the warm-up",
        "threads": f"{then['threads']:.0f} then {now['threads']:.0f}",
        "open files": f"{then['files']:.0f} then {now['files']:.0f}",
    }
    seen = asdict(soak) | {"seed": args.seed, "acts": ledger.acts, "refused": ledger.refused}
    seen |= {"answered": len(ledger.answered), "memory_growth": soak.growth}
    return tell("soak", args, rows, soak.failures(ledger, found), seen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
