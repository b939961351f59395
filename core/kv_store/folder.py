"""The folder with all saved books: lists them, limits their size and removes the least recently used.

Several processes may use it at once without locks: a book appears by one rename and disappears by one removal, and a
process that has it open can go on reading. What a killed process has left is removed (`core.files`). Damaged files are
removed; `notices` lists them.
"""

import contextlib
import errno
import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Literal, get_args

from torch import Tensor

from core.caches.tokens import common_prefix
from core.errors import BookFolderFull, InvalidSetting, NotPossibleHere, UnknownBook
from core.files import draft_of, replace_file, sweep_drafts
from core.kv_store.bookfile import EARLIER, SUFFIX, BookReader, DamagedBook, Label, OtherFormat
from core.kv_store.identity import digest_of

log = logging.getLogger(__name__)

SavingMode = Literal["ask", "always", "never"]
SETTINGS, DIGESTS = "settings.json", "weights.json"
SPARE_BYTES = 1 << 30  # of the disk that stay free
DEFAULT_CAP_BYTES = 40 << 30
MOST_CAP_BYTES = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class BookFolderSettings:
    """The user's settings."""

    keeping: SavingMode = "ask"  # whether a book is saved after its first reading
    cap_bytes: int = DEFAULT_CAP_BYTES  # of all books together

    def __post_init__(self) -> None:
        if self.keeping not in get_args(SavingMode):
            raise InvalidSetting(
                f"{self.keeping!r} is not a setting for saving books.", hint="Use ask, always or never."
            )
        if type(self.cap_bytes) is not int or not 0 <= self.cap_bytes <= MOST_CAP_BYTES:
            raise InvalidSetting("The size limit of the saved books must be a number.", hint="Use 0 GiB or more.")


@dataclass(frozen=True, slots=True)
class SavedBook:
    """One saved book of the list."""

    path: Path
    label: Label
    size_bytes: int
    used: float  # seconds since 1970, when it was last saved or opened

    @property
    def id(self) -> str:
        """Its name in commands."""
        return self.path.name.removesuffix(SUFFIX)

    @property
    def name(self) -> str:
        """The names of its documents."""
        return ", ".join(self.label.names) or self.id


@dataclass(frozen=True, slots=True)
class Found:
    """A saved book that begins like a text."""

    book: SavedBook
    shared: int  # leading tokens that both have


