"""The part of a parsing process that does not depend on the format: its limits, its messages, its end.

Books are hostile input to parsers with a history of denial-of-service reports, so they run in a process of their own,
under limits, and can be killed. It prints one JSON object a line (see `messages.py`); `parsing.py` is its parent.
"""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from app.documents.messages import Failed, Message


def serve(
    read: Callable[[BinaryIO], Iterator[Message]], malformed: tuple[type[Exception], ...], argv: Sequence[str]
) -> None:
    """Send the messages of one file.

    Args:
        read: the messages of an open file, the pages as they are read.
        malformed: what `read` may raise on a file that breaks its format's rules.
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
    """End at once when the parent does: its end of our standard input is closed then, however it ended."""
    while os.read(0, 1):
        pass
    os._exit(1)


def send(message: Message) -> None:
    """Hand one message to the parent."""
    print(json.dumps(message), flush=True)  # ASCII: the text may hold anything, lone surrogates included


def limit_resources(memory_bytes: int, cpu_seconds: int) -> None:
    """Let the system stop this process when it takes too much or writes a file.

    Memory is limited on Linux only; elsewhere the parent watches it, too (`process.py`).
    """
    if sys.platform == "win32":
        return
    import resource

    limits = {resource.RLIMIT_CPU: cpu_seconds, resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0}
    if sys.platform == "linux":
        limits[resource.RLIMIT_AS] = memory_bytes
    for what, most in limits.items():
        hard = resource.getrlimit(what)[1]
        # only the soft limit: SIGXCPU says what happened, the hard limit's SIGKILL would not
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
