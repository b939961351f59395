"""Folders that only their owner can open, and sizes of files."""

import contextlib
import os
import stat
from pathlib import Path

from core.errors import NotPossibleHere

SET_ASIDE = ".damaged"


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
