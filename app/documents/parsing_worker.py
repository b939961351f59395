"""The part of a parsing process that is common to all formats: its limits, its messages, its end.

Books are hostile input to parsers with a history of denial-of-service reports, so parsers run in their own process,
under limits, and can be killed. The process prints one JSON object a line (see `messages.py`) to `parsing.py`.
"""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from app.documents.archive import Refused
from app.documents.messages import Failed, Message, Reason

Read = Callable[[BinaryIO], Iterator[Message]]


def refusing(read: Read, protected: Reason = "password") -> Read:
    """The same reader, whose last message tells why it refused the file."""

    def read_or_refuse(stream: BinaryIO) -> Iterator[Message]:
        try:
            yield from read(stream)
        except Refused as refused:
            yield Failed(kind="failed", reason=protected if refused.reason == "protected" else refused.reason)

    return read_or_refuse


def serve(read: Read, malformed: tuple[type[Exception], ...], argv: Sequence[str]) -> None:
    """Send the messages of one file.

    Args:
        read: yields the messages of an open file, pages as they are read.
        malformed: exceptions that `read` may raise on a malformed file.
        argv: FILE MEMORY_BYTES CPU_SECONDS.
    """
    file, memory_bytes, cpu_seconds = argv
    threading.Thread(target=end_with_parent, daemon=True).start()
    limit_resources(int(memory_bytes), int(cpu_seconds))
    try:
        with Path(file).open("rb") as stream:
            for message in read(stream):
                send(message)
    except MemoryError:
        send(Failed(kind="failed", reason="memory"))
    except malformed:
        send(Failed(kind="failed", reason="damaged"))


def end_with_parent() -> None:
    """End immediately when the parent ends for any reason: the parent's end of our standard input is closed then."""
    while os.read(0, 1):
        pass
    os._exit(1)


def send(message: Message) -> None:
    """Send one message to the parent."""
    print(json.dumps(message), flush=True)  # ASCII, because the text may contain lone surrogates


def limit_resources(memory_bytes: int, cpu_seconds: int) -> None:
    """Let the system stop this process if it uses too much or writes a file.

    It limits memory only on Linux; on every system the parent checks memory too (`process.py`).
    """
    if sys.platform == "win32":
        return
    import resource

    limits = {resource.RLIMIT_CPU: cpu_seconds, resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0}
    if sys.platform == "linux":
        limits[resource.RLIMIT_AS] = memory_bytes
    for what, most in limits.items():
        hard = resource.getrlimit(what)[1]
        # only the soft limit: its SIGXCPU gives the reason, the hard limit's SIGKILL does not
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
