"""The reader's library on one page, the files being uploaded to it, and whether it fits.

A page's handlers change the library and show all this; the engine's thread counts and opens it
(`app/runtime/context_loader.py`). Values are replaced, never changed in place, so views always see one state.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from app.context.context_documents import Book, Library, digest_of
from app.context.page_ranges import understood
from app.context.token_costs import Meter
from app.documents.document import Document
from core.errors import CoreError

Stage = Literal["waiting", "extracting", "recognising", "extracted", "counting", "failed"]
ON_THE_WAY = ("waiting", "extracting")
TO_OPEN = ("extracted", "counting")  # by the engine's thread


class Interrupted(CoreError):
    """The page was closed, or Stop pressed, before a file's text was extracted."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was not opened: it was stopped on the way.", hint="Drop it again.")


class NotKept(CoreError):
    """The copy of a file went because those of other open files took too much."""

    def __init__(self, name: str) -> None:
        super().__init__(f"The file of {name} is no longer kept.", hint="Remove it and open the file again.")


@dataclass(slots=True, eq=False)
class Upload:
    """One file that is being added to the library."""

    number: int
    name: str
    stage: Stage = "waiting"
    num_done: int = 0  # pages extracted
    num_pages: int | None = None
    seconds_left: float | None = None  # of recognition
    replaces: str = ""  # the key of the book whose text is read anew
    choice: str = ""  # of its parts, as text (`page_ranges`); "": all of it
    document: Document | None = None
    file: Path | None = None  # of a PDF that is extracted, or holds only pictures
    error: CoreError | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def fail(self, error: CoreError, file: Path | None = None) -> None:
        """The upload has failed with this error. `file`: of pictures whose text can be recognised."""
        self.stage, self.error, self.document, self.file = "failed", error, None, file


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The tokens a library needs, and those the context has."""

    books: int
    frame: int  # of the chat template before the books
    talk: int  # of the conversation that continues
    reserve: int  # for a question and its answer
    context: int
    possible: int  # the largest context the model could have
    talks: Mapping[str, int] = field(default_factory=dict)  # `talk` of other branches, by the exchange they end with

    @property
    def needed(self) -> int:
        """The sum of all needs."""
        return self.books + self.frame + self.talk + self.reserve

    @property
    def fits(self) -> bool:
        """The context holds it."""
        return self.needed <= self.context


class Uploads:
    """One page's library."""

    def __init__(self) -> None:
        self.library = Library()
        self.pending: tuple[Upload, ...] = ()
        self.meter: Meter | None = None  # made by the engine's thread, because counting needs the tokenizer
        self.fit: Fit | None = None  # of `settled`
        self.settled = Library()  # the library last opened, or found too long
        self.note = ""  # what the latest change means for the conversation
        self.error: CoreError | None = None  # of the latest change or reading
        self._lock = threading.Lock()
        self._number = 0

    def expect(self, names: Sequence[str]) -> tuple[Upload, ...]:
        """Add uploads for new files; earlier errors are forgotten."""
        with self._lock:
            coming = tuple(Upload(self._number + at, name) for at, name in enumerate(names, 1))
            self._number += len(names)
            self.pending = (*(one for one in self.pending if one.stage != "failed"), *coming)
            self.error, self.note = None, ""
        return coming

    def insert(self, upload: Upload, documents: Sequence[Document]) -> None:
        """Add uploads behind another one for documents whose text is already extracted."""
        with self._lock:
            at = self.pending.index(upload) + 1
            more = (
                Upload(self._number + number, document.name, stage="extracted", document=document)
                for number, document in enumerate(documents, 1)
            )
            self.pending = (*self.pending[:at], *more, *self.pending[at:])
            self._number += len(documents)

    def leave(self, upload: Upload) -> None:
        """Remove an upload that is in the library or no longer wanted."""
        with self._lock:
            self.pending = tuple(one for one in self.pending if one is not upload)

    def dismiss(self, number: int) -> None:
        """Forget an upload's error, because the reader has seen it."""
        for upload in self.pending:
            if upload.number == number and upload.stage == "failed":
                self.leave(upload)

    def change(self, change: Callable[[Library], Library]) -> None:
        """Change the library and forget earlier errors. If `change` raises, nothing changes."""
        with self._lock:
            self.library = change(self.library)
            self.pending = tuple(one for one in self.pending if one.stage != "failed")
            self.error, self.note = None, ""

    def recognise(self, key: str) -> Upload | None:
        """Begin to recognise the text of a book, or of an upload that failed because it has no text.

        None: it is gone, or is being recognised.
        """
        with self._lock:
            index = self.library.index(key)
            if index is not None:
                book = self.library.books[index]
                if book.file is None or any(one.replaces == key for one in self.pending if one.stage != "failed"):
                    return None
                self._number += 1
                upload = Upload(self._number, book.document.name, file=book.file, replaces=key)
                self.pending = (*(one for one in self.pending if one.replaces != key), upload)
            else:
                failed = [one for one in self.pending if str(one.number) == key and one.stage == "failed" and one.file]
                if not failed:
                    return None
                upload = failed[0]
                upload.error = None
                upload.stop.clear()
            upload.stage, upload.num_done, upload.num_pages, upload.seconds_left = "recognising", 0, None, None
            self.error = None
            return upload

    def add(self, document: Document, file: Path | None = None, replaces: str = "", choice: str = "") -> None:
        """Add a document to the library, or the chosen parts of it; see `Library.add`.

        Raises:
            CoreError: the same text is in the library. InvalidSetting: the document has no such parts.
        """
        with self._lock:
            library = self.library.add(document, file, replaces)
            self.library = library.choose(len(library.books) - 1, understood(document, choice)) if choice else library

    def stop(self, number: int | None = None) -> None:
        """Stop extracting and recognising, or only the upload with a number."""
        for upload in self.pending:
            if number in (None, upload.number):
                upload.stop.set()

    @property
    def extracting(self) -> bool:
        """Some file's text is still being extracted."""
        return any(one.stage in ON_THE_WAY for one in self.pending)

    @property
    def recognising(self) -> bool:
        """Text on pictures is being recognised."""
        return any(one.stage == "recognising" for one in self.pending)

    @property
    def takes_text(self) -> bool:
        """The text of a new document is being extracted, or recognised on pictures."""
        return any(one.stage in ON_THE_WAY or (one.stage == "recognising" and not one.replaces) for one in self.pending)

    @property
    def arriving(self) -> bool:
        """A new document is on its way into the library."""
        return self.takes_text or self._to_open

    @property
    def extracted(self) -> tuple[Upload, ...]:
        """Uploads whose text is extracted but not yet counted."""
        return tuple(one for one in self.pending if one.stage == "extracted")

    @property
    def open_books(self) -> tuple[Book, ...]:
        """The library, and texts that wait to be counted: without a model all of them do."""
        waiting = [
            Book(document=one.document, digest=digest_of(one.document.text), file=one.file)
            for one in self.pending
            if one.stage in TO_OPEN and one.document and not one.replaces
        ]
        books = [*self.library.books, *waiting]
        return tuple({book.digest: book for book in reversed(books)}.values())[::-1]

    def open_book(self, key: str) -> Book | None:
        """The open book with a key."""
        return next((book for book in self.open_books if book.key == key), None)

    @property
    def behind(self) -> bool:
        """There are changes that the engine's thread has not opened yet."""
        return self._to_open or self.library is not self.settled

    @property
    def _to_open(self) -> bool:
        return any(one.stage in TO_OPEN for one in self.pending)

    @property
    def coming(self) -> bool:
        """Something is on its way that is not open yet."""
        return self.arriving or (self.behind and bool(self.library.books))

    @property
    def too_long(self) -> bool:
        """The present library does not fit."""
        return self.fit is not None and self.library is self.settled and not self.fit.fits
