"""Jobs that bring a book to the model, on the engine's thread: extract, count, read, save to disk, baseline.

Pages call `Reading`; the functions below it run on the engine's thread.
"""

import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from app.context.context_documents import Library
from app.context.open_book import Book
from app.context.retrieval_map import BASELINE_QUESTIONS, mean
from app.context.uploads import ON_THE_WAY, Interrupted, NotKept, Upload
from app.documents.errors import NotRead, ScannedDocument
from app.documents.ocr import Ocr
from app.documents.recognised import RecognisedPages
from app.runtime.context_loader import open_library
from app.runtime.events import BookOpened, Changed, Pause, Waiting, WorkerEvent
from app.runtime.jobs import JobQueue
from app.runtime.reopening import bring, extract_one, is_pdf, keep_texts, sources
from app.runtime.saved_books import SavedBooks, disk_state
from app.runtime.sessions import Session
from core.engine_api import TextEngine, local
from core.errors import CoreError
from core.files import file_digest
from core.generation.events import PrefillProgress

FORGOTTEN = "Its recognised text is no longer kept on disk; the open book stays."


class Reading:
    """Queues the work on the books of sessions."""

    def __init__(self, jobs: JobQueue, saved_books: SavedBooks, recognised: RecognisedPages | None = None) -> None:
        self._jobs, self._saved_books, self._recognised = jobs, saved_books, recognised

    def extract(self, session: Session, pending: Sequence[Upload], files: Sequence[Path]) -> Iterator[WorkerEvent]:
        """Extract files into their uploads, in the caller's thread; then `catch_up`.

        Uploads of a stream that is closed have failed.
        """
        ocr = Ocr(recognise=False, kept=self._recognised)
        session.drop_files()
        with arriving(pending):
            for upload, file in zip(pending, files, strict=True):
                try:
                    yield from extract_one(upload, file, session.uploads.insert, ocr)
                except CoreError as error:
                    can_be_read = isinstance(error, ScannedDocument) and error.num_pictures and is_pdf(file)
                    upload.fail(error, file if can_be_read else None)
                except OSError as error:  # no room, no process: the other files are read
                    upload.fail(NotRead(upload.name, error))
                if upload.file is not None:
                    session.files.hold(session.id, upload.file)
        yield from self.catch_up(session)

    def reopen(self, session: Session) -> Iterator[WorkerEvent]:
        """Open the books of the shown conversation again, in place of the library; then `catch_up`."""
        if session.dialogue is None or session.fits:
            return
        wanted = sources(session.dialogue.book)
        session.uploads.change(lambda _: Library())
        pending = session.uploads.expect([one.name for one in wanted])
        with arriving(pending):
            yield from bring(session, pending, wanted, Ocr(recognise=False, kept=self._recognised))
        yield from self.catch_up(session)

    def recognise(self, session: Session, key: str) -> Iterator[WorkerEvent]:
        """Recognise the text on the pictures of a book or a failed upload, in the caller's thread; then `catch_up`.

        What was recognised until Stop is used. If the page is closed, it is there for the next time.
        """
        uploads = session.uploads
        upload = uploads.recognise(key)
        if upload is None or upload.file is None:
            return
        file = upload.file

        def stopped() -> bool:
            return upload.stop.is_set() or bool(upload.replaces and uploads.library.index(upload.replaces) is None)

        kept = None if session.incognito else self._recognised
        try:
            if not file.is_file():
                raise NotKept(upload.name)
            yield from extract_one(upload, file, uploads.insert, Ocr(recognise=True, kept=kept, stopped=stopped))
        except CoreError as error:
            upload.fail(error, file)
        except OSError as error:
            upload.fail(NotRead(upload.name, error), file)
        finally:
            if upload.stage == "recognising":  # the page was closed
                upload.fail(Interrupted(upload.name), file)
                if upload.replaces:
                    uploads.leave(upload)
            session.drop_files()
        yield from self.catch_up(session)

    def forget(self, session: Session, key: str) -> None:
        """Delete the recognised text of a book from disk; the open book stays.

        Raises:
            NotKept: its file is gone, by which its text is known on disk.
        """
        library = session.uploads.library
        index = library.index(key)
        book = library.books[index] if index is not None else None
        if book is None or book.file is None or self._recognised is None:
            return
        if not book.file.is_file():
            raise NotKept(book.document.name)
        self._recognised.forget(file_digest(book.file))
        session.uploads.note = FORGOTTEN

    def catch_up(self, session: Session) -> Iterator[WorkerEvent]:
        """Count, open and read, unless another text is still being extracted: its stream then continues with this."""
        uploads = session.uploads
        mine: Waiting | PrefillProgress | None = None
        if uploads.extracting:
            return
        if uploads.behind:
            self._jobs.cancel(session.id, "reading")  # what was read stays read
        elif session.book is None or session.is_read:
            self._later(session)
            return
        uploads.error = None
        if not isinstance(session.doing, PrefillProgress):
            session.doing = mine = Waiting("opening", 0)
        try:
            for event in self._jobs.stream(session, "reading", partial(open_and_read, session, self._saved_books)):
                reads = isinstance(session.doing, PrefillProgress) and session.doing is not mine
                if isinstance(event, PrefillProgress) or (isinstance(event, Waiting) and not reads):
                    session.doing = mine = event  # progress of this page's own other reading says more than a wait
                elif isinstance(event, BookOpened):
                    mine = session.doing  # as `open_and_read` has set it
                yield event
            self._later(session)
        except CoreError:
            for upload in session.uploads.extracted:  # without a model it is not on its way
                upload.stop.set()
            raise
        finally:
            if session.doing is mine:
                session.doing = None

    def after(self, session: Session, events: Iterator[WorkerEvent]) -> Iterator[WorkerEvent]:
        """Yield an answer's events; then do the remaining work on the book, if nobody waits."""
        yield from events
        self._later(session)

    def _later(self, session: Session) -> None:
        self.save_later(session)
        self._baseline_later(session)

    def save_later(self, session: Session) -> None:
        """Queue the writing of what was read, if that was asked for, or books are saved without asking.

        Raises:
            CoreError: the disk refuses its text.
        """
        if disk_state(session).wanted:
            self._jobs.add_once(session, "saving", partial(self._save, session))
            keep_texts(session)

    def _save(self, session: Session, engine: TextEngine, cancel: threading.Event) -> Iterator[WorkerEvent]:
        yield from self._saved_books.write(session, self._jobs.others_wait, engine, cancel)
        if disk_state(session).wanted:  # its writing was interrupted
            self._jobs.add(session, "saving", partial(self._save, session))

    def _baseline_later(self, session: Session) -> None:
        """Queue the baseline: what the retrieval cache selects whatever the question, measured when nobody waits."""
        book = session.book
        if book is None or not book.chunk_pages or not session.is_read:
            return
        if session.baseline is not None and session.budget in (None, session.baseline_budget):
            return
        self._jobs.add_once(session, "survey", partial(survey, session, self._jobs.others_wait))


