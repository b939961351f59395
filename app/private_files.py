"""Files and folders that only their owner can read, written whole or not at all."""

import contextlib
import errno
import os
import secrets
import shutil
import stat
from pathlib import Path

from core.errors import NotPossibleHere
from core.kv_store.durable import sync_folder

SET_ASIDE = ".damaged"
DRAFT = ".part"


def replace_file(file: Path, content: bytes | Path) -> None:
    """Write bytes, or the copy of a file, atomically and through a power cut. Raises OSError, also for a cut copy."""
    draft = file.with_name(f"{file.name}.{secrets.token_hex(4)}{DRAFT}")
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as out:
            if isinstance(content, bytes):
                out.write(content)
            else:
                with content.open("rb") as source:
                    shutil.copyfileobj(source, out)
                    if out.tell() != os.fstat(source.fileno()).st_size:
                        raise OSError(errno.EIO, "its copy has another size")
            out.flush()
            os.fsync(out.fileno())
        os.replace(draft, file)
        sync_folder(file.parent)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def make_private(folder: Path) -> None:
    """Make a folder that only its owner can open, or close an existing one to others.

    Raises:
        NotPossibleHere: it cannot be made or closed, or all users share it.
    """
    told = f"The data folder {folder} cannot be made and closed to others"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.name == "posix":
            if folder.stat().st_mode & stat.S_ISVTX:
                raise NotPossibleHere(f"{told} (all users share it).", hint="Choose another with --data-dir.")
            folder.chmod(0o700)
    except OSError as error:
        raise NotPossibleHere(f"{told} ({error.strerror}).", hint="Choose another with --data-dir.") from error


def size_of(file: Path) -> int:
    """Bytes of a file; 0 where it has gone."""
    with contextlib.suppress(OSError):
        return file.stat().st_size
    return 0
