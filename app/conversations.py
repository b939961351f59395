"""Conversations on disk: one file each, written whole or not at all, by a thread that nobody waits for.

The list is the directory; there is no index that could be damaged. File names are random ids. A file that cannot be
read is set aside and named, one of a newer version is left alone and named; nothing is ever deleted but on request.

Two programs may use one folder: a lock is held while a file is written, and what another program has changed in it
since is merged. A write that fails is tried again, soon and then every half minute, and once more at the end.
"""

import contextlib
import logging
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock

from app.conversation_merge import merge
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
MOST_BYTES = 256 << 20  # of one file: no conversation is longer
MOST_WAIT_SECONDS = 10.0  # for the last write when the program ends
LOCK_SECONDS = 5.0  # another program holds the lock for milliseconds
# Virus scanners hold a file for a moment: the first tries follow at once.
TRY_AGAIN_SECONDS = (0.05, 0.1, 0.2, 0.4)
LATER_SECONDS = 30.0


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


@dataclass(frozen=True, slots=True)
class _Base:
    """A file as this program wrote or read it last."""

    stamp: tuple[int, int]
    dialogue: Dialogue


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
        self._bases: dict[str, _Base] = {}
        self._set_aside: list[str] = []
        self._trouble = ""  # why the latest write failed
        self._closed = self._tried_last = False
        self._writer: threading.Thread | None = None
        self._between: FileLock | None = None  # programs that use this folder
        if folder is not None:
            _make_private(folder)
            self._between = FileLock(folder.with_name(f"{folder.name}.lock"), timeout=LOCK_SECONDS, thread_local=False)
            with contextlib.suppress(OSError), self._between:
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
            self._bases.pop(dialogue_id, None)
            if self._between is not None and ID.fullmatch(dialogue_id):
                with contextlib.suppress(OSError), self._between:
                    self._file(dialogue_id).unlink(missing_ok=True)

    def _write_all(self) -> None:
        while (dialogue := self._next()) is not None:
            trouble = ""
            try:
                self._write_surely(dialogue)
            except Exception as error:  # no memory, no room, a value that is no JSON: no reason to stop saving
                trouble = str(getattr(error, "strerror", None) or error) or type(error).__name__
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

    def _next(self) -> Dialogue | None:
        """What to write next; what failed comes again after a while, and once more at the end. None: the end."""
        with self._lock:
            while not self._unwritten:
                if self._closed and (self._tried_last or not self._failed):
                    return None
                patience = LATER_SECONDS if self._failed else None
                came = self._lock.wait_for(lambda: self._closed or self._unwritten, patience)
                if not self._unwritten and (self._closed or not came):
                    self._tried_last = self._closed
                    self._unwritten, self._failed = self._failed, {}
            self._writing, dialogue = self._unwritten.popitem()
            return dialogue

    def _write_surely(self, dialogue: Dialogue) -> None:
        """Write; where the file cannot be had, a few times more.

        Raises:
            OSError: still not.
        """
        for seconds in TRY_AGAIN_SECONDS:
            try:
                return self._write(dialogue)
            except OSError:
                time.sleep(seconds)
        self._write(dialogue)

    def _write(self, dialogue: Dialogue) -> None:
        """Replace the file in one step: whoever reads it, or pulls the plug, finds the old state or the new one."""
        file = self._file(dialogue.id)
        assert self._between is not None, "nowhere to write"
        with self._between:
            merged = self._merged(dialogue, file)
            if not merged.nodes:  # another program removed all of it
                file.unlink(missing_ok=True)
            else:
                _replace(file, dump(merged).encode("utf-8", "surrogatepass"))
            written = _Base(_stamp(file), merged)
        with self._lock:
            self._bases[dialogue.id] = written
            latest = self._latest.get(dialogue.id)
            if latest is not None and merged.nodes:
                self._latest[dialogue.id] = latest.joined(merged, self._removed.get(dialogue.id, frozenset()))

    def _merged(self, dialogue: Dialogue, file: Path) -> Dialogue:
        """With what another program has changed in the file since this one wrote or read it."""
        with self._lock:
            base, removed = self._bases.get(dialogue.id), self._removed.get(dialogue.id, frozenset())
        if base is not None and base.stamp == _stamp(file):
            disk: Dialogue | None = base.dialogue
        else:
            disk = self._on_disk(file)
        if disk is None or disk.nodes == ():
            if base is None or list(file.parent.glob(f"{file.stem}-*{SET_ASIDE}")):
                return dialogue  # it is new, or its file was damaged: this program has the better one
            disk = replace(base.dialogue, nodes=())  # another program deleted it
        old = base.dialogue if base is not None else replace(dialogue, nodes=(), title="")
        merged = merge(dialogue, old, disk, removed)
        left = {node.id for node in merged.nodes}
        with self._lock:
            self._removed[dialogue.id] = (removed | {node.id for node in old.nodes}) - left
        return merged

    def _on_disk(self, file: Path) -> Dialogue | None:
        try:
            return _parsed(file, file.stat())
        except FileNotFoundError:
            return None
        except (Damaged, UnicodeError) as error:
            self._put_aside(file, error)
            return None

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
        if self._failed:
            lost = plural(len(self._failed), "conversation")
            log.error("%s could not be saved (%s): the newest changes are lost.", lost, self._trouble)

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
                    if entry.is_file():  # a pipe would be read for ever
                        status = entry.stat()
                        yield Path(entry.path), (status.st_mtime_ns, status.st_size)

    def _read(self, dialogue_id: str) -> Dialogue | None:
        """The conversation in a file, remembering its summary; None where there is none to be had."""
        file = self._file(dialogue_id)
        try:
            status = file.stat()
            dialogue = _parsed(file, status)
        except (OSError, MemoryError) as error:
            if not isinstance(error, FileNotFoundError):
                log.warning("a conversation cannot be read: %s", error)
            return None
        except NewerVersion:
            self._remember(dialogue_id, _Seen((status.st_mtime_ns, status.st_size), None))
            return None
        except (Damaged, UnicodeError) as error:
            self._put_aside(file, error)
            return None
        stamp = (status.st_mtime_ns, status.st_size)
        self._remember(dialogue_id, _Seen(stamp, Summary.of(dialogue)))
        with self._lock:
            if not self._is_unwritten(dialogue_id):
                self._bases[dialogue_id] = _Base(stamp, dialogue)
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


def _parsed(file: Path, status: os.stat_result) -> Dialogue:
    """The conversation in a file.

    Raises:
        OSError, UnicodeError, Damaged, NewerVersion.
    """
    if not stat.S_ISREG(status.st_mode):
        raise Damaged("no ordinary file")
    if status.st_size > MOST_BYTES:
        raise Damaged("too large")
    return load(file.read_text(encoding="utf-8", errors="surrogatepass"), file.stem)


def _stamp(file: Path) -> tuple[int, int]:
    """Time of change in nanoseconds and size; of no file, two zeros."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _replace(file: Path, text: bytes) -> None:
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
    """Remove drafts that a killed program left: while the lock is held, none is being written."""
    for draft in folder.glob(f"*{SUFFIX}.*{DRAFT}"):
        with contextlib.suppress(OSError):
            draft.unlink()
