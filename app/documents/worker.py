"""The process that parses a hostile file: `python -m app.documents.worker PARSER FILE MEMORY_BYTES CPU_SECONDS ...`.

PARSER is a module of `app.documents.parsers`, or any other by its full name; what follows goes to its `read`. Parsers
have a history of denial-of-service reports, so each runs in a process that is confined, limited, and can be killed. It
prints one JSON object a line (see `messages.py`) to `parsing.py`.
"""

import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from app.documents.archive import Refused
from app.documents.messages import Message
from app.documents.sandbox import confine


def main(argv: Sequence[str]) -> None:
    """Send the messages of one file."""
    parser, file, memory_bytes, cpu_seconds, *more = argv
    confine(Path(file))  # first, because threads that libraries start keep their rights
    threading.Thread(target=end_with_parent, daemon=True).start()
    read = import_module(parser if "." in parser else f"app.documents.parsers.{parser}").read
    limit_resources(int(memory_bytes), int(cpu_seconds))
    with Path(file).open("rb") as stream:
        send_all(read(stream, *more))


def send_all(messages: Iterator[Message]) -> None:
    """Send messages to the parent as they come, then "done", or the reason if they end before their end."""
    try:
        for message in messages:
            send(message)
        send({"kind": "done"})
    except Refused as refused:
        send({"kind": "failed", "reason": refused.reason})
    except MemoryError:
        send({"kind": "failed", "reason": "memory"})
    except Exception:  # whatever a library raises on a malformed file
        send({"kind": "failed", "reason": "damaged"})


def send(message: Mapping[str, object]) -> None:
    """Send one message to the parent."""
    print(json.dumps(message), flush=True)  # ASCII, because the text may contain lone surrogates


def end_with_parent() -> None:
    """End immediately when the parent ends for any reason: the parent's end of our standard input is closed then."""
    while os.read(0, 1):
        pass
    os._exit(1)


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


if __name__ == "__main__":
    main(sys.argv[1:])
