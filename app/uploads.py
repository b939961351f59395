"""Copies of dropped files on disk: for their owner alone, no longer than it takes to get at their text."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import IO

FOLDER = "uploads"  # in the data folder
IN_USE = ".in-use"  # beside it: locked by every program that uses the data folder


def make_folder(data: Path) -> Path:
    """The folder for uploads in a data folder, closed to others even if it was there before.

    Raises:
        OSError: it cannot be made.
    """
    folder = data / FOLDER
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if os.name == "posix":
        with suppress(PermissionError):  # another's; whether we can write to it is seen elsewhere
            folder.chmod(0o700)
    return folder


@contextmanager
def in_use(data: Path) -> Iterator[None]:
    """While a program uses a data folder. What earlier ones left of uploads goes, if no other uses the folder now."""
    handle: IO[bytes] | None = None
    with suppress(OSError):  # a data folder without this is still one
        alone, handle = _claim(data / IN_USE)
        if alone:
            sweep(data / FOLDER)
        _share(handle)
    try:
        yield
    finally:
        if handle is not None:
            handle.close()


def sweep(folder: Path) -> None:
    """Delete everything in a folder; what cannot be deleted stays."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                rmtree(entry.path, ignore_errors=True)
            else:
                with suppress(OSError):
                    os.unlink(entry.path)


def forget(files: Iterable[Path]) -> None:
    """Delete copies, and the folder that each has for itself."""
    for file in files:
        with suppress(OSError):
            file.unlink(missing_ok=True)
            if file.parent.name != FOLDER:
                file.parent.rmdir()


def size_bytes(folder: Path) -> int:
    """Of all files below a folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # deleted meanwhile
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def _claim(mark: Path) -> tuple[bool, IO[bytes]]:
    """Whether no other program holds the mark, and the mark, held by us."""
    if os.name != "posix":
        try:
            mark.unlink(missing_ok=True)  # refused while another holds it open
        except OSError:
            return False, mark.open("ab")
        return True, mark.open("ab")
    import fcntl

    handle = mark.open("ab")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or a file system without locks
        return False, handle
    return True, handle


def _share(handle: IO[bytes]) -> None:
    if os.name == "posix":
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_SH)
