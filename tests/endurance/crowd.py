"""Many pages at once: 200 tabs while one is answered, and 50 files dropped together.

python -m tests.endurance.crowd --tabs 200 --files 50 --json F
"""

import random
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from tests.endurance.person import Ledger, Person
from tests.endurance.program import Program
from tests.endurance.report import options, tell
from tests.endurance.soak import measure
from tests.endurance.tab import Tab

AT_ONCE = 20  # tabs that arrive together; all stay


@dataclass(slots=True)
class Crowd:
    """What was seen. Times in seconds."""

    tabs: int
    files: int
    entered: list[float] = field(default_factory=list)  # how long each tab took to see the page's state
    answers: int = 0  # written to their end meanwhile
    files_seconds: float = 0.0
    files_in_library: int = 0
    rss_before: int = 0
    rss_after: int = 0
    failures: list[str] = field(default_factory=list)


def run(tabs: int, files: int, place: Path) -> Crowd:
    """Both parts, one after the other, on one program."""
    program, crowd, ledger = Program(place / "data"), Crowd(tabs, files), Ledger()
    program.wait()
    reader = Person(program.address, ledger, random.Random(0), place / "files", "reader")
    book = place / "files" / "book.txt"
    book.write_text("Mary lost the brass kettle in March. " * 40, encoding="utf-8")
    reader.open_files(book)
    crowd.rss_before = measure(program, 0.0).rss_bytes
    visit(program, crowd, reader)
    crowd.answers = len(ledger.answered)
    if not crowd.answers:
        crowd.failures.append("the reader got no answer among the tabs")
    drop(crowd, reader, place)
    crowd.rss_after = measure(program, 0.0).rss_bytes
    crowd.failures += [f"hang: {what}" for what in ledger.hangs]
    if not program.alive or not program.serves():
        crowd.failures.append("the app is gone")
    reader.tab.close()
    program.end()
    crowd.failures += program.faults()
    return crowd


def visit(program: Program, crowd: Crowd, reader: Person) -> None:
    """All tabs come and stay, while the reader goes on asking."""
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            reader.ask()

    def come(number: int) -> Tab | None:
        started = time.monotonic()
        try:
            tab = Tab(program.address)
        except Exception as error:
            crowd.failures.append(f"tab {number}: {error!r}")
            return None
        crowd.entered.append(time.monotonic() - started)
        return tab

    asking = threading.Thread(target=ask)
    asking.start()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        tabs = [tab for tab in pool.map(come, range(crowd.tabs)) if tab is not None]
    done.set()
    asking.join()
    for tab in tabs:
        tab.settle()  # it still hears of its page
        tab.close()


def drop(crowd: Crowd, reader: Person, place: Path) -> None:
    """Many files in one go."""
    folder = place / "many"
    folder.mkdir()
    for number in range(crowd.files):
        (folder / f"{number}.txt").write_text(f"Letter {number} tells of a lantern. " * 20, encoding="utf-8")
    reader.start_over()
    started = time.monotonic()
    reader.open_files(*sorted(folder.iterdir()))
    crowd.files_seconds = time.monotonic() - started
    shown = reader.tab.settle()["book"]
    crowd.files_in_library = crowd.files if f"{crowd.files} documents" in shown else 0
    if crowd.files_in_library != crowd.files:
        crowd.failures.append(f"the card does not show {crowd.files} documents")


def main(argv: list[str]) -> int:
    """Returns 1 if anything failed."""
    args = options(__doc__, argv, tabs=200, files=50)
    with tempfile.TemporaryDirectory() as place:
        crowd = run(args.tabs, args.files, Path(place))
    rows = {
        "tabs that came": f"{len(crowd.entered)} of {crowd.tabs}, {AT_ONCE} at a time",
        "until one saw its page": f"{median(crowd.entered):.1f} s, at most {max(crowd.entered):.1f} s",
        "answers meanwhile": crowd.answers,
        "files dropped together": f"{crowd.files_in_library} of {crowd.files} open, {crowd.files_seconds:.1f} s",
        "memory": f"{crowd.rss_before >> 20:,} MiB before, {crowd.rss_after >> 20:,} MiB after",
    }
    return tell("crowd", args, rows, crowd.failures, asdict(crowd))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
