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
from collections import Counter, deque
from contextlib import suppress
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
    """What lies on disk, and each fault, which begins with what it is."""

    conversations: int = 0
    books: int = 0
    answers: int = 0  # that were told to the end
    faults: dict[str, None] = field(default_factory=dict)  # each once, in order

    def look(self, folder: Path, ledger: Ledger, until: float) -> None:
        """Read everything that is on disk; what was told by then must be there."""
        asked: dict[str, set[tuple[str, str]]] = {}  # where each question stands: answers to it are of one parent
        store = Conversations(folder / "conversations")
        listing = store.listing()
        faults = [f"damaged: {notice}" for notice in listing.notices]
        for one in listing.summaries:
            for node in store.open(one.id).nodes:
                if node.exchange is not None:
                    asked.setdefault(node.question, set()).add((one.id, node.parent))
        store.close()
        books = sorted(folder.glob(f"shelf/*{SUFFIX}"))
        for file in books:
            try:
                reader = BookReader(file)
                deque(reader.read(), maxlen=0)
                reader.close()
            except Exception as error:
                faults.append(f"damaged: {file.name}: {error!r}")
        with ledger.lock:
            sure = {question for question, when in ledger.answered.items() if when < until - SETTLED_SECONDS}
        faults += [f"lost: {question}" for question in sorted(sure - asked.keys())]
        faults += [f"doubled: {question}" for question, places in asked.items() if len(places) > 1]
        self.faults |= dict.fromkeys(faults)
        self.conversations, self.books, self.answers = len(listing.summaries), len(books), len(sure)


def run(number: int, folder: Path, seed: int, minutes: float) -> tuple[Found, Counter[str]]:
    """`number` kills, fewer if `minutes` are over. What was found, and what was going on at each."""
    rng, ledger, found, during = random.Random(seed), Ledger(), Found(), Counter[str]()
    deadline = time.monotonic() + 60 * minutes
    while during.total() < number and time.monotonic() < deadline:
        program = Program(folder)
        doing = use(program, folder, rng, ledger, f"run {during.total()}")
        killed, ended = time.monotonic(), not program.alive
        faults = [f"it had ended by itself: {program.printed()[-500:]}"] if ended else []
        faults += [f"lives on: {process.pid}, {doing}" for process in program.kill()]
        during[doing] += 1
        found.faults |= dict.fromkeys(faults)
        found.look(folder, ledger, killed)
        print(f"{during.total()}/{number} {doing}, {len(found.faults)} faults", file=sys.stderr)
    last = Program(folder)
    last.wait()
    time.sleep(SETTLED_SECONDS * 5)  # Ctrl+C after the start, not amid it
    code, printed = last.end(), last.printed()[-500:]
    left = [*folder.rglob("*.part"), *folder.glob("conversations/*.damaged"), *folder.glob("uploads/**/*")]
    faults = [f"left: {file.relative_to(folder)}" for file in left if file.is_file()] + last.faults()
    faults += [f"the last end, exit {code}: {printed}"] if code not in (0, 130) else []  # 130: while it still started
    found.faults |= dict.fromkeys(faults)
    return found, during


def use(program: Program, folder: Path, rng: random.Random, ledger: Ledger, name: str) -> str:
    """Use it for some seconds, or watch it start; what is going on at the end."""
    seconds = rng.uniform(0.0, MOST_SECONDS)
    if rng.random() < 0.1:
        time.sleep(rng.uniform(0.0, 4.0))
        return "starting"
    program.wait()
    person, arrived = list[Person](), threading.Event()
    has_book = rng.random() < 0.7  # the model is loaded by then, and questions are answered

    def act() -> None:
        files = folder.with_name("files")
        with suppress(Exception), Person(program.address, ledger, rng, files, name) as one:  # until the app is gone
            person.append(one)
            if has_book:
                one.open_text()
            arrived.set()
            while True:
                one.act()

    threading.Thread(target=act, daemon=True).start()
    if rng.random() < 0.9:  # else perhaps amid the arrival
        arrived.wait(START_SECONDS)
    time.sleep(seconds)
    return person[0].doing if person else "arriving"


def main(argv: list[str]) -> int:
    """Returns 1 if anything was lost, damaged or left behind."""
    args = options(__doc__, argv, kills=200, minutes=60.0, seed=0)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        found, during = run(args.kills, Path(place) / "data", args.seed, args.minutes)
    rows = {
        "kills": during.total(),
        "while": ", ".join(f"{what} {count}" for what, count in during.most_common()),
        "conversations on disk": found.conversations,
        "answers told to the end": found.answers,
        "books on disk": found.books,
    }
    seen = asdict(found) | {"kills": during.total(), "during": dict(during), "seed": args.seed}
    return tell("kills", args, rows, [*found.faults], seen | {"seconds": round(time.monotonic() - started)})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
