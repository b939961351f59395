"""Files of conversations: read, compared, written atomically, in a folder that only their owner can read."""

import contextlib
import os
import secrets
import stat
from pathlib import Path

from app.conversations.schema import Damaged, load
from app.conversations.tree import Dialogue
from core.kv_store.durable import sync_folder

SUFFIX = ".json"
SET_ASIDE = ".damaged"
DRAFT = ".part"
MOST_BYTES = 256 << 20  # of one file; no conversation is longer

Stamp = tuple[int, int, int]  # identifies a file's state: time of change in nanoseconds, size, number
NO_FILE: Stamp = (0, 0, 0)


def parsed(file: Path, status: os.stat_result) -> Dialogue:
    """Read the conversation in a file. Raises OSError, UnicodeError, Damaged, NewerVersion."""
    if not stat.S_ISREG(status.st_mode):
        raise Damaged("no ordinary file")
    if status.st_size > MOST_BYTES:
        raise Damaged("too large")
    return load(file.read_text(encoding="utf-8", errors="surrogatepass"), file.stem)


def stamp_at(file: Path) -> Stamp:
    """The stamp of a file's present state."""
    try:
        return stamp_of(file.stat())
    except FileNotFoundError:
        return NO_FILE


def stamp_of(status: os.stat_result) -> Stamp:
    """The stamp from a file's known status."""
    return status.st_mtime_ns, status.st_size, status.st_ino


def was_set_aside(file: Path, since: int) -> bool:
    """Whether some program set the file aside as damaged after a time, nanoseconds since 1970."""
    times = [
        one.name.removesuffix(SET_ASIDE).rpartition("-")[2] for one in file.parent.glob(f"{file.stem}-*{SET_ASIDE}")
    ]
    return any(one.isdecimal() and int(one) > since for one in times)


def replace_file(file: Path, text: bytes) -> None:
    """Write a file atomically. Raises OSError."""
    draft = file.with_name(f"{file.name}.{secrets.token_hex(4)}{DRAFT}")
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(draft, file)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    sync_folder(file.parent)


def sweep(folder: Path) -> None:
    """Remove temporary files of a killed program: while the lock is held, no other program writes one."""
    for draft in folder.glob(f"*{SUFFIX}.*{DRAFT}"):
        with contextlib.suppress(OSError):
            draft.unlink()
