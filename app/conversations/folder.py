"""The database on disk: opened for each transaction, repaired by setting aside, filled from files once.

Earlier versions kept a file of JSON for each conversation there. What can be read of them is taken over, and the file
moves to a folder beside the database, until its conversation or an exchange of it is deleted.
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from app.conversations import database
from app.conversations.exchange import ID
from app.conversations.schema import Damaged, NewerVersion, load
from app.conversations.tree import Dialogue
from app.formats import plural
from app.private_files import SET_ASIDE, make_private

log = logging.getLogger(__name__)

OLD, IMPORTED = ".json", "imported"  # files of earlier versions, and the folder for those that were taken over
MOST_BYTES = 256 << 20  # of one of them; no conversation is longer
READ, WRITE = "BEGIN", "BEGIN IMMEDIATE"
Result = TypeVar("Result")


class ConversationFolder:
    """Conversations on disk; without a folder in memory. Thread-safe.

    Raises:
        NotPossibleHere: the folder cannot be made, or closed to others.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.notices = folder, list[str]()  # of what could not be read, and where it is
        self._lock = threading.Lock()  # held while a broken file is set aside, and while what is in memory is used
        if folder is None:
            self._memory = database.opened(":memory:")
            return
        make_private(folder)
        self._path = folder / database.NAME
        self._journal = "DELETE" if database.on_network(self._path) else "WAL"
        try:
            self._take_over_files(folder)
        except (sqlite3.Error, OSError, NewerVersion) as error:
            log.warning("conversations of an earlier version could not be taken over: %s", error)

    def stamps(self) -> dict[str, str]:
        """Ids of all conversations, each with what changes at every write. Raises as `read`."""
        rows = self._run(READ, lambda db: db.execute("SELECT id, stamp FROM conversations").fetchall())
        return {row["id"]: row["stamp"] for row in rows}

    def read(self, dialogue_id: str) -> Dialogue | None:
        """A conversation, or None. Raises sqlite3.Error, OSError, NewerVersion, Damaged."""
        return self._run(READ, lambda db: database.read(db, dialogue_id))

    def write(self, dialogue_id: str, dialogue: Dialogue | None) -> None:
        """Merge a state, or delete the conversation, for good. Raises as `read`."""
        if dialogue is None:
            self._run(WRITE, lambda db: database.delete(db, dialogue_id))
        else:
            self._run(WRITE, lambda db: database.write(db, dialogue))
        if self.folder is not None and (dialogue is None or dialogue.removed):
            (self.folder / IMPORTED / f"{dialogue_id}{OLD}").unlink(missing_ok=True)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own: what another program puts in the place of the file is seen at once.

        Whoever closes the last one empties the log, so nothing deleted stays in it.
        """
        if self.folder is None:
            with self._lock:
                yield self._memory
            return
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileExistsError):  # opening one that exists would end the locks that other threads hold on it
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        self._path.chmod(0o600)  # its log and index get the same mode
        with closing(database.opened(self._path, journal=self._journal)) as db:
            yield db

    def _run(self, begin: str, work: Callable[[sqlite3.Connection], Result], *, again: bool = True) -> Result:
        """Do something in a transaction; where the file turns out to be broken, once more in what takes its place."""
        try:
            with self._connection() as db, db:
                db.execute(begin)
                return work(db)
        except sqlite3.DatabaseError as error:
            if not again or not database.is_damage(error):
                raise
            self._set_aside(error)
            return self._run(begin, work, again=False)

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        """Repair a broken file, unless somebody else has, or rename it and take over what can be read of it.

        Raises OSError, and sqlite3.Error where another program holds the file.
        """
        with self._lock:
            try:
                with self._connection() as db:
                    if database.is_whole(db):
                        return
            except sqlite3.DatabaseError as found:
                if not database.is_damage(found):
                    raise
            aside = self._path.with_name(f"{database.NAME}-{time.time_ns()}{SET_ASIDE}")
            for end in ("-wal", "-shm", ""):  # the log first: it must not be taken for that of the next file
                with suppress(FileNotFoundError):
                    self._path.with_name(self._path.name + end).rename(aside.with_name(aside.name + end))
            saved = self._take_over_rows(aside)
        log.warning("the conversations are damaged (%s); the file was set aside as %s", error, aside.name)
        told = f"The file of conversations was damaged and set aside as {aside}; {plural(saved, 'conversation')}"
        self.notices.append(f"{told} could be read and stayed. Put a backup in its place to get the others.")

    def _take_over_rows(self, aside: Path) -> int:
        found = dict[str, Dialogue | None]()
        with suppress(sqlite3.Error), closing(database.opened(aside, read_only=True)) as db:
            for order in ("ASC", "DESC"):  # a broken page ends them at its two sides
                with suppress(sqlite3.Error):
                    for row in db.execute(f"SELECT id FROM conversations ORDER BY id {order}"):
                        with suppress(sqlite3.Error, Damaged):
                            found[row["id"]] = found.get(row["id"]) or database.read(db, row["id"])
        with self._connection() as db, db:
            db.execute(WRITE)
            for dialogue in filter(None, found.values()):
                database.write(db, dialogue)
        return len(found)

    def _take_over_files(self, folder: Path) -> None:
        """Raises sqlite3.Error, OSError, NewerVersion."""
        files = sorted(one for one in folder.glob(f"*{OLD}") if ID.fullmatch(one.stem) and one.is_file())
        done, left = self._run(WRITE, lambda db: _taken_over(db, files))
        for file in done:
            (folder / IMPORTED).mkdir(mode=0o700, exist_ok=True)
            with suppress(FileNotFoundError):  # another program has moved it
                file.replace(folder / IMPORTED / file.name)
        if left:
            which = f"{', '.join(left[:3])}{'…' if len(left) > 3 else ''}"
            told = f"{plural(len(left), 'old conversation')} in {folder} could not be read and stayed there"
            self.notices.append(f"{told}: {which}. Restore or remove them.")


def _taken_over(db: sqlite3.Connection, files: list[Path]) -> tuple[list[Path], list[str]]:
    """The files that were taken over, and the names of those that cannot be read, with the reason."""
    done, left = list[Path](), list[str]()
    for file in files:
        try:
            if file.stat().st_size > MOST_BYTES:
                raise Damaged("too large")
            dialogue = load(file.read_text(encoding="utf-8", errors="surrogatepass"), file.stem)
        except FileNotFoundError:  # another program has taken it over
            continue
        except (OSError, UnicodeError, MemoryError, Damaged, NewerVersion) as error:
            log.warning("%s cannot be taken over: %s", file.name, error)
            left.append(f"{file.name} ({'not text' if isinstance(error, UnicodeError) else error})")
            continue
        known = db.execute("SELECT 1 FROM exchanges WHERE conversation = ?", (dialogue.id,)).fetchone()
        database.write(db, replace(dialogue, removed=frozenset()) if known else dialogue)  # it adds, removes nothing
        done.append(file)
    return done, left
