"""Conversations on disk: one file each, written whole or not at all, by a thread that nobody waits for.

The list is the directory; there is no index that could be damaged. File names are random ids. A file that cannot be
read is set aside and named, one of a newer version is left alone and named; nothing is ever deleted but on request.
"""

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.dialogue import Dialogue
from app.dialogue_json import Damaged, NewerVersion, dump, load
from app.render import plural
from app.sessions import ID
from core.errors import CoreError, InvalidSetting
from core.files import sync_folder

log = logging.getLogger(__name__)

SUFFIX = ".json"
SET_ASIDE = ".damaged"
DRAFT = ".part"
OLD_DRAFT_SECONDS = 3600.0
MOST_BYTES = 256 << 20  # of one file: no conversation is longer
MOST_WAIT_SECONDS = 10.0  # for the last write when the program ends


@dataclass(frozen=True, slots=True)
class Summary:
    """One line of the list, and what is searched."""

    id: str
    title: str
    book: str
    changed: str  # UTC, ISO 8601
    num_exchanges: int
    words: str  # everything that was asked and answered, folded for search
    tab: str

    @classmethod
    def of(cls, dialogue: Dialogue) -> "Summary":
        """The summary of a conversation."""
        texts = [dialogue.title, *dialogue.book.names]
        for node in dialogue.nodes:
            texts += [node.question, node.exchange.finished.text if node.exchange else ""]
        return cls(
            id=dialogue.id,
            title=dialogue.title,
            book=dialogue.book.names[0] if len(dialogue.book.names) == 1 else dialogue.book.title,
            changed=dialogue.changed,
            num_exchanges=len(dialogue.nodes),
            words="\n".join(texts).casefold(),
            tab=dialogue.tab,
        )


@dataclass(frozen=True, slots=True)
class Listing:
    """The list, newest first, and what the reader should know about files that are not in it."""

    summaries: tuple[Summary, ...]
    notices: tuple[str, ...]