@contextmanager
def arriving(pending: Sequence[Upload]) -> Iterator[None]:
    """Whatever ends it, no upload stays on the way."""
    try:
        yield
    finally:
        for upload in pending:
            if upload.stage in ON_THE_WAY:
                upload.fail(Interrupted(upload.name))


def about_to_read(session: Session, book: Book) -> PrefillProgress:
    """Progress of a reading that begins as soon as the engine's thread takes it."""
    read = session.num_read
    return PrefillProgress(
        done_tokens=read, total_tokens=book.num_tokens, reused_tokens=read, elapsed_seconds=0.0, remaining_seconds=None
    )


def open_and_read(
    session: Session, saved_books: SavedBooks, engine: TextEngine, cancel: threading.Event
) -> Iterator[WorkerEvent]:
    """Open the library, and prefill everything before the first question, except what was saved on disk."""
    for event in open_library(session, engine, cancel) if session.uploads.behind else ():
        if isinstance(event, BookOpened) and not session.is_read and not isinstance(session.doing, PrefillProgress):
            session.doing = about_to_read(session, event.book)  # from now on it is not one that was stopped
        yield event
    conversation = session.conversation
    if conversation is None or session.is_read or session.uploads.behind:  # without a book, or stopped
        return
    before, opening = session.read_seconds, conversation.opening_ids(engine.text)
    yield from saved_books.fetch(session, opening, engine, cancel)
    for progress in engine.read(opening, cancel):
        session.num_read = max(session.num_read, progress.kept_tokens)
        session.num_reused = session.num_reused if before else progress.reused_tokens
        session.read_seconds = before + progress.elapsed_seconds
        yield progress
    if session.is_read:
        saved_books.read_ended(session, opening[:-1], engine)
    yield Changed()


def survey(
    session: Session, somebody_waits: Callable[[], bool], engine: TextEngine, cancel: threading.Event
) -> Iterator[WorkerEvent]:
    """Measure the baseline with fixed questions; stop as soon as a job waits, and measure the rest afterwards."""
    book, conversation = session.book, session.conversation
    if book is None or conversation is None or engine.info.elsewhere:
        return
    own = local(engine)
    baseline, budget = array("d"), own.use_budget(session.budget)
    for number, question in enumerate(BASELINE_QUESTIONS):
        prompt = conversation.until(0).ask(question).prompt_ids(engine.text)
        if somebody_waits() or engine.cached_prefix(prompt) < book.num_opening - 1:
            return  # or the cache holds another page's book, and this is not worth a new prefill
        weights = own.weights_after(prompt, cancel)
        if weights is None:
            return
        baseline = mean(baseline, number, weights.tolist())
        yield Pause()
    if session.book is book:
        session.baseline, session.baseline_budget = baseline, budget
