"""The one thread that owns the engine, and the actions of the page as streams of events.

A handler calls an action and iterates over its events. Closing or stopping a stream cancels the work at the next chunk
or round. Knows nothing of Gradio.
"""

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from app.context.context_documents import Library
from app.context.kept_documents import KeptDocuments
from app.conversations.store import Conversations
from app.documents.readers import display_name
from app.documents.recognised import RecognisedPages
from app.runtime.answer_job import write_answer
from app.runtime.context_loader import forget_tokens
from app.runtime.error_text import EngineFault
from app.runtime.events import LoadFailed, ModelState, Ready, WorkerEvent
from app.runtime.jobs import Job, JobQueue, Load, Work
from app.runtime.race_job import run_race
from app.runtime.reading_job import Reading
from app.runtime.recording import CUT, ExchangeGone, Place
from app.runtime.saved_books import SavedBooks
from app.runtime.sessions import NoBook, OtherBook, Session, Sessions
from core.config import GenerationConfig
from core.engine_api import TextEngine
from core.errors import CoreError, EmptyQuestion, let_go
from core.generation.events import PrefillProgress
from core.models.loading import watched_loading

log = logging.getLogger(__name__)

MOST_END_SECONDS, SHORT_END_SECONDS = 10.0, 0.5  # for the thread to end; SHORT while it loads a model
MOST_WAIT_SECONDS = 30.0  # long enough for a pass over a long book on a slow machine


