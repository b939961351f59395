"""Many pages at once: 200 tabs while one is answered, and 50 files dropped together.

python -m tests.endurance.crowd --tabs 200 --files 50 --json F
"""

import random
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from tests.endurance.person import Ledger, Person
from tests.endurance.program import Program
from tests.endurance.report import options, tell
from tests.endurance.soak import measure
from tests.endurance.tab import Tab

AT_ONCE = 20  # tabs that arrive together; all stay


def visit(address: str, number: int, reader: Person) -> tuple[list[float], list[str]]:
    """All tabs come and stay, while the reader goes on asking: how long each took to see its page, and faults."""
    done, entered, faults = threading.Event(), list[float](), list[str]()

    def ask() -> None:
        while not done.is_set():
            reader.ask()

    def come(number: int) -> list[Tab]:
        started = time.monotonic()
        try:
            tab = Tab(address)
        except Exception as error:
            faults.append(f"tab {number}: {error!r}")
            return []
        entered.append(time.monotonic() - started)
        return [tab]

    asking = threading.Thread(target=ask)
    asking.start()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        tabs = [tab for came in pool.map(come, range(number)) for tab in came]
    done.set()
    asking.join()
    for tab in tabs:
        tab.settle()  # it still hears of its page
        tab.close()
    return entered, faults


def main(argv: list[str]) -> int:
    """Both parts, one after the other, on one program. Returns 1 if anything failed."""
    args, ledger = options(__doc__, argv, tabs=200, files=50), Ledger()
    with tempfile.TemporaryDirectory() as folder:
        place, many = Path(folder), Path(folder) / "many"
        program = Program(place / "data")
        program.wait()
        with Person(program.address, ledger, random.Random(0), place / "files", "reader") as reader:
            reader.open_text()
            before = measure(program, 0.0)
            entered, faults = visit(program.address, args.tabs, reader)
            many.mkdir()
            for number in range(args.files):
                text = f"Letter {number} tells of a lantern. " * 20
                (many / f"{number}.txt").write_text(text, encoding="utf-8")
            reader.start_over()
            started = time.monotonic()
            reader.open_files(*sorted(many.iterdir()))
            seconds, shown = time.monotonic() - started, reader.tab.settle()["book"]
            after = measure(program, 0.0)
        faults += [] if ledger.answered else ["the reader got no answer among the tabs"]
        faults += [] if f"{args.files} documents" in shown else [f"the card does not show {args.files} documents"]
        faults += [] if program.alive and program.serves() else ["the app is gone"]
        program.end()
        faults += [*ledger.faults, *program.faults()]
    rows = {
        "tabs that came": f"{len(entered)} of {args.tabs}, {AT_ONCE} at a time",
        "until one saw its page": f"{median(entered):.1f} s, at most {max(entered):.1f} s",
        "answers meanwhile": len(ledger.answered),
        "files dropped together": f"{args.files}, {seconds:.1f} s",
        "memory": f"{before.rss_bytes >> 20:,} MiB before, {after.rss_bytes >> 20:,} MiB after",
    }
    return tell("crowd", args, rows, faults, rows | {"entered": entered})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
