"""What a page's reader wants to be read: the library, the files on their way to it, and what of it fits.

A page's handlers change the library and show all this; the engine's thread counts and opens
(`app/runtime/context_loader.py`). Values are replaced, never changed in place: whoever draws them sees one state.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from app.context.context_documents import Library
from app.context.offers import Offer
from app.context.token_costs import Meter
from app.documents.document import Document
from core.errors import CoreError

Stage = Literal["waiting", "extracting", "extracted", "counting", "failed"]
ON_THE_WAY = ("waiting", "extracting")


class Interrupted(CoreError):
    """The page was left, or Stop was pressed, before a file's text was there."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was not opened: it was stopped on the way.", hint="Drop it again.")


@dataclass(slots=True, eq=False)
class Upload:
    """One file on its way to the library."""

    number: int
    name: str
    stage: Stage = "waiting"
    num_done: int = 0  # pages extracted
    num_pages: int | None = None
    document: Document | None = None
    error: CoreError | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def fail(self, error: CoreError) -> None:
        """It will not come, and why."""
        self.stage, self.error, self.document = "failed", error, None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a library needs of the context, in tokens."""

    books: int
    frame: int  # what the chat template puts before the books
    talk: int  # the conversation that goes on
    reserve: int  # kept for a question and its answer
    context: int
    possible: int  # the most the model could take
    offers: tuple[Offer, ...] = ()  # if it is too long
    talks: Mapping[str, int] = field(default_factory=dict)  # `talk` of other branches, by the exchange they end with

    @property
    def needed(self) -> int:
        """All together."""
        return self.books + self.frame + self.talk + self.reserve

    @property
    def fits(self) -> bool:
        """Whether the context holds it."""
        return self.needed <= self.context


class Uploads:
    """One page's library."""

    def __init__(self) -> None:
        self.library = Library()
        self.pending: tuple[Upload, ...] = ()
        self.meter: Meter | None = None  # the engine's thread makes it: counting needs the tokenizer
        self.fit: Fit | None = None  # of `settled`
        self.settled = Library()  # the library that was last opened, or found too long
        self.note = ""  # what the latest change meant for the conversation
        self.error: CoreError | None = None  # of the latest change or reading
        self._lock = threading.Lock()
        self._number = 0

    def expect(self, names: Sequence[str]) -> tuple[Upload, ...]:
        """Files have come. What went wrong before is told no more."""
        with self._lock:
            coming = tuple(Upload(self._number + at, name) for at, name in enumerate(names, 1))
            self._number += len(names)
            self.pending = (*(one for one in self.pending if one.stage != "failed"), *coming)
            self.error, self.note = None, ""
        return coming

    def leave(self, upload: Upload) -> None:
        """It is in the library, or of no interest any more."""
        with self._lock:
            self.pending = tuple(one for one in self.pending if one is not upload)

    def dismiss(self, number: int) -> None:
        """What went wrong has been read."""
        for upload in self.pending:
            if upload.number == number and upload.stage == "failed":
                self.leave(upload)

    def change(self, change: Callable[[Library], Library]) -> None:
        """Another library; what went wrong before is told no more. If `change` raises, all is as it was."""
        with self._lock:
            self.library = change(self.library)
            self.pending = tuple(one for one in self.pending if one.stage != "failed")
            self.error, self.note = None, ""

    def add(self, document: Document) -> None:
        """A document has come.

        Raises:
            AlreadyThere: the same text is in the library.
        """
        with self._lock:
            self.library = self.library.add(document)

    def stop(self) -> None:
        """Extract nothing more."""
        for upload in self.pending:
            upload.stop.set()

    @property
    def extracting(self) -> bool:
        """Some file's text is still on its way."""
        return any(one.stage in ON_THE_WAY for one in self.pending)

    @property
    def extracted(self) -> tuple[Upload, ...]:
        """Texts that are there and not counted."""
        return tuple(one for one in self.pending if one.stage == "extracted")

    @property
    def behind(self) -> bool:
        """There is something that the engine's thread has not seen."""
        return bool(self.extracted) or self.library is not self.settled

    @property
    def too_long(self) -> bool:
        """The library as it is does not fit."""
        return self.fit is not None and self.library is self.settled and not self.fit.fits
