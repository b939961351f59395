"""Conversations on disk: one file each, written atomically by a background thread.

The list is the directory; there is no index that could be damaged. File names are random ids. A file that cannot be
read is set aside, a file of a newer version stays in place; the list names both. Files are deleted only on request.

Every page and every program has its own state of a conversation, perhaps an old one. States are joined
(`Dialogue.joined`), never replaced: a page's state with this program's, and that with the file, which another program
may have written, under a lock. A missing file was deleted by another program, unless it was set aside.

One thread writes and deletes. A failed write is repeated soon, then every half minute, and once more at the end.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from app.context.upload_files import make_private
from app.conversations import files
from app.conversations.exchange import ID
from app.conversations.listing import Known, Listing, Seen, Summary
from app.conversations.schema import Damaged, NewerVersion, dump
from app.conversations.tree import Dialogue
from app.formats import plural
from core.errors import CoreError
from core.kv_store.durable import sync_folder

log = logging.getLogger(__name__)

MOST_WAIT_SECONDS = 10.0  # for the last write when the program ends
LOCK_SECONDS = 5.0  # another program holds the lock for milliseconds
# Virus scanners hold a file for a moment, so the first retries follow at once.
TRY_AGAIN_SECONDS = (0.05, 0.1, 0.2, 0.4)
LATER_SECONDS = 30.0
MOST_IN_MEMORY = 64  # conversations whose content is kept besides the file's


class ConversationGone(CoreError):
    """The conversation was deleted, here or by another program."""

    def __init__(self) -> None:
        super().__init__("That conversation is not there any more.", hint="Choose another one, or begin a new one.")


class Conversations:
    """All conversations of a data directory; without a folder they are lost when the program ends.

    Thread-safe; saving returns at once.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._lock = threading.Condition()  # guards all fields below
        self._latest: dict[str, Dialogue] = {}  # saved or opened by this program, the last used last
        self._deleted: set[str] = set()  # for good
        self._unwritten: dict[str, None] = {}  # ids of files to write or delete, in order
        self._failed: dict[str, str] = {}  # reasons by id; retried as soon as another write succeeds
        self._writing: str | None = None  # the id of the file being written
        self._seen: dict[str, Seen] = {}
        self._known: dict[str, Known] = {}
        self._set_aside: list[str] = []
        self._closed = self._tried_last = False
        self._writer: threading.Thread | None = None
        self._between: FileLock | None = None  # lock between programs that use this folder
        if folder is not None:
            make_private(folder)
            lock = folder.with_name(f"{folder.name}.lock")
            self._between = FileLock(lock, LOCK_SECONDS, mode=0o600, thread_local=False)
            with contextlib.suppress(OSError), self._between.acquire(blocking=False):  # held: the next start sweeps
                lock.chmod(0o600)  # of an earlier version
                files.sweep(folder)

    # -------------------- writing

    def save(self, dialogue: Dialogue) -> None:
        """Record the new parts of a conversation's state; a thread writes them soon after. Cost: microseconds."""
        with self._lock:
            if dialogue.id in self._deleted:
                return
            latest = self._latest.pop(dialogue.id, None)
            self._latest[dialogue.id] = dialogue if latest is None else dialogue.joined(latest)
            self._to_write(dialogue.id)

    def without(self, dialogue: Dialogue, node_id: str) -> Dialogue:
        """Remove an exchange and what follows it. If nothing is left, the file is deleted too."""
        left = dialogue.remove(node_id)
        with self._lock:
            kept = dialogue.id in self._latest or dialogue.id in self._known  # false for incognito conversations
        if kept:
            self.save(left)
        return left

    def was_deleted(self, dialogue_id: str) -> bool:
        """Nothing more is saved under this id."""
        return dialogue_id in self._deleted

    def delete(self, dialogue_id: str) -> None:
        """Delete a conversation for good, with any answer that is still being written to it.

        It leaves the list at once and the disk soon after; if the file cannot be deleted, the list shows a notice.
        """
        with self._lock:
            self._deleted.add(dialogue_id)
            self._latest.pop(dialogue_id, None)
            self._seen.pop(dialogue_id, None)
            self._known.pop(dialogue_id, None)
            if ID.fullmatch(dialogue_id):
                self._to_write(dialogue_id)

    def _to_write(self, dialogue_id: str) -> None:
        if self.folder is None or self._closed:
            return
        self._unwritten[dialogue_id] = None
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_all, name="conversations", daemon=True)
            self._writer.start()
        self._lock.notify_all()

    def _write_all(self) -> None:
        while (dialogue_id := self._next()) is not None:
            trouble = ""
            try:
                self._write_surely(dialogue_id)
            except Timeout:
                trouble = "another program holds the folder"
            except Exception as error:  # no memory, full disk, a value that is not JSON: keep saving others
                trouble = str(getattr(error, "strerror", None) or error) or type(error).__name__
            if trouble:
                log.warning("a conversation could not be %s: %s", self._verb(dialogue_id), trouble)
            with self._lock:
                self._writing = None
                if trouble:
                    self._failed[dialogue_id] = trouble
                else:
                    self._failed.pop(dialogue_id, None)
                    self._try_again()
                self._lock.notify_all()

    def _try_again(self) -> None:
        self._unwritten |= dict.fromkeys(self._failed)

    def _verb(self, dialogue_id: str) -> str:
        return "deleted" if self.was_deleted(dialogue_id) else "saved"

    def _next(self) -> str | None:
        """The next id to write; failed writes are repeated after a while and once more at the end. None: the end."""
        with self._lock:
            while not self._unwritten:
                if self._closed and (self._tried_last or not self._failed):
                    return None
                patience = LATER_SECONDS if self._failed else None
                came = self._lock.wait_for(lambda: self._closed or self._unwritten, patience)
                if not self._unwritten and (self._closed or not came):
                    self._tried_last = self._closed
                    self._try_again()
            self._writing = next(iter(self._unwritten))
            del self._unwritten[self._writing]
            return self._writing

    def _write_surely(self, dialogue_id: str) -> None:
        """Write; while the file is not available, try a few more times, except when the program ends.

        Raises:
            OSError: every attempt failed.
        """
        for seconds in TRY_AGAIN_SECONDS:
            try:
                return self._write(dialogue_id)
            except OSError:
                if self._closed:
                    raise
                time.sleep(seconds)
        self._write(dialogue_id)

    def _write(self, dialogue_id: str) -> None:
        """Replace the file atomically: readers, even after a power failure, find the old state or the new one."""
        file = self._file(dialogue_id)
        assert self._between is not None, "nowhere to write"
        with self._between:
            with self._lock:
                latest = self._latest.get(dialogue_id)  # None: deleted
            joined = None if latest is None else self._joined(latest, file)
            if joined is not None and joined.nodes:
                files.replace_file(file, dump(joined).encode("utf-8", "surrogatepass"))
            elif files.stamp_at(file) != files.NO_FILE:
                file.unlink(missing_ok=True)
                sync_folder(file.parent)
            stamp = files.stamp_at(file)
        if joined is not None:
            self._remember(joined, stamp)

    def _joined(self, dialogue: Dialogue, file: Path) -> Dialogue:
        """Join a state with changes that another program has written since this one wrote or read the file.

        Raises:
            OSError, NewerVersion: the file can neither be read nor set aside.
        """
        with self._lock:
            known = self._known.get(dialogue.id)
        if known is not None and known.stamp == files.stamp_at(file):
            return dialogue
        try:
            return dialogue.joined(files.parsed(file, file.stat()))
        except FileNotFoundError:
            if known is None or files.was_set_aside(file, known.time):
                return dialogue
            return dialogue.joined(replace(dialogue, removed=known.ids))  # another program deleted it
        except (Damaged, UnicodeError) as error:
            self._put_aside(file, error)
            return dialogue

    def _remember(self, dialogue: Dialogue, stamp: files.Stamp) -> Dialogue:
        """Join the content of a file just read or written with the state in memory; returns the joined conversation."""
        with self._lock:
            if dialogue.id in self._deleted:
                return dialogue
            latest, known = self._latest.pop(dialogue.id, None), self._known.get(dialogue.id)
            ids = frozenset(node.id for node in dialogue.nodes) | (known.ids if known is not None else frozenset())
            self._known[dialogue.id] = Known(stamp, time.time_ns(), ids)
            self._latest[dialogue.id] = remembered = dialogue if latest is None else latest.joined(dialogue)
            self._leave_to_disk()
            return remembered

    def _leave_to_disk(self) -> None:
        """Forget the content of conversations that were not used lately; their files have it."""
        left = self._left()
        written = [one for one in self._latest if one not in left]
        for dialogue_id in written[: max(0, len(self._latest) - MOST_IN_MEMORY)]:
            del self._latest[dialogue_id]
            if (known := self._known.get(dialogue_id)) is not None:
                self._known[dialogue_id] = replace(known, stamp=None)

    def flush(self, timeout_seconds: float | None = None) -> bool:
        """Wait until everything is on disk. False: timed out."""
        seconds = MOST_WAIT_SECONDS if timeout_seconds is None else timeout_seconds
        with self._lock:
            return self._lock.wait_for(lambda: not self._unwritten and not self._writing, seconds)

    def close(self) -> None:
        """Write the rest and end the thread."""
        self.flush()
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        if self._writer is not None:
            self._writer.join(MOST_WAIT_SECONDS)
        with self._lock:
            left, troubles = self._left(), dict(self._failed)
        for verb, means in (("saved", "the newest changes are lost"), ("deleted", "they are still on the disk")):
            if those := [one for one in left if self._verb(one) == verb]:
                why = next((troubles[one] for one in those if one in troubles), "it took too long")
                log.error("%s could not be %s (%s): %s.", plural(len(those), "conversation"), verb, why, means)

    def _left(self) -> set[str]:
        """Ids whose file does not match the state in memory."""
        return {*self._unwritten, *self._failed, *([self._writing] if self._writing else [])}

    # -------------------- reading

    def open(self, dialogue_id: str) -> Dialogue:
        """Open a conversation by its id.

        Raises:
            ConversationGone: there is none, or its file cannot be read.
        """
        with self._lock:
            latest = self._latest.get(dialogue_id)
            on_disk = self.folder is not None and ID.fullmatch(dialogue_id) and dialogue_id not in self._left()
            if not on_disk:  # or the file is older
                if latest is None or not latest.nodes:
                    raise ConversationGone
                return latest
        read = self._read(dialogue_id)
        if read is None or self.was_deleted(dialogue_id):
            raise ConversationGone
        dialogue, stamp = read
        return dialogue.joined(self._remember(dialogue, stamp))

    def listing(self, search: str = "") -> Listing:
        """All conversations whose title, book or text has every word of `search`."""
        words = search.casefold().split()
        found, newer = self._summaries()
        shown = [one for one in found if all(word in one.words for word in words)]
        return Listing(tuple(sorted(shown, key=lambda one: one.changed, reverse=True)), self._notices(newer))

    def _summaries(self) -> tuple[list[Summary], int]:
        with self._lock:
            names = self._latest.keys() if self.folder is None else self._latest.keys() & self._left()
            own = [self._latest[name] for name in names]
            hidden = self._deleted | names
        found = [Summary.of(dialogue) for dialogue in own if dialogue.nodes]
        newer = 0
        for file, stamp in self._files():
            dialogue_id = file.name.removesuffix(files.SUFFIX)
            if dialogue_id in hidden:
                continue
            with self._lock:
                seen = self._seen.get(dialogue_id)
            if seen is None or seen.stamp != stamp:
                self._read(dialogue_id)
                with self._lock:
                    seen = self._seen.get(dialogue_id)
            if seen is not None and seen.summary is not None:
                found.append(seen.summary)
            elif seen is not None:
                newer += 1
        return found, newer

    def _files(self) -> Iterator[tuple[Path, files.Stamp]]:
        if self.folder is None:
            return
        try:
            entries = list(os.scandir(self.folder))
        except OSError as error:
            log.warning("the conversations cannot be listed: %s", error)
            return
        for entry in entries:
            if entry.name.endswith(files.SUFFIX) and ID.fullmatch(entry.name.removesuffix(files.SUFFIX)):
                with contextlib.suppress(OSError):  # deleted meanwhile
                    if entry.is_file():  # a pipe would be read for ever
                        yield Path(entry.path), files.stamp_of(os.stat(entry.path))

    def _read(self, dialogue_id: str) -> tuple[Dialogue, files.Stamp] | None:
        """Read a file's conversation and store its summary for the list; None if there is none or it is unreadable."""
        file = self._file(dialogue_id)
        try:
            status = file.stat()
            dialogue = files.parsed(file, status)
        except (OSError, MemoryError) as error:
            if not isinstance(error, FileNotFoundError):
                log.warning("a conversation cannot be read: %s", error)
            return None
        except NewerVersion:
            self._remember_summary(dialogue_id, Seen(files.stamp_of(status), None))
            return None
        except (Damaged, UnicodeError) as error:
            try:
                self._put_aside(file, error)
            except OSError as problem:
                log.warning("a damaged conversation cannot be set aside: %s", problem)
            return None
        self._remember_summary(dialogue_id, Seen(files.stamp_of(status), Summary.of(dialogue)))
        return dialogue, files.stamp_of(status)

    def _remember_summary(self, dialogue_id: str, seen: Seen) -> None:
        with self._lock:
            self._seen[dialogue_id] = seen

    def _put_aside(self, file: Path, error: Exception) -> None:
        """Rename an unreadable file so that its name says when and why; never delete it.

        Raises:
            OSError: it stays where it is.
        """
        aside = file.with_name(f"{file.stem}-{time.time_ns()}{files.SET_ASIDE}")
        os.replace(file, aside)
        log.warning("%s is damaged (%s); it was set aside as %s", file.name, error, aside.name)
        with self._lock:
            self._seen.pop(file.name.removesuffix(files.SUFFIX), None)
            self._set_aside.append(aside.name)

    def _notices(self, num_newer: int) -> tuple[str, ...]:
        with self._lock:
            aside, failed = list(self._set_aside), dict(self._failed)
            deletions = [why for one, why in failed.items() if one in self._deleted]
            writes = [why for one, why in failed.items() if one not in self._deleted]
        notices: list[str] = []
        if writes:
            notices.append(
                f"The newest changes could not be saved ({writes[-1]}). Make room; the next answer tries again."
            )
        if deletions:
            what = plural(len(deletions), "deleted conversation is", "deleted conversations are")
            notices.append(f"{what} still on the disk ({deletions[-1]}). It is tried again every half minute.")
        if aside:
            what = plural(len(aside), "damaged conversation was", "damaged conversations were")
            notices.append(f"{what} set aside in {self.folder}: {', '.join(aside[:3])}{'…' if len(aside) > 3 else ''}")
        if num_newer:
            what = plural(num_newer, "conversation was", "conversations were")
            notices.append(f"{what} written by a newer version of the reader: start that one to open them.")
        return tuple(notices)

    def _file(self, dialogue_id: str) -> Path:
        assert self.folder is not None and ID.fullmatch(dialogue_id), f"{dialogue_id!r} names no file"
        return self.folder / f"{dialogue_id}{files.SUFFIX}"
