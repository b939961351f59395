"""Texts that need not be read again: kept in memory while another one is asked about, and saved on disk if wanted.

Pages and `serve` bring a prompt here before the engine reads it. The work runs on the engine's thread and stops for
waiting jobs; the state is what the page's card shows. Knows nothing of Gradio. `core.kv_store` imports torch, so it is
imported only once the engine is there.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.runtime.events import BookMoving, Pause
from core.engine_api import TextEngine, local
from core.errors import CoreError

if TYPE_CHECKING:
    from app.context.open_book import Book
    from app.runtime.sessions import Session
    from core.kv_store.engine_store import BookStore, Kept, Moving, ReadBook
    from core.kv_store.folder import BookFolder, SavingMode
    from core.kv_store.slots import Slots


@dataclass(slots=True, eq=False)
class DiskState:
    """The state of one page's book on disk."""

    book: "Book | None" = None
    doing: BookMoving | None = None
    num_fetched: int = 0  # tokens fetched from disk
    fetch_seconds: float = 0.0
    offer: "ReadBook | None" = None  # may be saved; not yet accepted or declined
    wanted: bool = False  # accepted
    writing: "Generator[Moving | Kept] | None" = None
    kept_bytes: int = 0  # bytes saved since this reading
    note: str = ""

    def decline(self, note: str = "") -> None:
        """Do not save the book, because the reader declined or because it is impossible."""
        self.offer, self.wanted, self.note, self.doing = None, False, note, None
        writing, self.writing = self.writing, None
        if writing is not None:
            with contextlib.suppress(ValueError):  # the generator is running; its job ends it
                writing.close()


log = logging.getLogger(__name__)

LEAST_REUSED = 0.1  # of an opening; every text begins with what the chat template says before it
LOST = "The book was not saved: another one was read meanwhile. It is saved when it is read again."
STOPPED = "The book was not saved."


def disk_state(session: "Session") -> DiskState:
    """The disk state of the book that is open now."""
    if session.disk.book is not session.book:
        session.disk = DiskState(session.book)
    return session.disk


class SavedBooks:
    """The kept texts of one program. Without a folder it saves and opens nothing.

    Args:
        keeping: whether books are saved; None: as the user has set it.
    """

    def __init__(self, path: Path | None = None, keeping: "SavingMode | None" = None) -> None:
        self.path, self._keeping = path, keeping
        self._store: BookStore | None = None
        self._slots: Slots | None = None
        self._folder: BookFolder | None = None

    @property
    def folder(self) -> "BookFolder | None":
        """The books on disk. Cost: the first call imports torch."""
        if self._folder is None and self.path is not None:
            from core.kv_store.folder import BookFolder

            try:
                self._folder = BookFolder(self.path)
            except CoreError as error:  # books are read without the disk
                log.warning("%s", error)
                self.path = None
        return self._folder

    def leave(self) -> None:
        """Forget the engine, and its texts in memory, before it is freed."""
        self._store = self._slots = None

    def meet(self, engine: TextEngine) -> None:
        """An engine is there: if there are saved books, its weights are read aside, to know which of them are its."""
        store = self._of(engine)
        if store is not None and store.folder.books():
            store.knows_family()

    def num_in_memory(self, token_ids: Sequence[int]) -> int:
        """How many of a text's first tokens are kept in memory, beside the one that the model has."""
        return self._slots.num_kept(token_ids) if self._slots is not None else 0

    def _of(self, engine: TextEngine) -> "BookStore | None":
        if self._store is None and (folder := self.folder) is not None:
            from core.kv_store.engine_store import BookStore, refusal

            if refusal(engine) is None:
                self._store = BookStore(engine, folder)
        return self._store

    def _bring(
        self, prompt_ids: Sequence[int], engine: TextEngine, cancel: threading.Event, room: int = 0
    ) -> Iterator[Pause]:
        from core.kv_store.engine_store import refusal
        from core.kv_store.slots import Slots

        if refusal(engine) is not None:
            return  # its text is read again
        self._slots = self._slots or Slots(local(engine))
        for _ in self._slots.bring(prompt_ids, cancel.is_set, room=room):
            yield Pause()

    def fetch(
        self,
        session: "Session",
        prompt_ids: Sequence[int],
        engine: TextEngine,
        cancel: threading.Event,
        most_new: int = 0,
    ) -> Iterator[BookMoving | Pause]:
        """Bring what is kept or saved of a prompt into the engine, so that the model need not read it.

        `most_new`: tokens that its answer may have.
        """
        room = len(prompt_ids) + most_new
        yield from self._bring(prompt_ids, engine, cancel, room)
        store = self._of(engine)
        if store is None:
            return
        from core.kv_store.engine_store import Fetched

        state = disk_state(session)
        try:
            for event in store.fetch(prompt_ids, cancel, waits=False, room=room):
                if isinstance(event, Fetched):
                    state.num_fetched, state.fetch_seconds = event.num_tokens, event.elapsed_seconds
                else:
                    state.doing = BookMoving("opening", event.done_tokens, event.total_tokens)
                    yield state.doing
        finally:
            state.doing = None

    def read_ended(self, session: "Session", token_ids: Sequence[int], engine: TextEngine) -> None:
        """The engine holds exactly the book's tokens: if reading took long, offer to save them, or save unasked."""
        if session.incognito or session.book is None:
            return
        alone = session.num_reused < LEAST_REUSED * len(token_ids)  # else the time tells nothing of a whole reading
        self.was_read(session, token_ids, engine, session.book.names, session.read_seconds if alone else 0.0)

    def was_read(
        self, session: "Session", token_ids: Sequence[int], engine: TextEngine, names: Sequence[str], seconds: float
    ) -> None:
        """As `read_ended`, for any text that took `seconds` to read."""
        store = self._of(engine)
        if store is None:
            return
        from core.kv_store.engine_store import WORTH_SECONDS

        state, keeping = disk_state(session), self._keeping or store.folder.settings.keeping
        if keeping == "never" or seconds < WORTH_SECONDS or not store.has_queries(token_ids):
            return
        if (state.wanted and state.offer and state.offer.token_ids != tuple(token_ids)) or store.is_saved(token_ids):
            return  # one text is saved at a time
        state.offer = store.read_book(token_ids, names, seconds)
        state.wanted = keeping == "always"

    def write(
        self, session: "Session", others_wait: Callable[[], bool], engine: TextEngine, cancel: threading.Event
    ) -> Iterator[BookMoving | Pause]:
        """Write the session's book, or continue to, until it is complete or another job waits for the engine."""
        from core.kv_store.engine_store import Kept

        state, store = disk_state(session), self._of(engine)
        if state.offer is None or store is None:
            state.decline()
            return
        if not store.holds(state.offer):  # another text was read meanwhile; this one may be in memory
            yield from self._bring([*state.offer.token_ids, 0], engine, cancel)
        if not store.holds(state.offer):
            state.decline(LOST)
            return
        writing = state.writing = state.writing or store.keep(state.offer)
        try:
            for event in writing:
                if cancel.is_set():
                    writing.close()
                    state.decline(STOPPED)
                    return
                if isinstance(event, Kept):
                    state.kept_bytes = event.size_bytes
                    state.decline()
                    return
                state.doing = BookMoving("saving", event.done_tokens, event.total_tokens)
                yield state.doing
                if others_wait():
                    return
        except CoreError as error:
            state.decline(str(error))
