"""All conversations: changes are written by a thread, soon; what it has not written yet is shown as if it were.

A failed write is repeated with the next change, every half minute, and once more at the end.
"""

import logging
import sqlite3
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.conversations import database
from app.conversations.exchange import ID
from app.conversations.folder import ConversationFolder
from app.conversations.listing import Listing, Summary
from app.conversations.schema import Damaged, NewerVersion
from app.conversations.tree import Dialogue
from app.formats import plural
from core.errors import CoreError

log = logging.getLogger(__name__)

MOST_WAIT_SECONDS = 10.0  # for the last write when the program ends
LATER_SECONDS = 30.0
UNREADABLE = (sqlite3.Error, OSError, NewerVersion)


class ConversationGone(CoreError):
    """The conversation was deleted, here or by another program."""

    def __init__(self) -> None:
        super().__init__("That conversation is not there any more.", hint="Choose another one, or begin a new one.")


@dataclass(eq=False, slots=True)
class Change:
    """A state to write, or a conversation to delete."""

    id: str
    state: Dialogue | None
    trouble: str = ""  # why it could not be written


class Conversations:
    """All conversations of a data directory; without a folder they are lost when the program ends.

    Thread-safe; saving returns at once.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._disk = ConversationFolder(folder)
        self._lock = threading.Condition()  # guards all fields below
        self._unwritten: list[Change] = []
        self._deleted: set[str] = set()  # by this program, for good
        self._seen: dict[str, tuple[str, Summary | None]] = {}  # None: it cannot be read
        self._due = self._writing = self._closed = False
        self._writer: threading.Thread | None = None

    # -------------------- writing

    def save(self, dialogue: Dialogue) -> None:
        """Record what is new in a state; removed nodes, too: a conversation without any is deleted. Cost: microseconds.

        Nothing that another page or program has saved is lost.
        """
        with self._lock:
            if dialogue.id not in self._deleted:
                self._unwritten = [one for one in self._unwritten if one.id != dialogue.id or not covers(dialogue, one)]
                self._to_write(Change(dialogue.id, dialogue))

    def was_deleted(self, dialogue_id: str) -> bool:
        """Nothing more is saved under this id."""
        return dialogue_id in self._deleted

    def delete(self, dialogue_id: str) -> None:
        """Delete a conversation for good, with any answer that is still being written to it.

        It leaves the list at once and the disk soon after; until then the list shows a notice.
        """
        with self._lock:
            self._deleted.add(dialogue_id)
            self._unwritten = [one for one in self._unwritten if one.id != dialogue_id]
            if ID.fullmatch(dialogue_id):
                self._to_write(Change(dialogue_id, None))

    def _to_write(self, change: Change) -> None:
        self._unwritten = [*self._unwritten, change]
        if self._closed:
            return
        self._due = True
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_all, name="conversations", daemon=True)
            self._writer.start()
        self._lock.notify_all()

    def _write_all(self) -> None:
        last = False
        while not last:
            with self._lock:
                patience = LATER_SECONDS if self._unwritten else None
                self._lock.wait_for(lambda: self._due or self._closed, patience)
                last, changes = self._closed, self._unwritten
                self._due, self._writing = False, True
            for change in changes:
                self._write(change)
            with self._lock:
                self._writing = False
                self._lock.notify_all()

    def _write(self, change: Change) -> None:
        try:
            self._disk.write(change.id, change.state)
        except Exception as error:  # no memory, full disk, a value that is not JSON: keep saving others
            change.trouble = str(error) or type(error).__name__
            log.warning("a conversation could not be %s: %s", "saved" if change.state else "deleted", change.trouble)
            return
        with self._lock:
            self._unwritten = [one for one in self._unwritten if one is not change]

    def flush(self, timeout_seconds: float | None = None) -> bool:
        """Wait until everything was tried to be written. False: timed out."""
        seconds = MOST_WAIT_SECONDS if timeout_seconds is None else timeout_seconds
        with self._lock:
            return self._lock.wait_for(lambda: not self._due and not self._writing, seconds)

    def close(self) -> None:
        """Write the rest and end the thread."""
        self.flush()
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        if self._writer is not None:
            self._writer.join(MOST_WAIT_SECONDS)
        with self._lock:
            left = self._unwritten
        for verb, means in (("saved", "the newest changes are lost"), ("deleted", "they are still on the disk")):
            if those := {one.id: one.trouble for one in left if bool(one.state) == (verb == "saved")}:
                why = next(filter(None, those.values()), "it took too long")
                log.error("%s could not be %s (%s): %s.", plural(len(those), "conversation"), verb, why, means)

    # -------------------- reading

    def open(self, dialogue_id: str) -> Dialogue:
        """Open a conversation by its id.

        Raises:
            ConversationGone: there is none, or it cannot be read.
        """
        try:
            dialogue = self._read(dialogue_id)
        except (Damaged, *UNREADABLE) as error:
            log.warning("a conversation cannot be read: %s", error)
            raise ConversationGone from error
        if dialogue is None or not dialogue.nodes or self.was_deleted(dialogue_id):
            raise ConversationGone
        return dialogue

    def _read(self, dialogue_id: str) -> Dialogue | None:
        """A conversation as it will be once everything is written. Raises as `ConversationFolder.read`."""
        with self._lock:  # before the disk is read: what is written meanwhile is in both
            states = [one.state for one in self._unwritten if one.id == dialogue_id]
        try:
            stored = self._disk.read(dialogue_id)
        except (Damaged, *UNREADABLE):
            if not states:
                raise
            stored = None
        known = [one for one in (stored, *states) if one is not None]
        if len(known) < 2:
            return next(iter(known), None)
        with database.in_memory() as db:
            for one in known:
                database.write(db, one)
            return database.read(db, dialogue_id)

    def listing(self, search: str = "") -> Listing:
        """All conversations whose title, book or text has every word of `search`."""
        words, notices = search.casefold().split(), self._notices()
        with self._lock:
            unwritten, deleted = {one.id for one in self._unwritten}, set(self._deleted)
        try:
            self._look()
        except UNREADABLE as error:
            log.warning("the conversations cannot be listed: %s", error)
            notices.append(
                f"The conversations on disk cannot be read ({error}). See to the disk, then reload the page."
            )
        shown = {one: summary for one, (_, summary) in self._seen.items()}
        for dialogue_id in unwritten - deleted:
            with suppress(Damaged, *UNREADABLE):
                dialogue = self._read(dialogue_id)
                shown[dialogue_id] = Summary.of(dialogue) if dialogue and dialogue.nodes else None
        found = [one for key, one in shown.items() if one and key not in deleted and one.has(words)]
        return Listing(tuple(sorted(found, key=lambda one: one.changed, reverse=True)), tuple(notices))

    def _look(self) -> None:
        """Read what was written since the last look. Raises as `ConversationFolder.stamps`."""
        before, now = self._seen, dict[str, tuple[str, Summary | None]]()
        for dialogue_id, stamp in self._disk.stamps().items():
            seen = before.get(dialogue_id, ("", None))
            now[dialogue_id] = seen if seen[0] == stamp else (stamp, self._summary(dialogue_id))
        self._seen = now

    def _summary(self, dialogue_id: str) -> Summary | None:
        try:
            dialogue = self._disk.read(dialogue_id)
        except Damaged as error:
            log.warning("conversation %s cannot be read: %s", dialogue_id, error)
            return None
        return Summary.of(dialogue) if dialogue else None

    def _notices(self) -> list[str]:
        """What the reader of the list must know, each in a line."""
        with self._lock:
            deletions = [one.trouble for one in self._unwritten if one.trouble and not one.state]
            writes = [one.trouble for one in self._unwritten if one.trouble and one.state]
        notices = list(self._disk.notices)
        if writes:
            notices.append(
                f"The newest changes could not be saved ({writes[-1]}). Make room; the next answer tries again."
            )
        if deletions:
            what = plural(len(deletions), "deleted conversation is", "deleted conversations are")
            notices.append(f"{what} still on the disk ({deletions[-1]}). It is tried again every half minute.")
        if damaged := sum(summary is None for _, summary in self._seen.values()):
            told = f"{plural(damaged, 'conversation')} on disk cannot be read; nothing of it is deleted"
            notices.append(f"{told}. Put a backup of {database.NAME} in its place.")
        return notices


def covers(newer: Dialogue, change: Change) -> bool:
    """Whether a change has nothing that a state of the same conversation lacks."""
    older, answered = change.state, {node.id: node.answered for node in newer.nodes}
    if older is None or newer.titled < older.titled or not newer.removed >= older.removed:
        return False
    kept = (node for node in older.nodes if node.id not in newer.removed)
    return all(node.answered <= answered.get(node.id, -1) for node in kept)
