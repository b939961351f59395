"""Copies of dropped files on disk: readable by their owner alone, and deleted once their text is extracted.

Those of PDFs stay as long as the document is open, for images of its pages (`OpenFiles`).
"""

import os
import sqlite3
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from app.documents.page_image import PageImage, PageNotDrawn, draw_page
from app.private_files import make_private, size_of
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


def claim(stored: Path, uploads: Path) -> Claim:
    """Claim a stored file for one upload. A page may name any path, so nothing else is touched.

    Raises:
        CoreError: it is no regular file exactly two levels below `uploads`, where Gradio stores what arrives.
    """
    if not _is_stored(stored, uploads):
        raise CoreError(f"{stored.name} is no file that was dropped here, or no longer.", hint="Drop its file again.")
    with suppress(OSError):
        own = Path(mkdtemp(prefix=CLAIMED, dir=uploads)) / stored.name
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


def _is_stored(file: Path, uploads: Path) -> bool:
    place = file.parent
    if ".." in file.parts or place.parent != uploads or place.name.startswith(CLAIMED) or place.is_symlink():
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


MOST_KEPT = 1 << 30  # bytes of all copies; half of what uploads may take (app/server/bodies.py)
MOST_IMAGES = 64  # in memory, of some 100 to 500 KB
GONE = (
    "This page cannot be drawn: the file is no longer kept. Remove the book and open its file again to see its pages."
)


class OpenFiles:
    """The files of every page of one program. Safe to use from any thread."""

    def __init__(self, most_kept: int = MOST_KEPT, most_images: int = MOST_IMAGES) -> None:
        self._most_kept, self._draw = most_kept, lru_cache(most_images)(draw_page)
        self._owners: OrderedDict[Path, str] = OrderedDict()  # of own copies, the newest last
        self._lock = threading.Lock()

    def hold(self, owner: str, file: Path) -> None:
        """Keep an upload's own copy for a session; if all take too much, the oldest go."""
        if not is_own(file):
            return
        with self._lock:
            self._owners[file] = owner
            sizes = {one: size_of(one) for one in self._owners}
            for old in list(self._owners)[:-1]:
                if sum(sizes.values()) <= self._most_kept:
                    return
                self._let_go(old)
                del sizes[old]

    def holds(self, file: Path) -> bool:
        """Whether a file is kept."""
        with self._lock:
            return file in self._owners

    def retain(self, owner: str, files: set[Path]) -> None:
        """Delete a session's copies but for some."""
        with self._lock:
            for file in [one for one, its in self._owners.items() if its == owner and one not in files]:
                self._let_go(file)

    def close(self) -> None:
        """Delete all copies."""
        with self._lock:
            for file in list(self._owners):
                self._let_go(file)

    def page(self, file: Path, name: str, number: int, num_pages: int, width: int) -> PageImage:
        """A page as an image, drawn unless it was lately; see `draw_page`.

        Raises:
            PageNotDrawn.
        """
        if not file.is_file():
            raise PageNotDrawn(GONE)
        return self._draw(file, name, number, num_pages, width)

    def _let_go(self, file: Path) -> None:
        """Delete a copy, and forget all images; what cannot be deleted is tried again with the next change."""
        self._draw.cache_clear()
        if delete(file):
            del self._owners[file]
