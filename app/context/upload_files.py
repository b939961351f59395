"""Copies of dropped files on disk: readable by their owner alone, and deleted once their text is extracted.

Those of PDFs stay as long as the document is open, for images of its pages (`open_files.py`).
"""

import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from app.private_files import make_private
from core.errors import CoreError, NotPossibleHere

FOLDER = "uploads"  # in the data folder
CLAIMED = "opened-"  # prefix of folders with files that are being read
UNOPENED_SECONDS = 600.0
LONGEST_WAIT_SECONDS = 10.0  # for another program, which sweeps
IN_USE = ".in-use"  # beside it: locked by every program that uses the data folder


@contextmanager
def in_use(data: Path) -> Iterator[None]:
    """Mark a data folder as used, and make its folder of uploads; no other user may open that.

    Uploads left by earlier programs are deleted if no other program uses the folder now.

    The mark is an empty SQLite database: every program holds a shared lock of it, the one that sweeps an exclusive one.

    Raises:
        NotPossibleHere: another program holds the mark, and for longer than a start does; or there can be no uploads.
    """
    make_private(data / FOLDER)
    mark = data / IN_USE
    with suppress(OSError):
        mark.touch(mode=0o600)
        mark.chmod(0o600)
    try:
        connection = sqlite3.connect(mark, isolation_level=None, check_same_thread=False)
    except sqlite3.Error:  # a data folder that cannot be locked still works
        yield
        return
    with closing(connection) as db:
        try:
            db.execute("PRAGMA busy_timeout = 0")
            db.execute("BEGIN EXCLUSIVE")
            sweep(data / FOLDER)
            db.execute("ROLLBACK")
        except sqlite3.Error:  # another program uses the folder, or it cannot be locked
            pass
        try:
            db.execute(f"PRAGMA busy_timeout = {int(1000 * LONGEST_WAIT_SECONDS)}")
            db.execute("BEGIN")
            db.execute("SELECT * FROM sqlite_master").fetchall()
        except sqlite3.Error as error:
            if "locked" in str(error):
                hint = "End it, or choose another folder with --data-dir."
                raise NotPossibleHere(f"Another program holds {mark}.", hint=hint) from error
        yield


def sweep(folder: Path) -> None:
    """Delete everything in a folder, except what cannot be deleted."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                rmtree(entry.path, ignore_errors=True)
            else:
                with suppress(OSError):
                    os.unlink(entry.path)


@dataclass(frozen=True, slots=True)
class Claim:
    """One upload's own copy of a dropped file.

    Gradio stores equal files of two pages at one place, so one page could delete a file that the other has yet to read.
    """

    stored: Path  # Gradio's file
    own: Path  # the same file under another name; `stored` itself if a link failed


def claim(stored: Path) -> Claim:
    """Claim a stored file for one upload. A page may name any path, so nothing else is touched.

    Raises:
        CoreError: it is no regular file exactly two levels below the uploads folder, where Gradio stores what arrives.
    """
    if not _is_stored(stored):
        raise CoreError(f"{stored.name} is no file that was dropped here, or no longer.", hint="Drop its file again.")
    with suppress(OSError):
        own = Path(mkdtemp(prefix=CLAIMED, dir=stored.parent.parent)) / stored.name
        try:
            os.link(stored, own)
        except OSError:  # no links on this file system: of two equal files the second must be dropped again
            stored.replace(own)
            delete(stored)  # keeps its folder
        return Claim(stored, own)
    return Claim(stored, stored)


def forget(claims: Iterable[Claim], is_kept: Callable[[Path], bool] = lambda _: False) -> None:
    """Delete the copies, except own ones that are kept. A file stored since then at the same place stays, too."""
    for one in claims:
        with suppress(OSError):
            if one.stored.samefile(one.own):
                delete(one.stored)
        if one.stored != one.own and not is_kept(one.own):
            delete(one.own)


def _is_stored(file: Path) -> bool:
    place = file.parent
    if ".." in file.parts or place.parent.name != FOLDER or is_own(file) or place.is_symlink():
        return False
    with suppress(OSError):
        return stat.S_ISREG(file.lstat().st_mode)
    return False


def is_own(file: Path) -> bool:
    """Whether a file is an upload's own copy, which this program may delete."""
    return file.parent.name.startswith(CLAIMED) and file.parent.parent.name == FOLDER


def drop_unopened(folder: Path, *, older_than_seconds: float = UNOPENED_SECONDS) -> None:
    """Delete files that were stored but never opened: a page opens its files immediately."""
    before = time.time() - older_than_seconds
    for place, _, names in os.walk(folder):
        if Path(place).name.startswith(CLAIMED):
            continue
        for file in (Path(place) / name for name in names):
            with suppress(OSError):
                if file.lstat().st_mtime < before:
                    delete(file)


def delete(file: Path) -> bool:
    """Delete a file and its own folder; False: it is still there."""
    with suppress(OSError):
        file.unlink(missing_ok=True)
        if file.parent.name != FOLDER:
            file.parent.rmdir()
    return not file.exists()


def size_bytes(folder: Path) -> int:
    """The total size of all files below a folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # deleted meanwhile
                total += os.lstat(os.path.join(place, name)).st_size
    return total
