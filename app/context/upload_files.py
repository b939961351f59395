"""Copies of dropped files on disk: for their owner alone, no longer than it takes to get at their text."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import IO

FOLDER = "uploads"  # in the data folder
CLAIMED = "opened-"  # begins the folders of files that are being read
UNOPENED_SECONDS = 600.0
IN_USE = ".in-use"  # beside it: locked by every program that uses the data folder


def make_folder(data: Path) -> Path:
    """The folder for uploads in a data folder, closed to others even if it was there before.

    Raises:
        OSError: it cannot be made.
    """
    folder = data / FOLDER
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if os.name == "posix":
        with suppress(PermissionError):  # it belongs to another user; storing a file says whether we may write to it
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


@dataclass(frozen=True, slots=True)
class Claim:
    """A copy of a dropped file for one opening of it alone.

    Gradio stores equal files of two pages at one place: what one of them deletes the other may still have to read.
    """

    stored: Path  # where Gradio put it
    own: Path  # the same file by another name; `stored` itself where none could be made


def claim(stored: Path) -> Claim:
    """Take a stored file for an opening."""
    root = stored.parent if stored.parent.name == FOLDER else stored.parent.parent
    with suppress(OSError):
        own = Path(mkdtemp(prefix=CLAIMED, dir=root)) / stored.name
        try:
            os.link(stored, own)
        except OSError:  # this file system has no links: who comes second for an equal file must drop it again
            stored.replace(own)
            _delete(stored)  # its folder is left
        return Claim(stored, own)
    return Claim(stored, stored)


def forget(claims: Iterable[Claim]) -> None:
    """Delete the copies of an opening. A file that was stored at the same place since belongs to another one."""
    for one in claims:
        with suppress(OSError):
            if one.stored.samefile(one.own):
                _delete(one.stored)
        if one.stored != one.own:
            _delete(one.own)


def drop_unopened(folder: Path, *, older_than_seconds: float = UNOPENED_SECONDS) -> None:
    """Delete what was stored and never opened: a page opens at once what it has stored."""
    before = time.time() - older_than_seconds
    for place, _, names in os.walk(folder):
        if Path(place).name.startswith(CLAIMED):
            continue
        for file in (Path(place) / name for name in names):
            with suppress(OSError):
                if file.lstat().st_mtime < before:
                    _delete(file)


def _delete(file: Path) -> None:
    """A file, and the folder that it has for itself."""
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
