"""Files that are written whole or not at all, through a power cut; their digests. Standard library only."""

import errno
import hashlib
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

DRAFT = ".part"


@contextmanager
def draft_of(file: Path) -> Iterator[BinaryIO]:
    """A file that only its owner can read, and that takes the place of `file` if the block succeeds, or is removed.

    Raises OSError. Its writer holds a lock on it, which ends with the process: see `sweep_drafts`.
    """
    draft = file.with_name(f"{file.name}.{secrets.token_hex(8)}{DRAFT}")
    try:
        with open(draft, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
            with suppress(OSError):  # a file system without locks
                _lock(out)
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.replace(draft, file)
        sync_folder(file.parent)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def replace_file(file: Path, content: bytes | Path) -> None:
    """Write bytes, or the copy of a file, with `draft_of`. Raises OSError, also for a cut copy."""
    with draft_of(file) as out:
        if isinstance(content, bytes):
            out.write(content)
            return
        with content.open("rb") as source:
            shutil.copyfileobj(source, out)
            if out.tell() != os.fstat(source.fileno()).st_size:
                raise OSError(errno.EIO, "its copy has another size")


def file_digest(file: Path) -> str:
    """SHA-256 of a file. Cost: reads it."""
    with file.open("rb", buffering=0) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sweep_drafts(folder: Path) -> None:
    """Remove the drafts in a folder whose writers are gone."""
    for draft in folder.glob(f"*{DRAFT}"):
        with suppress(OSError):  # its writer has it; or another process has removed it
            with draft.open("r+b") as file:
                _lock(file)
            draft.unlink()


def _lock(file: BinaryIO) -> None:
    """Raises OSError: another process, or another open file of this one, has locked it."""
    if sys.platform != "win32":  # there nobody can remove a file that is open
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sync_folder(folder: Path) -> None:
    """Sync a folder, and so a new name in it, where folders can be opened."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
