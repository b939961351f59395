"""Runs the limited process that parses a hostile file, and turns its failures into error messages.

Knows the messages and the limits; of PDF or EPUB only the name of its parser.
"""

import compileall
import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from app.document_formats import NAMES
from app.documents.archive import most_text
from app.documents.document import Extracting
from app.documents.errors import (
    DamagedDocument,
    DocumentError,
    DocumentTooLarge,
    DrmProtected,
    OcrBroken,
    OcrMissing,
    ParserCrashed,
    ParsingLimitReached,
    PasswordProtected,
    UnsupportedFormat,
)
from app.documents.messages import Heading, Message, Opened, PageRead, Reason
from app.documents.process import HEARTBEAT_SECONDS, ParsingProcess

log = logging.getLogger(__name__)

MOST_PARSERS = 2  # at once in this program: fifty files may be dropped together
BYTES_PER_CHAR = 6  # of a message, at most
MOST_OTHER_BYTES = 1 << 24  # of a message beside its text
WINDOWS_CRASHES = 0x8000_0000  # the exit codes of a process that an exception ended begin here
_turns = threading.BoundedSemaphore(MOST_PARSERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsingLimits:
    """What reading one file may take. A plain PDF book of 1,000 pages takes about 0.1 GB and six seconds."""

    memory_bytes: int = 2 << 30  # of RAM, on Linux of address space, where an idle worker maps about 0.3 GB
    cpu_seconds: int = 900
    silence_seconds: float = 60  # without a new page
    chars: int = 20_000_000  # thirty times 128K tokens

    def of(self, file: Path) -> "ParsingLimits":
        """Those of one file: a small one holds less text."""
        return replace(self, chars=min(self.chars, most_text(file.stat().st_size)))


LIMITS = ParsingLimits()


def parse(
    parser: str, file: Path, name: str, limits: ParsingLimits, more: Sequence[str] = ()
) -> Generator[Extracting, None, tuple[Opened, list[PageRead]]]:
    """Read a file in a process of its own, yielding progress; returns the worker's messages.

    The process has ended when this iterator ends, for whatever reason.

    Raises:
        DocumentError: the worker refused the file, failed, stopped responding or died, or there is too much text.
    """
    opened: Opened | None = None
    pages: list[PageRead] = []
    num_chars, limits = 0, limits.of(file)
    for message in worker_messages(parser, file, name, limits, more):
        if message and message["kind"] == "opened":
            opened = message
        if message and message["kind"] == "page":
            pages.append({**message, "headings": [Heading(*heading) for heading in message["headings"]]})
            num_chars += len(message["text"])
        if num_chars > limits.chars:
            raise DocumentTooLarge(name, f"more than {limits.chars:,} characters")
        yield Extracting(num_done=len(pages), num_pages=len(opened["labels"]) if opened else None)
    assert opened, "the worker was done before it had opened the file"
    return opened, pages


def worker_messages(
    parser: str,
    file: Path,
    name: str,
    limits: ParsingLimits,
    more: Sequence[str] = (),
    turns: threading.BoundedSemaphore = _turns,
) -> Generator[Message | None]:
    """The messages of a worker up to "done", and None whenever there is none for a moment. Raises the document's error.

    Args:
        parser: a module of `app.documents.parsers`, or any other by its full name.
        more: further arguments of the worker.
        turns: how many may run at once; the next one waits.
    """
    while not turns.acquire(timeout=HEARTBEAT_SECONDS):
        yield None
    try:
        compile_parsers()
        taken = [str(file), str(limits.memory_bytes), str(limits.cpu_seconds)]
        arguments = ["-m", "app.documents.worker", parser, *taken, *more]
        line_bytes = BYTES_PER_CHAR * limits.chars + MOST_OTHER_BYTES
        with closing(ParsingProcess(arguments, limits.memory_bytes, limits.cpu_seconds, line_bytes)) as process:
            yield from receive(process, parser, name, limits)
    finally:
        turns.release()


@cache
def compile_parsers() -> None:
    """Store the bytecode of the parsers' modules, because their processes may write nothing."""
    if not sys.dont_write_bytecode:
        compileall.compile_dir(Path(__file__).parent, quiet=2)


def receive(process: ParsingProcess, parser: str, name: str, limits: ParsingLimits) -> Iterator[Message | None]:
    """See `worker_messages`."""
    heard = time.monotonic()
    while True:
        line = process.line()
        if line is None:
            if time.monotonic() - heard >= limits.silence_seconds:
                raise ParsingLimitReached(name, f"{limits.silence_seconds:g} seconds for one page")
            yield None
            continue
        if not line:
            raise explain_death(process, parser, name, limits)
        if not line.endswith(b"\n"):
            raise DocumentTooLarge(name, f"more than {limits.chars:,} characters")
        message = json.loads(line)
        if message["kind"] == "failed":
            raise explain_failure(message["reason"], parser, name, limits)
        if message["kind"] == "done":
            return
        heard = time.monotonic()
        yield message


FAILURES: Mapping[Reason, tuple[type[DocumentError], str]] = {
    "password": (PasswordProtected, ""),
    "protected": (DrmProtected, ""),
    "cut off": (DamagedDocument, "is cut off: its end is missing"),
    "no container": (DamagedDocument, "is not {what}: the list of its contents is missing"),
    "damaged": (DamagedDocument, "is damaged and cannot be read as {what}"),
    "oversized": (DocumentTooLarge, "it unpacks to more than any book takes"),
    "entities": (UnsupportedFormat, "{what} that declares XML entities of its own"),
    "binary": (UnsupportedFormat, "binary data and not text"),
    "no text": (UnsupportedFormat, "a picture, a sound or a font"),
    "memory": (ParsingLimitReached, "{memory:.1f} GB of memory"),
    "no engine": (OcrMissing, ""),
    "broken engine": (OcrBroken, ""),
}


def explain_failure(reason: Reason, parser: str, name: str, limits: ParsingLimits) -> DocumentError:
    """The error for a worker's reason."""
    kind, words = FAILURES[reason]
    _, _, what = NAMES.get(parser, ("", "", "a ZIP file" if parser == "zip" else "a PDF"))
    return kind(name, words.format(what=what, memory=limits.memory_bytes / 1e9))


def explain_death(process: ParsingProcess, parser: str, name: str, limits: ParsingLimits) -> DocumentError:
    """The error for a worker that died before it was done."""
    code = process.wait()
    log.warning("the parser %s ended with code %d", parser, code)
    if process.limit == "time" or code == -getattr(signal, "SIGXCPU", 0):
        return ParsingLimitReached(name, f"{limits.cpu_seconds} seconds of computing")
    if process.limit == "memory":
        return explain_failure("memory", parser, name, limits)
    if code < 0 or code >= WINDOWS_CRASHES:
        return ParserCrashed(name, f"{limits.memory_bytes / 1e9:.1f} GB of memory")
    return explain_failure("damaged", parser, name, limits)