class ConversationGone(CoreError):
    """The conversation was deleted, here or by another program."""

    def __init__(self) -> None:
        super().__init__("That conversation is not there any more.", hint="Choose another one, or begin a new one.")


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a file was like when it was read, so that it is read again only when it has changed."""

    stamp: tuple[int, int]  # time of change in nanoseconds, size
    summary: Summary | None  # None: of a newer version


class Conversations:
    """All conversations of a data directory. Without a folder they last as long as the program.

    Safe for several threads; saving returns at once.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._lock = threading.Condition()  # guards everything below
        self._latest: dict[str, Dialogue] = {}  # what this program wrote or opened
        self._removed: dict[str, frozenset[str]] = {}  # nodes, by conversation
        self._deleted: set[str] = set()
        self._unwritten: dict[str, Dialogue] = {}
        self._failed: dict[str, Dialogue] = {}  # to be tried again as soon as a write succeeds
        self._writing: str | None = None  # the id of the file that is being written
        self._seen: dict[str, _Seen] = {}
        self._set_aside: list[str] = []
        self._trouble = ""  # why the latest write failed
        self._closed = False
        self._writer: threading.Thread | None = None
        if folder is not None:
            _make_private(folder)
            _sweep(folder)

    # -------------------- writing

    def save(self, dialogue: Dialogue) -> None:
        """Keep this state of a conversation; it is on disk a moment later. Cost: microseconds."""
        with self._lock:
            if dialogue.id in self._deleted:
                return
            latest = self._latest.get(dialogue.id)
            if latest is not None:
                dialogue = dialogue.joined(latest, self._removed.get(dialogue.id, frozenset()))
            self._latest[dialogue.id] = dialogue
            if self.folder is None or self._closed:
                return
            self._unwritten[dialogue.id] = dialogue
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_all, name="conversations", daemon=True)
                self._writer.start()
            self._lock.notify_all()

    def without(self, dialogue: Dialogue, node_id: str) -> Dialogue:
        """The conversation without an exchange and what follows it. An empty one is deleted."""
        left = dialogue.remove(node_id)
        gone = {node.id for node in dialogue.nodes} - {node.id for node in left.nodes}
        with self._lock:
            known = dialogue.id in self._latest
            self._removed[dialogue.id] = self._removed.get(dialogue.id, frozenset()) | gone
            if known and left.nodes:
                self._latest[dialogue.id] = left
        if known and left.nodes:
            self.save(left)
        elif known:
            self.forget(dialogue.id)
        return left

    def was_deleted(self, dialogue_id: str) -> bool:
        """Nothing more is kept under this id."""
        return dialogue_id in self._deleted

    def delete(self, dialogue_id: str) -> None:
        """Remove a conversation for good; an answer that is still being written to it is not kept."""
        with self._lock:
            self._deleted.add(dialogue_id)
        self.forget(dialogue_id)

    def forget(self, dialogue_id: str) -> None:
        """Remove a conversation's file. The same conversation may be saved again later."""
        with self._lock:
            self._lock.wait_for(lambda: self._writing != dialogue_id, MOST_WAIT_SECONDS)
            self._unwritten.pop(dialogue_id, None)
            self._failed.pop(dialogue_id, None)
            self._latest.pop(dialogue_id, None)
            self._seen.pop(dialogue_id, None)
            if self.folder is not None and ID.fullmatch(dialogue_id):
                with contextlib.suppress(OSError):
                    self._file(dialogue_id).unlink(missing_ok=True)

    def _write_all(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._closed or self._unwritten)
                if not self._unwritten:
                    return
                self._writing, dialogue = self._unwritten.popitem()
            trouble = ""
            try:
                self._write(dialogue)
            except (OSError, ValueError) as error:  # a value that is no JSON is a bug, and no reason to stop saving
                trouble = str(getattr(error, "strerror", None) or error)
                log.warning("a conversation could not be saved: %s", error)
            with self._lock:
                self._trouble = trouble
                self._writing = None
                if trouble:
                    self._failed[dialogue.id] = dialogue
                else:
                    self._failed.pop(dialogue.id, None)
                    self._unwritten = {**self._failed, **self._unwritten}
                    self._failed = {}
                self._lock.notify_all()

    def _write(self, dialogue: Dialogue) -> None:
        """Replace the file in one step: whoever reads it, or pulls the plug, finds the old state or the new one."""
        file, text = self._file(dialogue.id), dump(dialogue).encode("utf-8", "surrogatepass")
        draft = file.with_name(f"{file.name}.{secrets.token_hex(4)}{DRAFT}")
        try:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
            os.replace(draft, file)
        except BaseException:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        sync_folder(file.parent)

    def flush(self, timeout_seconds: float = MOST_WAIT_SECONDS) -> bool:
        """Wait until everything is on disk. False: it took too long."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._unwritten and not self._writing, timeout_seconds)

    def close(self) -> None:
        """Write what is left and end the thread."""
        self.flush()
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        if self._writer is not None:
            self._writer.join(MOST_WAIT_SECONDS)

    # -------------------- reading

    def open(self, dialogue_id: str) -> Dialogue:
        """A conversation by its id.

        Raises:
            ConversationGone: there is none, or its file cannot be read.
        """
        with self._lock:
            latest = self._latest.get(dialogue_id)
            if self.folder is None or not ID.fullmatch(dialogue_id):
                if latest is None:
                    raise ConversationGone
                return latest
            if latest is not None and self._is_unwritten(dialogue_id):
                return latest
        read = self._read(dialogue_id)
        if read is None:
            raise ConversationGone
        with self._lock:
            self._latest[dialogue_id] = read
        return read

    def _is_unwritten(self, dialogue_id: str) -> bool:
        """The file is older than what is in memory."""
        return dialogue_id in self._unwritten or dialogue_id in self._failed or dialogue_id == self._writing

    def listing(self, search: str = "") -> Listing:
        """All conversations whose title, book or text has every word of `search`."""
        words = search.casefold().split()
        found, newer = self._summaries()
        shown = [one for one in found if all(word in one.words for word in words)]
        return Listing(tuple(sorted(shown, key=lambda one: one.changed, reverse=True)), self._notices(newer))

    def _summaries(self) -> tuple[list[Summary], int]:
        with self._lock:
            own = {name: one for name, one in self._latest.items() if self.folder is None or self._is_unwritten(name)}
        found = {dialogue.id: Summary.of(dialogue) for dialogue in own.values()}
        newer = 0
        for file, stamp in self._files():
            dialogue_id = file.name.removesuffix(SUFFIX)
            with self._lock:
                seen = self._seen.get(dialogue_id)
            if seen is None or seen.stamp != stamp:
                self._read(dialogue_id)
                with self._lock:
                    seen = self._seen.get(dialogue_id)
            if seen is not None and seen.summary is not None:
                found.setdefault(dialogue_id, seen.summary)
            elif seen is not None:
                newer += 1
        return list(found.values()), newer

    def _files(self) -> Iterator[tuple[Path, tuple[int, int]]]:
        if self.folder is None:
            return
        try:
            entries = list(os.scandir(self.folder))
        except OSError as error:
            log.warning("the conversations cannot be listed: %s", error)
            return
        for entry in entries:
            if entry.name.endswith(SUFFIX) and ID.fullmatch(entry.name.removesuffix(SUFFIX)):
                with contextlib.suppress(OSError):  # deleted meanwhile
                    stat = entry.stat()
                    yield Path(entry.path), (stat.st_mtime_ns, stat.st_size)

    def _read(self, dialogue_id: str) -> Dialogue | None:
        """The conversation in a file, remembering its summary; None where there is none to be had."""
        file = self._file(dialogue_id)
        try:
            stat = file.stat()
            if stat.st_size > MOST_BYTES:
                raise Damaged("too large")
            dialogue = load(file.read_text(encoding="utf-8", errors="surrogatepass"), dialogue_id)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                log.warning("a conversation cannot be read: %s", error)
            return None
        except NewerVersion:
            self._remember(dialogue_id, _Seen((stat.st_mtime_ns, stat.st_size), None))
            return None
        except (Damaged, UnicodeError) as error:
            self._put_aside(file, error)
            return None
        self._remember(dialogue_id, _Seen((stat.st_mtime_ns, stat.st_size), Summary.of(dialogue)))
        return dialogue

    def _remember(self, dialogue_id: str, seen: _Seen) -> None:
        with self._lock:
            self._seen[dialogue_id] = seen

    def _put_aside(self, file: Path, error: Exception) -> None:
        """Out of the list, under a name that says why; never deleted."""
        aside = file.with_name(f"{file.stem}-{time.time_ns()}{SET_ASIDE}")
        try:
            os.replace(file, aside)
        except OSError as problem:
            log.warning("a damaged conversation cannot be set aside: %s", problem)
            return
        log.warning("%s is damaged (%s); it was set aside as %s", file.name, error, aside.name)
        with self._lock:
            self._seen.pop(file.name.removesuffix(SUFFIX), None)
            self._set_aside.append(aside.name)

    def _notices(self, num_newer: int) -> tuple[str, ...]:
        with self._lock:
            aside, trouble = list(self._set_aside), self._trouble
        notices: list[str] = []
        if trouble:
            notices.append(
                f"The newest changes could not be saved ({trouble}). Make room; the next answer tries again."
            )
        if aside:
            what = plural(len(aside), "damaged conversation was", "damaged conversations were")
            notices.append(f"{what} set aside in {self.folder}: {', '.join(aside[:3])}{'…' if len(aside) > 3 else ''}")
        if num_newer:
            what = plural(num_newer, "conversation was", "conversations were")
            notices.append(f"{what} written by a newer version of the reader: start that one to open them.")
        return tuple(notices)

    def _file(self, dialogue_id: str) -> Path:
        assert self.folder is not None and ID.fullmatch(dialogue_id), f"{dialogue_id!r} names no file"
        return self.folder / f"{dialogue_id}{SUFFIX}"


def _make_private(folder: Path) -> None:
    """A folder that only its owner can look into."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.name == "posix":
            folder.chmod(0o700)
    except OSError as error:
        raise InvalidSetting(
            f"The folder {folder} cannot be used ({error.strerror}).", hint="Choose another place with --data-dir."
        ) from error


def _sweep(folder: Path) -> None:
    """Remove drafts that a killed program left; a young one may be another program's that is writing now."""
    for draft in folder.glob(f"*{SUFFIX}.*{DRAFT}"):
        with contextlib.suppress(OSError):
            if time.time() - draft.stat().st_mtime > OLD_DRAFT_SECONDS:
                draft.unlink()