class EngineWorker:
    """One engine and one thread; pages take turns."""

    def __init__(
        self,
        load: Load,
        *,
        seed: int = 0,
        conversations: Conversations | None = None,
        saved_books: SavedBooks | None = None,
        recognised: RecognisedPages | None = None,
        kept: KeptDocuments | None = None,
    ) -> None:
        self.sessions = Sessions(is_busy=self.is_busy, kept=kept)
        self.conversations, self.saved_books = conversations or Conversations(), saved_books or SavedBooks()
        self._load, self._seed, self.jobs = load, seed, JobQueue()
        self._engine: TextEngine | None = None
        self.reading = Reading(self.jobs, self.saved_books, recognised)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # -------------------- the model

    def start(self) -> None:
        """Begin to load the model; returns at once."""
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """The thread is alive; after `close`: it does something that cannot be cancelled."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Cancel everything and let the thread end; what loading does beside weights is not waited for."""
        loading = self.jobs.close()
        if self._thread.is_alive():
            self._thread.join(SHORT_END_SECONDS if loading else MOST_END_SECONDS)
        self.conversations.close()
        self.sessions.files.close()

    @property
    def state(self) -> ModelState:
        """The model's state now."""
        return self.jobs.state

    # -------------------- books

    def open_books(self, session_id: str, files: Sequence[Path]) -> Iterator[WorkerEvent]:
        """Extract the texts of files, put them in the session's library, and let the model read it if it fits.

        A file that cannot be read is reported in `Session.uploads`. Of several such streams at once, the one whose text
        comes last counts and reads for all. Raises CoreError at once; while iterating, the error of the loading.
        """
        session, names = self.sessions.get(session_id), [display_name(file) for file in files]
        return self.reading.extract(session, session.uploads.expect(names), files)

    def arrange(self, session_id: str, change: Callable[[Library], Library]) -> Iterator[WorkerEvent]:
        """Change the session's library, and let the model read its new parts.

        The conversation continues as long as one of its books stays. An answer in progress ends only if the library
        becomes empty. Raises CoreError, and what `change` raises; while iterating, the error of the loading.
        """
        session = self.sessions.get(session_id)
        session.uploads.change(change)
        session.drop_files()
        if not (session.uploads.library.books or (session.lacks_book and session.uploads.arriving)):
            self.jobs.cancel(session_id, "answer")
            self.jobs.cancel(session_id, "race")
        return self.reading.catch_up(session)

    def answer(
        self,
        session_id: str,
        question: str,
        config: GenerationConfig,
        *,
        parent: str | None = None,
        own_seed: bool = True,
    ) -> Iterator[WorkerEvent]:
        """Answer a question about the session's book.

        A stream that ends without Finished was stopped before its turn. An answer that was stopped before its first
        token does not change the conversation.

        Args:
            parent: the exchange it follows, ROOT for none; None for the newest of the shown branch.
            own_seed: draw with this answer's own seed, not with the one in `config`.
        Raises:
            EmptyQuestion, NoBook, OtherBook: at once, unless a text is on its way. ContextTooSmall and
            other errors of the engine: when its turn comes.
        """
        session = self._ready_to_answer(session_id, question)
        return self._write(session, Place(question=question.strip(), parent=parent), config, own_seed)

    def regenerate(
        self, session_id: str, config: GenerationConfig, node_id: str | None = None, *, own_seed: bool = True
    ) -> Iterator[WorkerEvent]:
        """Answer a question again, beside its present answer; `node_id` None: the last question shown.

        Raises as `answer`.
        """
        session = self.sessions.get(session_id)
        path = session.dialogue.path if session.dialogue else ()
        node = next((one for one in reversed(path) if node_id in (None, one.id)), None)
        if node is None and node_id is not None:
            raise ExchangeGone
        session = self._ready_to_answer(session_id, node.question if node else "")
        assert node is not None, "a question without a node"
        again = node.id if node.exchange is None else None  # an unanswered question gets its first answer in place
        place = Place(question=node.question, parent=node.parent, goes_on=again)
        return self._write(session, place, config, own_seed)

    def go_on(self, session_id: str, config: GenerationConfig, *, own_seed: bool = True) -> Iterator[WorkerEvent]:
        """Continue the last answer where it was cut; nothing is read again. Finished has the whole answer.

        Raises as `answer`.
        """
        session = self.sessions.get(session_id)
        path = session.dialogue.path if session.dialogue else ()
        session = self._ready_to_answer(session_id, path[-1].question if path else "")
        exchange = path[-1].exchange
        if exchange is not None and exchange.finished.stop_reason not in CUT:
            told = "This answer has ended by itself."
            raise CoreError(told, hint="Ask a further question, or regenerate it.")
        return self._write(session, Place(question=path[-1].question, goes_on=path[-1].id), config, own_seed)

    def _write(self, session: Session, place: Place, config: GenerationConfig, own_seed: bool) -> Iterator[WorkerEvent]:
        fresh = session.lacks_book and place.parent is None and place.goes_on is None
        place = replace(place, asked_in=None if fresh else session.dialogue)  # whatever book comes, it is asked
        seed = self._seed if own_seed else None
        work = partial(write_answer, session, place, config, seed, self.conversations, self.saved_books)
        events = self.jobs.stream(session, "answer", work, ready=lambda: session.can_ask)
        return self.reading.after(session, events)

    def race(
        self, session_id: str, question: str, configs: Sequence[GenerationConfig], seconds: float | None = None
    ) -> Iterator[WorkerEvent]:
        """Answer one question about the book by several methods, in fair turns; an earlier race that still runs ends.

        The question stands alone: its prompt contains nothing of the conversation.

        Args:
            seconds: a budget on every lane's clock; None for none.
        Raises:
            EmptyQuestion, NoBook: at once; NoBook later if a text is on its way. Other
            engine errors: when its turn comes.
        """
        session = self._ready_to_answer(session_id, question)
        self.jobs.cancel(session_id, "race")
        work = partial(run_race, session, question, tuple(configs), seconds, self.saved_books)
        return self.jobs.stream(session, "race", work, ready=lambda: session.can_ask)

    def borrow(self, session_id: str, work: Work) -> Generator[WorkerEvent]:
        """Run the caller's work on the engine's thread, in turn with the pages' jobs: for measurements."""
        return self.jobs.stream(self.sessions.get(session_id), "reading", work)

    def clear(self, session_id: str) -> None:
        """Begin a new conversation about the same book, which stays read. The present one stays in the list."""
        session = self.sessions.get(session_id)
        self.jobs.cancel(session_id, "answer")
        session.trace = session.editing = session.writing = None
        session.uploads.note = ""
        with session.lock:
            session.dialogue, session.carried = None, False

    def end_answer(self, session_id: str) -> None:
        """Stop the session's answer and wait until it is recorded."""
        self.jobs.cancel(session_id, "answer")
        self.jobs.settle(session_id, "answer", MOST_WAIT_SECONDS)

    def abandon(self, session_id: str) -> None:
        """Nobody looks at the page any more: end its reading, its answer and its race."""
        session = self.sessions.find(session_id)
        if session is not None:
            session.abandoned = session.abandoned or session.is_reading
            self.stop_reading(session_id)
            self.jobs.cancel(session_id, "answer")
            self.jobs.cancel(session_id, "race")

    def is_busy(self, session: Session) -> bool:
        """Work for the page runs or waits: the page must not be forgotten now."""
        return session.uploads.extracting or session.uploads.recognising or self.jobs.is_busy(session)

    def stop_reading(self, session_id: str) -> None:
        """Stop extracting, counting, reading, and questions that wait. What was read stays read, the library stays."""
        self.sessions.get(session_id).uploads.stop()
        self.jobs.cancel_reading(session_id)

    def _ready_to_answer(self, session_id: str, question: str) -> Session:
        session = self.sessions.get(session_id)
        coming = session.uploads.coming
        if session.dialogue is not None and not session.fits and not coming:
            raise OtherBook(session.dialogue.book.title)
        if session.book is None and not coming:
            raise NoBook(too_long=session.uploads.too_long)
        if not question.strip():
            raise EmptyQuestion
        return session

    # -------------------- the engine's side

    def _run(self) -> None:
        self.jobs.has_become(self._loaded(self._load))
        while turn := self.jobs.next_turn():
            if isinstance(turn, Job):
                self._do(turn)
            else:
                self.jobs.has_become(self._switched(turn))

    def _switched(self, load: Load) -> ModelState:
        had_one = self._engine is not None
        self._free()
        state = self._loaded(load)
        if isinstance(state, Ready):
            self._load = load
        elif had_one and isinstance(state, LoadFailed) and not self.jobs.closed:
            self._free()
            self.jobs.loads_again()
            again = self._loaded(self._load)
            return replace(again, refused=state.error) if isinstance(again, Ready) else again
        return state

    def _free(self) -> None:
        """Free the engine and everything that refers to it."""
        from core.planning.hardware import return_memory  # imports torch, which is loaded by now

        if (engine := self._engine) is not None:
            _surely(engine.close)
        self._engine = engine = None
        self.saved_books.leave()
        for session in self.sessions.all():
            forget_tokens(session)
        _surely(return_memory)

    def _loaded(self, load: Load) -> ModelState:
        started = time.perf_counter()
        try:
            with watched_loading(self.jobs.loads, self.jobs.stop_loading):
                self._engine, machine = load()
        except CoreError as error:
            let_go(error)
            return LoadFailed(error)
        except BaseException as error:  # panics of tokenizers and safetensors are no Exceptions
            log.exception("loading the model failed")
            let_go(error)
            return LoadFailed(EngineFault(error))
        log.info("model loaded in %.1f s", time.perf_counter() - started)
        _surely(partial(self.saved_books.meet, self._engine))
        return Ready(self._engine.info, machine, self._engine.context)

    def _do(self, job: Job) -> None:
        try:
            if isinstance(self.jobs.state, LoadFailed):
                raise self.jobs.state.error
            assert self._engine is not None, "a job before the model is loaded"
            if job.cancel.is_set():
                return  # stopped before its turn
            reads = False
            for event in job.work(self._engine, job.cancel):
                job.told.put(event)
                job.session.changed()
                if isinstance(event, PrefillProgress) and not reads:
                    reads = True
                    self._note_displaced(self._engine)
            if reads:
                self._note_displaced(self._engine)
        except CoreError as error:
            let_go(error)  # the page stores the error, whose frames would keep the engine alive
            job.told.put(error)
        except BaseException as error:  # this thread must survive every bug; panics of libraries are no Exceptions
            log.exception("a job failed")
            let_go(error)
            job.told.put(EngineFault(error))
        finally:
            self.jobs.end(job, self._engine.info if self._engine else None)
            job.session.changed()

    def _note_displaced(self, engine: TextEngine) -> None:
        """Note whose books are read again. Cost: where several pages are, a comparison of token ids for each book."""
        sessions = self.sessions.all()
        for session in sessions if len(sessions) > 1 else ():
            conversation = session.conversation
            if conversation is not None and session.is_read:
                opening = conversation.opening_ids(engine.text)
                there = max(engine.cached_prefix(opening), self.saved_books.num_in_memory(opening))
                session.displaced = there < len(opening) - 1


def _surely(step: Callable[[], None]) -> None:
    """Run a step and ignore its failure, so that the next model can still be loaded."""
    try:
        step()
    except BaseException as error:
        log.exception("a model could not be freed cleanly")
        let_go(error)