class BookFolder:
    """All books of one data directory. Methods may be called from several threads and processes."""

    def __init__(self, path: Path) -> None:
        """Make the folder if needed, and remove what killed processes left.

        Raises:
            InvalidSetting: it cannot be made.
        """
        self.path = path
        self.notices: list[str] = []  # about damaged files, and those of an earlier version
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            if os.name == "posix":
                path.chmod(0o700)
        except OSError as error:
            raise NotPossibleHere(
                f"The folder of saved books, {path}, cannot be made ({error.strerror}).",
                hint="Choose another place with --data-dir.",
            ) from error
        sweep_drafts(self.path)
        if earlier := self._earlier():
            size = amount(sum(file.stat().st_size for file in earlier))
            self.notices.append(
                f"Books saved by an earlier version take {size} and are read again from their texts. "
                "Remove these files with: python launch.py saved clear"
            )

    def _earlier(self) -> list[Path]:
        return [*self.path.glob(f"*{EARLIER}")]

    # -------------------- settings

    @property
    def settings(self) -> BookFolderSettings:
        """The present settings on disk; the defaults if none are usable."""
        try:
            return BookFolderSettings(**json.loads((self.path / SETTINGS).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError, InvalidSetting):
            return BookFolderSettings()

    def choose(self, settings: BookFolderSettings) -> None:
        """Save settings, and remove the books that exceed the new size limit.

        Raises:
            BookFolderFull: they cannot be written.
        """
        try:
            replace_file(self.path / SETTINGS, json.dumps(asdict(settings)).encode())
        except OSError as error:
            raise BookFolderFull(f"The settings of the saved books cannot be written ({error.strerror}).") from error
        self.evict(settings.cap_bytes)

    # -------------------- who is there

    def books(self) -> list[SavedBook]:
        """All readable books, the last used first. Damaged files are removed."""
        found = []
        for path in self.path.glob(f"*{SUFFIX}"):
            book = self._look(path)
            if book is not None:
                found.append(book)
        return sorted(found, key=lambda book: (-book.used, book.id))

    def _look(self, path: Path) -> SavedBook | None:
        with contextlib.suppress(OSError), self.opened(path) as reader:
            return SavedBook(path, reader.label, reader.file_bytes, path.stat().st_mtime)
        return None

    @contextlib.contextmanager
    def opened(self, path: Path) -> Iterator[BookReader]:
        """Open a book for reading; a damaged file is removed.

        Raises:
            FileNotFoundError: it does not exist, or no longer, is of another version, or was removed just now. OSError.
        """
        try:
            with contextlib.closing(BookReader(path)) as reader:  # Windows removes no open file
                yield reader
        except OtherFormat as error:
            raise FileNotFoundError(errno.ENOENT, str(error)) from error
        except DamagedBook as error:
            with contextlib.suppress(OSError):
                path.unlink()
                self.notices.append(f"A saved book was damaged ({error}); it was removed and the text is read again.")
                log.warning("%s", self.notices[-1])
            raise FileNotFoundError(errno.ENOENT, str(error)) from error

    def find(self, family: str, token_ids: Sequence[int]) -> Found | None:
        """The book of a family with the longest common prefix with a text; None if there is none."""
        best: Found | None = None
        for book in self.books():
            least = best.shared if best else 0
            if book.label.family != family or min(book.label.num_tokens, len(token_ids)) <= least:
                continue
            with contextlib.suppress(OSError), self.opened(book.path) as reader:
                shared = common_prefix(reader.tokens().tolist(), token_ids)
                if shared > least:
                    best = Found(book, shared)
        return best

    def touch(self, book: SavedBook) -> None:
        """Mark a book as used now, so that others are removed first."""
        with contextlib.suppress(OSError):
            os.utime(book.path)

    def named(self, name: str) -> SavedBook:
        """The book with this id, this beginning of an id, or this document.

        Raises:
            UnknownBook: there is none, or several.
        """
        books = self.books()
        found = [book for book in books if name in (book.id, book.name, *book.label.names)]
        found = found or [book for book in books if len(name) >= 4 and book.id.startswith(name)]
        if len(found) != 1:
            raise UnknownBook(name, several=len(found) > 1)
        return found[0]

    # -------------------- coming and going

    def room_for(self, size_bytes: int) -> None:
        """Make room for a book: check its size, and remove the least recently used books.

        Raises:
            BookFolderFull: it is larger than the size limit, or than the space on the disk.
        """
        cap = self.settings.cap_bytes
        if size_bytes > cap:
            raise BookFolderFull(f"The book would take {amount(size_bytes)}, all may take {amount(cap)}.", cap=True)
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)  # somebody may have removed it
        sweep_drafts(self.path)
        freed = max(0, sum(book.size_bytes for book in self.books()) - (cap - size_bytes))
        lacking = size_bytes + SPARE_BYTES - shutil.disk_usage(self.path).free - freed
        if lacking > 0:
            raise BookFolderFull(
                f"The book would take {amount(size_bytes)}, and the disk lacks {amount(lacking)} for that."
            )
        self.evict(cap - size_bytes)

    def evict(self, cap_bytes: int) -> list[SavedBook]:
        """Remove the least recently used books until all take at most this much."""
        books = self.books()
        total, gone = sum(book.size_bytes for book in books), []
        for book in reversed(books):
            if total <= cap_bytes:
                break
            if self.remove(book):
                gone.append(book)
                total -= book.size_bytes
        return gone

    def clear(self) -> list[SavedBook]:
        """Remove all books, those of an earlier version included; returns the others."""
        for file in self._earlier():
            file.unlink(missing_ok=True)
        self.notices.clear()
        return self.evict(0)

    def remove(self, book: SavedBook) -> bool:
        """Remove a book from the disk. A process that has it open can go on reading."""
        try:
            book.path.unlink()
        except FileNotFoundError:
            return True
        except OSError as error:  # Windows: another process reads it
            log.warning("%s cannot be removed now: %s", book.path.name, error)
            return False
        return True

    @contextlib.contextmanager
    def writing(self, family: str, token_ids: Tensor) -> Iterator[BinaryIO]:
        """A temporary file that becomes the book of these tokens if the block succeeds, and is removed if it fails.

        Raises:
            BookFolderFull: the disk is full or fails; no temporary file is left.
        """
        try:
            with draft_of(self.path / f"{book_id(family, token_ids)}{SUFFIX}") as file:
                yield file
        except OSError as error:
            raise BookFolderFull(f"The book could not be saved: {error.strerror or error}.") from error


def book_id(family: str, token_ids: Tensor) -> str:
    """File name for a text, [n] int32, in a family: the same text always has the same file."""
    return digest_of(bytes.fromhex(family) + token_ids.contiguous().numpy().tobytes())[:24]


def amount(size_bytes: int) -> str:
    """1.4 GiB, 12 MiB."""
    return f"{size_bytes / (1 << 30):.1f} GiB" if size_bytes >= 1 << 30 else f"{-(-size_bytes // (1 << 20))} MiB"
