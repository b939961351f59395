"""PDF to Document: drive the limited worker process, then turn its printed lines into prose."""

import json
import logging
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from app.documents.document import Document, Extracting, make_pages
from app.documents.errors import (
    DamagedDocument,
    DocumentError,
    DocumentTooLarge,
    EmptyDocument,
    ParsingLimitReached,
    PasswordProtected,
    ScannedDocument,
)
from app.documents.pdf_messages import Message, Opened, PageRead
from app.documents.prose import clean_lines, unwrap
from app.documents.running_lines import drop_running_lines

log = logging.getLogger(__name__)

PROJECT = Path(__file__).parents[2]
HEARTBEAT_SECONDS = 0.1
FEW_LETTERS = 20  # a page with fewer is no page of text: blank, a title or a picture
MAX_TITLE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PdfLimits:
    """What reading one PDF may take. A plain book of 1,000 pages takes about 0.1 GB and ten seconds."""

    memory_bytes: int = 2 << 30  # address space of the worker; a bare one maps about 0.3 GB
    cpu_seconds: int = 900
    silence_seconds: float = 60  # without a new page
    chars: int = 20_000_000  # thirty times what 128K tokens take


def extract_pdf(file: Path, name: str, limits: PdfLimits = PdfLimits()) -> Iterator[Extracting | Document]:
    """Read a PDF; see `readers.extract_document`."""
    opened: Opened | None = None
    pages: list[PageRead] = []
    num_chars = 0
    for message in worker_messages(file, name, limits):
        if message and message["kind"] == "opened":
            opened = message
        if message and message["kind"] == "page":
            pages.append(message)
            num_chars += len(message["text"])
        if num_chars > limits.chars:
            raise DocumentTooLarge(name, f"more than {limits.chars:,} characters")
        yield Extracting(num_done=len(pages), num_pages=len(opened["labels"]) if opened else None)
    assert opened, "the worker was done before it had opened the file"
    yield to_document(name, file.stem, opened, pages)


def to_document(name: str, stem: str, opened: Opened, pages: Sequence[PageRead]) -> Document:
    """One text from the printed pages.

    Raises:
        DocumentError: there are no pages, or no text on them.
    """
    if not pages:
        raise EmptyDocument(f"{name} has no pages.", hint="Choose a file with text in it.")
    lines = [clean_lines(page["text"]) for page in pages]
    if all(page["damaged"] and not page["text"].strip() for page in pages):
        raise DamagedDocument(name, "is damaged: none of its pages can be read")
    pictures = [
        index for index, page in enumerate(pages) if page["has_image"] and num_letters(lines[index]) < FEW_LETTERS
    ]
    if len(pictures) > len(pages) / 2 and sum(map(num_letters, lines)) < FEW_LETTERS * len(pages):
        raise ScannedDocument(name, len(pages))
    prose = unwrap(drop_running_lines(lines))
    if not prose.text:
        raise EmptyDocument(f"{name} holds no text.", hint="Choose a file with text in it.")
    damaged = [index for index, page in enumerate(pages) if page["damaged"]]
    flaws = ((pictures, "Only images, which are not read"), (damaged, "Damaged, so that text is missing"))
    return Document(
        name=name,
        title=" ".join(" ".join(clean_lines(opened["title"])).split())[:MAX_TITLE] or stem,
        format="pdf",
        text=prose.text,
        pages=make_pages(prose.page_starts, len(prose.text), opened["labels"]),
        has_own_pages=True,
        warnings=tuple(f"{flaw}: pages {ranges(indices)}." for indices, flaw in flaws if indices),
    )


def num_letters(lines: Iterable[str]) -> int:
    """Letters and digits on a page."""
    return sum(char.isalnum() for line in lines for char in line)


def ranges(indices: Sequence[int]) -> str:
    """Page indices as people write them: 1, 4–6, 9."""
    runs: list[tuple[int, int]] = []
    for index in indices:
        first = runs.pop()[0] if runs and runs[-1][1] == index - 1 else index
        runs.append((first, index))
    return ", ".join(str(a + 1) if a == b else f"{a + 1}–{b + 1}" for a, b in runs)


def worker_messages(file: Path, name: str, limits: PdfLimits) -> Iterator[Opened | PageRead | None]:
    """What the worker says, and None whenever it says nothing for a moment. Ends after its Done.

    The process is gone when this iterator ends, however it ends.

    Raises:
        DocumentError: the worker failed, fell silent or died.
    """
    arguments = [str(file), str(limits.memory_bytes), str(limits.cpu_seconds)]
    process = subprocess.Popen(
        [sys.executable, "-m", "app.documents.pdf_worker", *arguments],
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout and process.stderr
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    forwarder = threading.Thread(target=forward, args=(process.stdout, lines), daemon=True)
    forwarder.start()
    try:
        yield from receive(lines, process, name, limits)
    finally:
        process.kill()
        process.wait()
        forwarder.join()
        process.stdout.close()
        process.stderr.close()


def forward(pipe: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    """Put each line of a pipe into a queue, and an empty one at its end. (A wait with a limit, on Windows too.)"""
    for line in pipe:
        lines.put(line)
    lines.put(b"")


def receive(
    lines: queue.SimpleQueue[bytes], process: subprocess.Popen[bytes], name: str, limits: PdfLimits
) -> Iterator[Opened | PageRead | None]:
    """Messages up to Done; None for every HEARTBEAT_SECONDS without one. Raises what is wrong with the document."""
    heard = time.monotonic()
    while True:
        try:
            line = lines.get(timeout=HEARTBEAT_SECONDS)
        except queue.Empty:
            if time.monotonic() - heard > limits.silence_seconds:
                raise ParsingLimitReached(name, f"{limits.silence_seconds:g} seconds for one page") from None
            yield None
            continue
        if not line:
            raise explain_death(process, name, limits)
        message: Message = json.loads(line)
        if message["kind"] == "failed":
            raise explain_failure(message["reason"], name, limits)
        if message["kind"] == "done":
            return
        heard = time.monotonic()
        yield message


def explain_failure(reason: str, name: str, limits: PdfLimits) -> DocumentError:
    """The error for a reason that the worker gave."""
    match reason:
        case "password":
            return PasswordProtected(name)
        case "cut off":
            return DamagedDocument(name, "is cut off: its end is missing")
        case "memory":
            return out_of_memory(name, limits)
    return DamagedDocument(name, "is damaged and cannot be read as a PDF")


def explain_death(process: subprocess.Popen[bytes], name: str, limits: PdfLimits) -> DocumentError:
    """The error for a worker that ended before it was done."""
    complaints = process.stderr.read() if process.stderr else b""
    code = process.wait()
    log.warning("the PDF worker ended with code %d: %s", code, complaints.decode(errors="replace")[-2000:])
    if code >= 0:
        return DamagedDocument(name, "is damaged and cannot be read as a PDF")
    if code == -getattr(signal, "SIGXCPU", 0):
        return ParsingLimitReached(name, f"{limits.cpu_seconds} seconds of computing")
    return out_of_memory(name, limits)


def out_of_memory(name: str, limits: PdfLimits) -> DocumentError:
    """The error for a worker that hit its memory limit, or that the system killed for want of memory."""
    return ParsingLimitReached(name, f"{limits.memory_bytes / 1e9:.1f} GB of memory")
