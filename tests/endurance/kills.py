"""Kill the app at random moments while somebody uses it, start it again on the same folder, and look what is left.

    python -m tests.endurance.kills --kills 200 --json F        at most --minutes 60

After each kill: every conversation and every book on disk is whole, every answer that was told to the end a second
before is there, and no process lives on. After the last start and a quiet end no draft and no upload is left.
"""

import random
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from app.conversations.store import Conversations
from core.kv_store.bookfile import SUFFIX, BookReader
from tests.endurance.person import Ledger, Person
from tests.endurance.program import START_SECONDS, Program
from tests.endurance.report import options, tell

SETTLED_SECONDS = 1.0  # an answer is on disk milliseconds after it was told
MOST_SECONDS = 8.0  # of use before a kill


@dataclass(slots=True)
class Found:
    """Everything the kills have shown."""

    kills: int = 0
    during: Counter[str] = field(default_factory=Counter)  # what was going on
    conversations: int = 0
    answers: int = 0
    books: int = 0
    damaged: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)  # questions that were asked once, and stand in two places
    processes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)  # left behind after the last start
    faults: list[str] = field(default_factory=list)

    @property
    def failures(self) -> list[str]:
        """Whatever is not as it must be."""
        return [*self.damaged, *self.lost, *self.doubled, *self.processes, *self.files, *self.faults]


def run(number: int, folder: Path, seed: int, minutes: float) -> Found:
    """`number` kills, fewer if `minutes` are over."""
    rng, ledger, found = random.Random(seed), Ledger(), Found()
    deadline = time.monotonic() + 60 * minutes
    while found.kills < number and time.monotonic() < deadline:
        one_kill(folder, rng, ledger, found)
        print(f"{found.kills}/{number} {found.during.most_common(1)} {len(found.failures)} faults", file=sys.stderr)
    last = Program(folder)
    last.wait()
    time.sleep(SETTLED_SECONDS * 5)  # Ctrl+C after the start, not amid it
    if (code := last.end()) not in (0, 130):  # 130: while it still started
        found.faults.append(f"the last end, exit {code}: {last.tail(500)}")
    left = [*folder.rglob("*.part"), *folder.glob("conversations/*.damaged"), *folder.glob("uploads/**/*")]
    found.faults += last.faults()
    found.files = [str(file.relative_to(folder)) for file in left if file.is_file()]
    return found


def one_kill(folder: Path, rng: random.Random, ledger: Ledger, found: Found) -> None:
    """Start, use, kill, look."""
    program, seconds = Program(folder), rng.uniform(0.0, MOST_SECONDS)
    doing = "starting"
    if rng.random() < 0.1:
        time.sleep(rng.uniform(0.0, 4.0))
    else:
        program.wait()
        person: list[Person] = []
        arrived = threading.Event()
        has_book = rng.random() < 0.7  # the model is loaded by then, and questions are answered

        def use() -> None:
            try:
                person.append(Person(program.address, ledger, rng, folder.with_name("files"), f"run {found.kills}"))
                if has_book:
                    person[0].open_text()
                arrived.set()
                while True:
                    person[0].act()
            except Exception:  # the app is gone
                return

        thread = threading.Thread(target=use, daemon=True)
        thread.start()
        if rng.random() < 0.9:  # else perhaps amid the arrival
            arrived.wait(START_SECONDS)
        time.sleep(seconds)
        doing = person[0].doing if person else "arriving"
    killed = time.monotonic()
    if not program.alive:
        found.faults.append(f"it had ended by itself: {program.tail(500)}")
    found.processes += [f"{doing}: {process.pid} lives on" for process in program.kill()]
    found.kills += 1
    found.during[doing] += 1
    look(folder, ledger, killed, found)


def look(folder: Path, ledger: Ledger, killed: float, found: Found) -> None:
    """Read everything that is on disk."""
    asked: dict[str, set[tuple[str, str]]] = {}  # where each question stands: answers to it are of one parent
    store = Conversations(folder / "conversations")
    listing = store.listing()
    found.damaged += listing.notices
    for one in listing.summaries:
        for node in store.open(one.id).nodes:
            if node.exchange is not None:
                asked.setdefault(node.question, set()).add((one.id, node.parent))
    store.close()
    books = sorted(folder.glob(f"shelf/*{SUFFIX}"))
    for file in books:
        try:
            reader = BookReader(file)
            for _ in reader.read():
                pass
            reader.close()
        except Exception as error:
            found.damaged.append(f"{file.name}: {error!r}")
    with ledger.lock:
        sure = {question for question, when in ledger.answered.items() if when < killed - SETTLED_SECONDS}
    missing = sure - asked.keys() - set(found.lost)
    found.doubled = [question for question, places in asked.items() if len(places) > 1]
    found.lost += sorted(missing)
    found.conversations, found.books, found.answers = len(listing.summaries), len(books), len(sure)


def main(argv: list[str]) -> int:
    """Returns 1 if anything was lost, damaged or left behind."""
    args = options(__doc__, argv, kills=200, minutes=60.0, seed=0)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        found = run(args.kills, Path(place) / "data", args.seed, args.minutes)
    rows = {
        "kills": found.kills,
        "while": ", ".join(f"{what} {count}" for what, count in found.during.most_common()),
        "conversations on disk": found.conversations,
        "answers told to the end": found.answers,
        "books on disk": found.books,
        "damaged": len(found.damaged),
        "answers lost": len(found.lost),
        "answers doubled": len(found.doubled),
        "processes left": len(found.processes),
        "files left": len(found.files),
        "other faults": len(found.faults),
    }
    seen = asdict(found) | {
        "during": dict(found.during),
        "seed": args.seed,
        "seconds": round(time.monotonic() - started),
    }
    return tell("kills", args, rows, found.failures, seen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
