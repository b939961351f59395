"""How long reading a large text in the app's own process keeps its other threads waiting.

    python -m tests.hostile.stalls 60000000     texts of so many characters; prints the longest wait of each

A call that does not let Python's lock go stops the page, the answers and the Stop button for as long as it takes.
Waits are measured in processor time of this process, so that other work on the machine is no wait.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from time import process_time, sleep

from app.context.find import Words, occurrences
from app.documents.document import num_words
from tests.hostile.growth import READERS

MOST_SECONDS = 0.5
TICK_SECONDS = 0.005
UNITS = (
    "\n", " ", "word ", "Chapter 1\n", "caf\u00e9 \u00fcber, ", "\U0001f600", "e\u0301", "It was a dark night.\n\n",
)  # fmt: skip
LARGE = ("plain text", "Markdown as a document", "the pages of a PDF", "the text of a Word file")
MOST_CHARS = {"the pages of a PDF": 2_000_000, "the text of a Word file": 20_000_000}  # a process sends no more


def longest_wait(work: Callable[[], object]) -> float:
    """Seconds of this process between two ticks of a thread beside it, at most."""
    ticks, done = [process_time()], threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(process_time())
            sleep(TICK_SECONDS)

    ticker = threading.Thread(target=tick)
    ticker.start()
    work()
    done.set()
    ticker.join()
    ticks.append(process_time())
    return max(later - earlier for earlier, later in pairwise(ticks))


def main(argv: Sequence[str]) -> int:
    """Print each wait. Returns 1 if one is too long."""
    worst, most_chars = 0.0, int(argv[0])

    def find(text: str) -> object:
        return sum(1 for _ in occurrences(Words(text.strip()[:1] or "a"), text))

    for name, reads in {**{name: READERS[name] for name in LARGE}, "Find": find}.items():
        for unit in UNITS:
            text = unit * (min(most_chars, MOST_CHARS.get(name, sys.maxsize)) // len(unit))
            wait = longest_wait(lambda reads=reads, text=text: (reads(text), num_words(text)))  # type: ignore[misc]
            print(f"{name} of {unit!r}: {wait:.2f} s", flush=True)
            worst = max(worst, wait)
    return worst > MOST_SECONDS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
