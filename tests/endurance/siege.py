"""A reader who has logged in asks while others send 1,000 requests a second without a login.

python -m tests.endurance.siege --rate 1000 --rounds 4 --json F

The page listens on every address (`--host 0.0.0.0`) with a password. The senders are a process of their own on this
machine; they and the page share its processors. Quiet and besieged rounds take turns.
"""

import asyncio
import multiprocessing
import os
import secrets
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from tests.endurance.program import Program
from tests.endurance.report import options, tell
from tests.endurance.tab import Tab, busy, is_over

AUTH = ("reader", "a long password")
QUESTIONS = 8  # a round
TICK_SECONDS = 0.01
PATIENCE_SECONDS = 20.0
BODY = b"[" + b"[]," * 1300  # what others would have parsed
PATHS = ("POST /page/act", "POST /gradio_api/upload", "GET /page/state?session=" + "0" * 32, "GET /config")


@dataclass(slots=True)
class Siege:
    """What was seen. Times in seconds, of one answer of 24 tokens each."""

    quiet: list[float] = field(default_factory=list)
    besieged: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)  # requests a second, of each besieged round
    answers: Counter[str] = field(default_factory=Counter)  # to the senders, by status
    load: float = field(default_factory=lambda: os.getloadavg()[0])  # before: processes that want a processor

    @property
    def slower(self) -> float:
        return median(self.besieged) / median(self.quiet)


def send(address: str, rate: int, line: Connection) -> None:
    """Send requests without a login until the other end says stop; then tell how many came back with which status."""
    answers, started = Counter[str](), time.monotonic()
    asyncio.run(_send(address, rate, line, answers))
    line.send((time.monotonic() - started, answers))


async def _send(address: str, rate: int, line: Connection, answers: Counter[str]) -> None:
    host, port = urlsplit(address).hostname, urlsplit(address).port
    begun, number, tasks = time.monotonic(), 0, set[asyncio.Task[None]]()

    async def one(number: int) -> None:
        head = f"{PATHS[number % len(PATHS)]} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {len(BODY)}\r\n"
        head += f"Content-Type: application/json\r\nCookie: access-token-x={number}\r\n\r\n"
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(head.encode() + BODY)
                answers[(await reader.readline()).split()[1].decode()] += 1
                writer.close()
        except (OSError, TimeoutError, IndexError) as error:
            answers[type(error).__name__] += 1

    while not line.poll():
        while number < (time.monotonic() - begun) * rate and len(tasks) < 2 * rate:
            tasks.add(asyncio.create_task(one(number)))
            number += 1
        await asyncio.sleep(TICK_SECONDS)
        tasks = {task for task in tasks if not task.done()}
    for task in tasks:
        task.cancel()


def run(rate: int, rounds: int, place: Path) -> Siege:
    found, program = Siege(), Program(place / "data", more=("--host", "0.0.0.0", "--auth", ":".join(AUTH)))
    try:
        program.wait()
        reader, book = Tab(program.address, auth=AUTH), place / "book.txt"
        book.write_text("Mary lost the brass kettle in March. " * 400, encoding="utf-8")
        reader.open(book)
        reader.settle(lambda state: not busy(state))
        ask(reader)  # the first reads the book
        for _ in range(rounds):
            found.quiet += [ask(reader) for _ in range(QUESTIONS)]
            ours, theirs = multiprocessing.Pipe()
            sender = multiprocessing.Process(target=send, args=(program.address, rate, theirs))
            sender.start()
            time.sleep(2)
            found.besieged += [ask(reader) for _ in range(QUESTIONS)]
            ours.send("stop")
            seconds, answers = ours.recv()
            sender.join()
            found.sent.append(answers.total() / seconds)
            found.answers += answers
        reader.close()
    finally:
        program.end()
    return found


def ask(reader: Tab) -> float:
    """Seconds until an answer is whole."""
    started, question = time.monotonic(), f"What did Mary lose, {secrets.token_hex(4)}?"
    if not reader.act("ask", question=question, settings={"method": "triforce", "max_new_tokens": 24}):
        raise RuntimeError("the question was refused")
    reader.until(lambda state: is_over(state, question))
    return time.monotonic() - started


def main(argv: list[str]) -> int:
    """Returns 1 if a reader waits more than twice as long, or a request was let in."""
    args = options(__doc__, argv, rate=1000, rounds=4)
    with tempfile.TemporaryDirectory() as place:
        found = run(args.rate, args.rounds, Path(place))
    rows = {
        "an answer, quiet": f"{median(found.quiet):.2f} s, at most {max(found.quiet):.2f} s",
        "an answer, besieged": f"{median(found.besieged):.2f} s, at most {max(found.besieged):.2f} s",
        "times as long": f"{found.slower:.2f}",
        "requests a second": f"{median(found.sent):.0f} of {args.rate}, answered {dict(found.answers)}",
    }
    faults = [f"a request was let in: {status}" for status in found.answers if status.startswith("2")]
    faults += ["the reader waits more than twice as long"] if found.slower > 2 else []
    return tell("siege", args, rows, faults, asdict(found) | {"rate": args.rate})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
