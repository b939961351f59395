"""Jobs that bring a book to the model, on the engine's thread: extract, count, read, save to disk, baseline.

Pages call `Reading`; the functions below it run on the engine's thread.
"""

import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.context.retrieval_map import BASELINE_QUESTIONS, mean
from app.context.uploads import ON_THE_WAY, Interrupted, Upload
from app.documents.bundle import extract_documents
from app.documents.document import Document, Extracting
from app.documents.readers import kind_of
from app.runtime.context_loader import open_library
from app.runtime.events import Pause, ReadingEnded, Waiting, WorkerEvent
from app.runtime.jobs import JobQueue
from app.runtime.saved_books import SavedBooks, disk_state
from app.runtime.sessions import Session
from core.errors import CoreError
from core.generation.events import PrefillProgress

if TYPE_CHECKING:  # importing it takes seconds: the engine's thread does it while the page is already served
    from core.engine_api import TextEngine


class Reading:
    """Queues the work on the books of sessions."""

    def __init__(self, jobs: JobQueue, saved_books: SavedBooks) -> None:
        self._jobs, self._saved_books = jobs, saved_books

    def extract(self, session: Session, pending: Sequence[Upload], files: Sequence[Path]) -> Iterator[WorkerEvent]:
        """Extract files into their uploads, in the caller's thread; then `catch_up`."""
        try:
            for upload, file in zip(pending, files, strict=True):
                try:
                    yield from extract_one(upload, file, session.uploads.insert)
                    if upload.file is not None:
                        session.files.hold(session.id, upload.file)
                except CoreError as error:
                    upload.fail(error)
        finally:
            for upload in pending:
                if upload.stage in ON_THE_WAY:
                    upload.fail(Interrupted(upload.name))
        yield from self.catch_up(session)

    def catch_up(self, session: Session) -> Iterator[WorkerEvent]:
        """Count, open and read, unless another text is still being extracted: its stream then continues with this."""
        mine = None
        try:
            for event in self._steps(session):
                if isinstance(event, Waiting | PrefillProgress):
                    session.doing = mine = event
                yield event
        finally:
            if session.doing is mine:
                session.doing = None

    def _steps(self, session: Session) -> Iterator[WorkerEvent]:
        if session.uploads.extracting:
            return
        if session.uploads.behind:
            self._jobs.cancel(session.id, "reading")  # what was read stays read
            yield from self._jobs.stream(session, "counting", partial(open_library, session))
        if session.book is not None and not session.is_read and not session.uploads.behind:
            yield from self._jobs.stream(session, "reading", partial(read_opening, session, self._saved_books))
        yield from self._keep(session)
        self._baseline_later(session)

    def _keep(self, session: Session) -> Iterator[WorkerEvent]:
        state = disk_state(session)
        write = partial(self._saved_books.write, session, self._jobs.others_wait)
        try:
            while state.wanted:
                yield from self._jobs.stream(session, "saving", write)
        finally:
            if state.wanted:  # the page was closed
                state.decline()

    def after(self, session: Session, events: Iterator[WorkerEvent]) -> Iterator[WorkerEvent]:
        """Yield an answer's events; then do the remaining work on the book, if nobody waits."""
        yield from events
        if disk_state(session).wanted:  # the answer has read it, and books are saved without asking
            self._jobs.add_once(session, "saving", partial(self._keep_quietly, session))
        self._baseline_later(session)

    def _keep_quietly(self, session: Session, engine: "TextEngine", cancel: threading.Event) -> Iterator[WorkerEvent]:
        yield from self._saved_books.write(session, self._jobs.others_wait, engine, cancel)
        if disk_state(session).wanted:  # its writing was interrupted
            self._jobs.add(session, "saving", partial(self._keep_quietly, session))

    def _baseline_later(self, session: Session) -> None:
        """Queue the baseline: what the retrieval cache selects whatever the question, measured when nobody waits."""
        book = session.book
        if book is None or not book.chunk_pages or not session.is_read:
            return
        if session.baseline is not None and session.budget in (None, session.baseline_budget):
            return
        self._jobs.add_once(session, "survey", partial(survey, session, lambda: len(self._jobs) > 1))


def extract_one(
    upload: Upload, file: Path, insert: Callable[[Upload, Sequence[Document]], None]
) -> Iterator[Extracting]:
    """Extract a file's text into its upload; of a ZIP file the first, and the others into new uploads behind it."""
    upload.stage = "extracting"
    found: list[Document] = []
    with closing(extract_documents(file)) as steps:
        for step in steps:
            if upload.stop.is_set():
                raise Interrupted(upload.name)
            if isinstance(step, Document):
                found.append(step)
            else:
                upload.num_done, upload.num_pages = step.num_done, step.num_pages
                yield step
    insert(upload, found[1:])
    if (
        found[0].format == "pdf" and not file.is_dir() and kind_of(file, upload.name) == "pdf"
    ):  # itself, not a ZIP of it
        upload.file = file
    upload.name, upload.document, upload.stage = found[0].name, found[0], "extracted"


def read_opening(
    session: Session, saved_books: SavedBooks, engine: "TextEngine", cancel: threading.Event
) -> Iterator[WorkerEvent]:
    """Prefill everything before the first question, except what was saved on disk."""
    conversation = session.conversation
    if conversation is None:  # it was removed from the library before the reading's turn
        return
    before, opening = session.read_seconds, conversation.opening_ids(engine.text)
    yield from saved_books.fetch(session, opening, engine, cancel)
    for progress in engine.read(opening, cancel):
        session.num_read = max(session.num_read, progress.kept_tokens)
        session.read_seconds = before + progress.elapsed_seconds
        yield progress
    if session.is_read:
        saved_books.read_ended(session, opening[:-1], engine)
    yield ReadingEnded(session.num_read, session.is_read)


def survey(
    session: Session, somebody_waits: Callable[[], bool], engine: "TextEngine", cancel: threading.Event
) -> Iterator[WorkerEvent]:
    """Measure the baseline with fixed questions; stop as soon as a job waits, and measure the rest afterwards."""
    book, conversation = session.book, session.conversation
    if book is None or conversation is None:
        return
    baseline, budget = array("d"), engine.use_budget(session.budget)
    for number, question in enumerate(BASELINE_QUESTIONS):
        prompt = conversation.until(0).ask(question).prompt_ids(engine.text)
        if somebody_waits() or engine.cached_prefix(prompt) < book.num_opening - 1:
            return  # or the cache holds another page's book, and this is not worth a new prefill
        weights = engine.weights_after(prompt, cancel)
        if weights is None:
            return
        baseline = mean(baseline, number, weights.tolist())
        yield Pause()
    if session.book is book:
        session.baseline, session.baseline_budget = baseline, budget
