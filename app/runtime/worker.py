"""The one thread that owns the engine, its queue, and the verbs of the page as streams of events.

Handlers call a verb and iterate over what it yields. Errors cross the threads as values and are raised again in the
handler's thread. Closing or stopping a stream cancels the work at the next chunk or round. Knows nothing of Gradio.
"""

import logging
import queue
import threading
import time
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.context.context_documents import Shelf
from app.context.retrieval_map import USUAL_QUESTIONS, mean
from app.context.uploads import ON_THE_WAY, Arrival, Interrupted
from app.conversations.exchange import Exchange
from app.conversations.store import Conversations
from app.documents.document import Document, Extracting
from app.documents.readers import display_name, extract_document
from app.remote.names import method_on
from app.runtime.context_loader import forget_tokens, open_shelf, recount
from app.runtime.events import (
    AnswerBegun,
    Kind,
    LoadFailed,
    Loading,
    ModelState,
    PagesLoaded,
    Pause,
    RaceBegun,
    RaceEnded,
    ReadingEnded,
    Ready,
    Waiting,
    WorkerEvent,
)
from app.runtime.prompts import answer_ids, prompt_of
from app.runtime.recording import CUT, AnswerComplete, ExchangeGone, Place, Recording, check_place, streamed_text
from app.runtime.retrieval_probe import Looking
from app.runtime.saved_books import Keeping, disk_state
from app.runtime.sessions import NoBook, OtherBook, Session, Sessions
from app.runtime.throttle import INTERVAL_SECONDS, SIGN_OF_LIFE_SECONDS
from app.runtime.trace import Judgement, Race, Trace
from core.config import GenerationConfig
from core.errors import CoreError, EmptyQuestion, InvalidSetting, let_go
from core.generation.events import Event, Finished, PrefillProgress

if TYPE_CHECKING:  # importing these takes seconds: the engine's thread does it while the page is already served
    from core.engine_api import TextEngine
    from core.planning.hardware import Machine

log = logging.getLogger(__name__)

CUT_SHORT = {"time_up", "cancelled"}
MOST_WAITING = 8  # answers and races of one page
MOST_END_SECONDS, SHORT_END_SECONDS = 10.0, 0.5  # for the thread when the program ends; while it loads a model
MOST_WAIT_SECONDS = 30.0  # a pass over a long book on a slow machine


Work = Callable[["TextEngine", threading.Event], Iterator[WorkerEvent]]
Load = Callable[[], "tuple[TextEngine, Machine]"]


class EngineFault(CoreError):
    """A bug of ours, or something outside that went wrong: the page goes on working."""

    def __init__(self, error: BaseException) -> None:
        if is_of_memory(error):
            super().__init__(
                "The memory was not enough for this.",
                hint="Close other programs, or choose a smaller context or model.",
            )
        else:
            super().__init__(
                f"The engine stopped with an error ({type(error).__name__}).",
                hint="Try again; if it comes back, start the reader again and report what the terminal shows.",
            )


class TooMuchWaits(CoreError):
    """One page has asked for more than can be done in reasonable time."""

    def __init__(self) -> None:
        super().__init__("Too many of this page's questions wait already.", hint="Let them be answered, or stop them.")


class ModelBusy(CoreError):
    """The model cannot be replaced now."""


@dataclass(frozen=True, slots=True)
class _Switch:
    """Another model is wanted."""

    load: Load


@dataclass(frozen=True, slots=True)
class _Done:
    """Last item of every job's events."""


@dataclass(eq=False, slots=True)
class _Job:
    session: Session
    kind: Kind
    work: Work
    cancel: threading.Event = field(default_factory=threading.Event)
    events: "queue.SimpleQueue[WorkerEvent | CoreError | _Done]" = field(default_factory=queue.SimpleQueue)


class EngineWorker:
    """One engine, one thread, many pages that take turns."""

    def __init__(
        self,
        load: Load,
        *,
        seed: int = 0,
        conversations: Conversations | None = None,
        keeping: Keeping | None = None,
    ) -> None:
        self.keeping = keeping or Keeping()
        self.sessions = Sessions(is_busy=self._is_busy)
        self.conversations = conversations or Conversations()
        self._load, self._seed = load, seed
        self._engine: TextEngine | None = None
        self._state: ModelState = Loading()
        self._jobs: list[_Job] = []  # the running one first
        self._switch: _Switch | None = None  # comes before the next job
        self._changed = threading.Condition()  # guards all of the above
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # -------------------- the page's side

    def start(self) -> None:
        """Begin to load the model; returns at once."""
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """The thread is there; after `close`: it is in the midst of something that cannot be cancelled."""
        return self._thread.is_alive()

    def close(self, timeout_seconds: float = MOST_END_SECONDS) -> None:
        """Cancel everything and let the thread end; loading cannot be cancelled, and is not waited for."""
        with self._changed:
            self._closed = True
            loading = isinstance(self._state, Loading)
            for job in self._jobs:
                job.cancel.set()
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(min(timeout_seconds, SHORT_END_SECONDS) if loading else timeout_seconds)
        self.conversations.close()

    @property
    def state(self) -> ModelState:
        """The model's state now."""
        return self._state

    def states(self) -> Iterator[ModelState | Pause]:
        """The model's state now, and again once loading has ended; a pause a second until then.

        Only at a yield does Gradio notice that the page was closed, and give its thread to another.
        """
        first = self._state
        yield first
        if isinstance(first, Loading):  # even if loading has ended while that was shown
            while not self._has_loaded(SIGN_OF_LIFE_SECONDS):
                yield Pause()
            yield self._state

    def _has_loaded(self, timeout_seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or not isinstance(self._state, Loading), timeout_seconds)

    def switch(self, load: Load, model: str) -> None:
        """Load another model in place of the present one; returns at once, `states` tells the rest.

        The present one is freed first. If the other cannot be loaded, the present one is loaded again. Reading and
        counting are ended; books are counted and read again, conversations stay.

        Args:
            model: its name, for display.
        Raises:
            ModelBusy: a model is being loaded, or an answer or a race runs or waits, of whatever page.
        """
        with self._changed:
            if isinstance(self._state, Loading):
                raise ModelBusy("A model is being loaded.", hint="Choose another when it is there.")
            busy = next((job for job in self._jobs if job.kind in ("answer", "race")), None)
            if busy is not None:
                what = "An answer is being written" if busy.kind == "answer" else "A race runs"
                raise ModelBusy(f"{what}, perhaps on another page.", hint="Wait for its end, or stop it there.")
            for job in self._jobs[:1] + [job for job in self._jobs[1:] if job.kind == "survey"]:
                job.cancel.set()
            self._state, self._switch = Loading(model), _Switch(load)
            self._changed.notify_all()

    def open_books(self, session_id: str, files: Sequence[Path]) -> Iterator[WorkerEvent]:
        """Extract the texts of files, put them on the session's shelf, and let the model read it if it fits.

        A file that cannot be read is told in `Session.intake`, and the others come all the same. Where several of these
        streams run at once, the one whose last text comes last counts and reads for all.

        Raises:
            SessionGone: at once. While iterating: the error of the model's loading.
        """
        session = self.sessions.get(session_id)
        return self._extract(session, session.intake.expect([display_name(file) for file in files]), files)

    def open_book(self, session_id: str, file: Path) -> Iterator[WorkerEvent]:
        """`open_books` for one file."""
        return self.open_books(session_id, [file])

    def _extract(self, session: Session, arrivals: Sequence[Arrival], files: Sequence[Path]) -> Iterator[WorkerEvent]:
        try:
            for arrival, file in zip(arrivals, files, strict=True):
                try:
                    yield from _extract_one(arrival, file)
                except CoreError as error:
                    arrival.fail(error)
        finally:
            for arrival in arrivals:
                if arrival.stage in ON_THE_WAY:
                    arrival.fail(Interrupted(arrival.name))
        yield from self._catch_up(session)

    def arrange(self, session_id: str, change: Callable[[Shelf], Shelf]) -> Iterator[WorkerEvent]:
        """Change the session's shelf, and let the model read what is new of it.

        The conversation goes on as long as one of the books stays. An answer that is being written is ended only if
        the shelf is empty.

        Raises:
            SessionGone; what `change` raises. While iterating: the error of the model's loading.
        """
        session = self.sessions.get(session_id)
        session.intake.change(change)
        if not session.intake.shelf.books:
            self.stop_answer(session_id)
            self.stop_race(session_id)
        return self._catch_up(session)

    def read_book(self, session_id: str) -> Iterator[WorkerEvent]:
        """Open what is new on the session's shelf, and read what was not read. Yields nothing if there is nothing.

        Raises:
            SessionGone; the error the model's loading ended with.
        """
        yield from self._catch_up(self.sessions.get(session_id))

    def _catch_up(self, session: Session) -> Iterator[WorkerEvent]:
        """Count, open and read, unless a text is still on its way: whoever brings it goes on from there."""
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
        if session.intake.extracting:
            return
        if session.intake.behind:
            self._cancel(session.id, "reading")  # what was read stays read
            yield from self._stream(session, "counting", partial(open_shelf, session))
        if session.book is not None and not session.is_read and not session.intake.behind:
            yield from self._stream(session, "reading", partial(_read, session, self.keeping))
        yield from self._keep(session)
        self._survey_later(session)

    def keep_book(self, session_id: str) -> Iterator[WorkerEvent]:
        """Write the session's book to disk, if that was offered; whoever asks something meanwhile goes first.

        Raises:
            SessionGone: at once.
        """
        session = self.sessions.get(session_id)
        disk_state(session).wanted = True
        return self._catch_up(session)

    def _keep(self, session: Session) -> Iterator[WorkerEvent]:
        state = disk_state(session)
        try:
            while state.wanted:
                yield from self._stream(session, "keeping", partial(self.keeping.write, session, self._others_wait))
        finally:
            if state.wanted:  # the page was closed
                state.decline()

    def _others_wait(self) -> bool:
        return any(job.kind != "survey" for job in self._jobs[1:])

    def _surveyed(self, session: Session, events: Iterator[WorkerEvent]) -> Iterator[WorkerEvent]:
        yield from events
        self._keep_later(session)
        self._survey_later(session)

    def _keep_later(self, session: Session) -> None:
        """When nobody waits: keep a book that was read as part of an answer, if books are kept without asking."""
        if not disk_state(session).wanted:
            return
        with self._changed:
            if not any(job.session is session and job.kind == "keeping" for job in self._jobs):
                self._jobs.append(_Job(session, "keeping", partial(self._keep_quietly, session)))
                self._changed.notify_all()

    def _keep_quietly(self, session: Session, engine: "TextEngine", cancel: threading.Event) -> Iterator[WorkerEvent]:
        yield from self.keeping.write(session, self._others_wait, engine, cancel)
        if disk_state(session).wanted:  # it made way
            with self._changed:
                self._jobs.append(_Job(session, "keeping", partial(self._keep_quietly, session)))

    def _survey_later(self, session: Session) -> None:
        """When nobody waits: see what the retrieval cache holds whatever is asked about the book."""
        book = session.book
        if book is None or not book.chunk_pages or not session.is_read:
            return
        if session.usual is not None and session.budget in (None, session.usual_budget):
            return
        with self._changed:
            if not any(job.session is session and job.kind == "survey" for job in self._jobs):
                self._jobs.append(_Job(session, "survey", partial(self._survey, session)))
                self._changed.notify_all()

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
        token leaves the conversation as it was.

        Args:
            parent: the exchange it follows, ROOT for none; None for the newest of the branch that is shown.
            own_seed: draw with a seed of this answer's own, not with the one in `config`.
        Raises:
            SessionGone, EmptyQuestion, NoBook, OtherBook: at once. ContextTooSmall and others of the engine: when it
            is its turn.
        """
        session = self._ready_to_answer(session_id, question)
        return self._write(session, Place(question=question.strip(), parent=parent), config, own_seed)

    def regenerate(
        self, session_id: str, config: GenerationConfig, node_id: str | None = None, *, own_seed: bool = True
    ) -> Iterator[WorkerEvent]:
        """Answer a question once more, beside the answer it has; `node_id` None: the last question shown.

        Raises what `answer` does.
        """
        session = self.sessions.get(session_id)
        path = session.dialogue.path if session.dialogue else ()
        node = next((one for one in reversed(path) if node_id in (None, one.id)), None)
        if node is None and node_id is not None:
            raise ExchangeGone
        session = self._ready_to_answer(session_id, node.question if node else "")
        assert node is not None, "a question without a node"
        again = node.id if node.exchange is None else None  # it was never answered: now it is, where it stands
        place = Place(question=node.question, parent=node.parent, goes_on=again)
        return self._write(session, place, config, own_seed)

    def go_on(self, session_id: str, config: GenerationConfig, *, own_seed: bool = True) -> Iterator[WorkerEvent]:
        """Continue the last answer where it was cut; nothing is read again. Finished has the whole answer.

        Raises what `answer` does.
        """
        session = self.sessions.get(session_id)
        path = session.dialogue.path if session.dialogue else ()
        session = self._ready_to_answer(session_id, path[-1].question if path else "")
        exchange = path[-1].exchange
        if exchange is not None and exchange.finished.stop_reason not in CUT:
            raise AnswerComplete
        return self._write(session, Place(question=path[-1].question, goes_on=path[-1].id), config, own_seed)

    def _write(self, session: Session, place: Place, config: GenerationConfig, own_seed: bool) -> Iterator[WorkerEvent]:
        place = replace(place, asked_in=session.dialogue)
        work = partial(self._answer, session, place, config, own_seed)
        return self._surveyed(session, self._stream(session, "answer", work))

    def race(
        self, session_id: str, question: str, configs: Sequence[GenerationConfig], seconds: float | None = None
    ) -> Iterator[WorkerEvent]:
        """Answer one question about the book by several methods, in fair turns; a race that still runs ends.

        The question stands alone: what was asked before in the conversation is not in its prompt.

        Args:
            seconds: a budget on every lane's clock; None for none.
        Raises:
            SessionGone, EmptyQuestion, NoBook, InvalidSetting: at once. Others of the engine: when it is its turn.
        """
        session = self._ready_to_answer(session_id, question)
        if len(configs) < 2:
            raise InvalidSetting("A race needs two lanes.", hint="Choose at least two methods.")
        self.stop_race(session_id)
        return self._stream(session, "race", partial(self._race, session, question, tuple(configs), seconds))

    def borrow(self, session_id: str, work: Work) -> Generator[WorkerEvent]:
        """Let the engine's thread do something of the caller's, in turn with the pages' jobs: for measurements."""
        return self._stream(self.sessions.get(session_id), "reading", work)

    def stop_race(self, session_id: str) -> None:
        """End the session's race after the rounds it is in, or before its turn."""
        self._cancel(session_id, "race")

    def clear(self, session_id: str) -> None:
        """Begin a new conversation about the same book: it stays read. The one so far stays in the list."""
        session = self.sessions.get(session_id)
        session.num_cleared += 1
        self.stop_answer(session_id)
        session.trace = session.editing = None
        with session.lock:
            session.dialogue, session.carried = None, False

    def stop_answer(self, session_id: str) -> None:
        """End the session's answer after the round it is in, or before its turn."""
        self._cancel(session_id, "answer")

    def end_answer(self, session_id: str, timeout_seconds: float = MOST_WAIT_SECONDS) -> None:
        """Stop the session's answer and wait until it is recorded."""
        self.stop_answer(session_id)
        self.settle_answer(session_id, timeout_seconds)

    def settle_answer(self, session_id: str, timeout_seconds: float = MOST_WAIT_SECONDS) -> bool:
        """Wait until an answer that was stopped is recorded. False: another one is being written by now."""
        with self._changed:
            self._changed.wait_for(
                lambda: not any(job.cancel.is_set() for job in self._answers(session_id)), timeout_seconds
            )
            return not self._answers(session_id)

    def has_answer(self, session_id: str) -> bool:
        """An answer of the session is being written, or waits for its turn."""
        return bool(self._answers(session_id))

    def _answers(self, session_id: str) -> "list[_Job]":
        return [job for job in self._jobs if job.session.id == session_id and job.kind == "answer"]

    def _is_busy(self, session: Session) -> bool:
        """Something is done for a page, or waits: it must not be forgotten now."""
        return session.intake.extracting or any(job.session is session and job.kind != "survey" for job in self._jobs)

    def stop_reading(self, session_id: str) -> None:
        """Stop extracting, counting or reading. What was read stays read, what is on the shelf stays there."""
        self.sessions.get(session_id).intake.stop()
        self._cancel(session_id, "counting")
        self._cancel(session_id, "reading")

    def _ready_to_answer(self, session_id: str, question: str) -> Session:
        session = self.sessions.get(session_id)
        if session.dialogue is not None and not session.fits:
            raise OtherBook(session.dialogue.book.title)
        if session.book is None:
            raise NoBook
        if not question.strip():
            raise EmptyQuestion
        return session

    def _cancel(self, session_id: str, kind: Kind) -> None:
        with self._changed:
            for job in self._jobs:
                if job.session.id == session_id and job.kind == kind:
                    job.cancel.set()

    def _stream(self, session: Session, kind: Kind, work: Work) -> Generator[WorkerEvent]:
        """Queue a job and hand on its events; closing this generator cancels the job."""
        job = _Job(session, kind, work)
        with self._changed:
            own = sum(other.session is session and other.kind in ("answer", "race") for other in self._jobs)
            if kind in ("answer", "race") and own >= MOST_WAITING:
                raise TooMuchWaits
            self._jobs.append(job)
            self._changed.notify_all()
        told: Waiting | None = None
        try:
            while True:
                try:
                    item = job.events.get(timeout=INTERVAL_SECONDS)
                except queue.Empty:
                    if self._withdrawn(job):
                        return
                    waiting = self._waiting(job)
                    if waiting and waiting != told:
                        yield (told := waiting)
                    else:
                        yield Pause()
                    continue
                if isinstance(item, _Done):
                    return
                if isinstance(item, CoreError):
                    raise item
                yield item
        finally:
            job.cancel.set()
            self._withdrawn(job)

    def _withdrawn(self, job: _Job) -> bool:
        """Take a cancelled job out of the queue, unless it has begun."""
        with self._changed:
            begun = self._jobs[:1] == [job] and not isinstance(self._state, Loading) and not self._closed
            if job in self._jobs and job.cancel.is_set() and not begun:
                self._jobs.remove(job)
                self._changed.notify_all()
                return True
            return False

    def _waiting(self, job: _Job) -> Waiting | None:
        with self._changed:
            if isinstance(self._state, Loading):
                return Waiting("loading", 0)
            if job not in self._jobs[1:]:
                return None
            ahead = [before for before in self._jobs[: self._jobs.index(job)] if before.kind != "survey"]
            if not ahead:
                return None
        others = sum(other.session is not job.session for other in ahead)
        if others:
            return Waiting("another page", others)
        return Waiting("own job", 0, ahead[0].kind)

    # -------------------- the engine's side

    def _run(self) -> None:
        self._settle_state(self._loaded(self._load))
        while turn := self._next_turn():
            if isinstance(turn, _Switch):
                self._settle_state(self._switched(turn.load))
            else:
                self._do(turn)

    def _switched(self, load: Load) -> ModelState:
        had_one = self._engine is not None
        self._free()
        state = self._loaded(load)
        if isinstance(state, Ready):
            self._load = load
        elif had_one and isinstance(state, LoadFailed):
            self._free()
            again = self._loaded(self._load)
            return replace(again, refused=state.error) if isinstance(again, Ready) else again
        return state

    def _free(self) -> None:
        """Let go of the engine, and of all that knows it."""
        from core.planning.hardware import return_memory  # loads torch, which is there by now

        engine, self._engine = self._engine, None
        if engine is not None:
            _surely(engine.close)
        del engine
        self.keeping.leave()
        for session in self.sessions.all():
            forget_tokens(session)
        _surely(return_memory)

    def _loaded(self, load: Load) -> ModelState:
        started = time.perf_counter()
        try:
            self._engine, machine = load()
        except CoreError as error:
            let_go(error)
            return LoadFailed(error)
        except BaseException as error:  # panics of tokenizers and safetensors are no Exceptions
            log.exception("loading the model failed")
            let_go(error)
            return LoadFailed(EngineFault(error))
        log.info("model loaded in %.1f s", time.perf_counter() - started)
        return Ready(self._engine.info, machine, self._engine.context)

    def _settle_state(self, state: ModelState) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()

    def _next_turn(self) -> _Job | _Switch | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._switch or self._jobs)
            if self._closed:
                return None
            switch, self._switch = self._switch, None
            return switch or self._jobs[0]

    def _do(self, job: _Job) -> None:
        try:
            if isinstance(self._state, LoadFailed):
                raise self._state.error
            assert self._engine is not None, "a job before the model is loaded"
            for event in job.work(self._engine, job.cancel):
                job.events.put(event)
        except CoreError as error:
            let_go(error)  # the page keeps it, and the engine may have to go
            job.events.put(error)
        except BaseException as error:  # this thread must outlive every bug; panics of libraries are no Exceptions
            log.exception("a job failed")
            let_go(error)
            job.events.put(EngineFault(error))
        finally:
            with self._changed:
                ready = self._state if isinstance(self._state, Ready) else None
                if ready and self._engine and self._engine.info is not ready.info:  # layers have moved to the host
                    self._state = replace(ready, info=self._engine.info)
                if job in self._jobs:  # not withdrawn while the program ends
                    self._jobs.remove(job)
                self._changed.notify_all()
            job.events.put(_Done())

    def _answer(
        self,
        session: Session,
        place: Place,
        config: GenerationConfig,
        own_seed: bool,
        engine: "TextEngine",
        cancel: threading.Event,
    ) -> Iterator[WorkerEvent]:
        """Write an answer, or more of one, and record it."""
        for _ in recount(session, engine, cancel):
            yield Pause()
        if cancel.is_set():
            return
        book, conversation = session.book, session.conversation
        check_place(place, session)
        if book is None or conversation is None:
            raise NoBook
        config = replace(config, method=method_on(engine.info.capabilities, config.method))
        seeded = replace(config, seed=self._seed + session.num_drawn) if own_seed else config
        number_format = engine.info.weights
        num_read_before, session.budget = session.num_read, engine.use_budget(config.budget)
        recording = Recording(
            session, self.conversations, place, seeded, model=engine.info.model, weights=number_format
        )
        before = recording.before
        if before is not None and before.seed is not None and own_seed:  # plain decoding then draws what it would have
            recording.config = seeded = replace(seeded, seed=before.seed)
        written = recording.written = answer_ids(before, engine) if before else ()
        trace = session.trace = Trace(f"{place.question} (continued)" if before else place.question, config.method)
        session.newest = "answer"
        looking = Looking(session, recording.node.id, place.question, config.method, engine)
        yield AnswerBegun(book.num_tokens, num_read_before)
        prompt = prompt_of(conversation, recording.past, place.question, engine)
        try:
            yield from self.keeping.fetch(session, [*prompt, *written], engine, cancel)
            read_before, was_read = session.read_seconds, session.is_read
            # What is left of the book to read is read up to its end first: that is what can be kept on disk.
            end = book.num_opening - 1
            for event in engine.generate(prompt, seeded, cancel, written=written, boundary=end):
                trace.apply(only_new(event, before, len(written)))
                if isinstance(event, PrefillProgress):
                    session.num_read = max(session.num_read, min(event.kept_tokens, book.num_opening))
                    if not was_read and event.reused_tokens < end:
                        session.read_seconds = read_before + event.elapsed_seconds
                        if event.kept_tokens == end:
                            was_read = True
                            self.keeping.read_ended(session, prompt[:end], engine)
                if isinstance(event, Finished) and len(event.token_ids) > len(written):
                    session.num_drawn += 1
                recording.apply(event)
                if loaded := looking.apply(event):
                    yield PagesLoaded(loaded)
                yield event
        finally:
            recording.end()

    def _survey(self, session: Session, engine: "TextEngine", cancel: threading.Event) -> Iterator[WorkerEvent]:
        """Put the usual questions to the book; whoever comes meanwhile goes first, and the rest is asked after that."""
        book, conversation = session.book, session.conversation
        if book is None or conversation is None:
            return
        usual, budget = array("d"), engine.use_budget(session.budget)
        for number, question in enumerate(USUAL_QUESTIONS):
            prompt = conversation.until(0).ask(question).prompt_ids(engine.text)
            if len(self._jobs) > 1 or engine.cached_prefix(prompt) < book.num_opening - 1:
                return  # somebody waits, or another page's book is in the cache: this is not worth reading it again
            weights = engine.weights_after(prompt, cancel)
            if weights is None:
                return
            usual = mean(usual, number, weights.tolist())
            yield Pause()
        if session.book is book:
            session.usual, session.usual_budget = usual, budget

    def _race(
        self,
        session: Session,
        question: str,
        configs: tuple[GenerationConfig, ...],
        seconds: float | None,
        engine: "TextEngine",
        cancel: threading.Event,
    ) -> Iterator[WorkerEvent]:
        """Run the lanes, then compare the exact ones with plain decoding."""
        for _ in recount(session, engine, cancel):
            yield Pause()
        book, conversation = session.book, session.conversation
        if book is None or conversation is None:
            raise NoBook
        prompt = conversation.until(0).ask(question).prompt_ids(engine.text)
        race = Race(
            question=question.strip(),
            lanes=tuple(Trace(question.strip(), config.method) for config in configs),
            configs=configs,
            seconds=seconds,
            book=book.title,
            num_book=book.num_tokens,
            num_read_before=session.num_read,
        )
        session.race, session.newest = race, "race"
        yield RaceBegun(race)
        try:
            yield from self.keeping.fetch(session, prompt, engine, cancel)
            with closing(engine.race(prompt, configs, cancel, seconds=seconds)) as events:
                for event in events:
                    race.apply(event)
                    if isinstance(event.event, PrefillProgress):
                        session.num_read = max(session.num_read, min(event.event.kept_tokens, book.num_opening))
                        if cancel.is_set():
                            break  # nothing was written: there is no race to show
                    yield event
            if race.greedy and race.plain and race.plain.finished:
                race.judgements = judgements(race, prompt, engine)
        finally:
            race.ended = True
        yield RaceEnded()


def is_of_memory(error: BaseException) -> bool:
    """There was not enough memory, as Python, a GPU's allocator or torch's for the processor says it."""
    names = {kind.__name__ for kind in type(error).__mro__}  # torch is not imported here
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or (
        isinstance(error, RuntimeError) and ("can't allocate memory" in str(error) or "not enough memory" in str(error))
    )


def _surely(step: Callable[[], None]) -> None:
    """Do it, or go on without it: the next model is loaded all the same."""
    try:
        step()
    except BaseException as error:
        log.exception("a model could not be freed cleanly")
        let_go(error)


def _extract_one(arrival: Arrival, file: Path) -> Iterator[Extracting]:
    """A file's text into its arrival."""
    arrival.stage = "extracting"
    with closing(extract_document(file)) as steps:
        for step in steps:
            if arrival.stop.is_set():
                raise Interrupted(arrival.name)
            if isinstance(step, Document):
                arrival.document, arrival.stage = step, "extracted"
            else:
                arrival.num_done, arrival.num_pages = step.num_done, step.num_pages
                yield step


def only_new(event: Event, before: Exchange | None, num_before: int) -> Event:
    """The end of a continued answer without what was there before; all other events are of what is new anyway."""
    if before is None or not isinstance(event, Finished):
        return event
    return replace(event, text=event.text[len(streamed_text(before)) :], token_ids=event.token_ids[num_before:])


def judgements(race: Race, prompt: list[int], engine: "TextEngine") -> dict[str, Judgement]:
    """Every exact lane against plain decoding; as far as both wrote, where a lane was cut short."""
    plain, found = race.plain, {}
    assert plain is not None and plain.finished is not None, "nothing to compare with"
    for lane in race.lanes:
        if lane is plain or not lane.exact or lane.finished is None:
            continue
        a, b = plain.finished, lane.finished
        whole = not {a.stop_reason, b.stop_reason} & CUT_SHORT
        most = max(len(a.token_ids), len(b.token_ids)) if whole else min(len(a.token_ids), len(b.token_ids))
        ours, theirs = a.token_ids[:most], b.token_ids[:most]
        if most == 0:
            continue
        equality = engine.compare(prompt, ours, theirs)
        compared = min(len(ours), len(theirs)) if equality.index is None else equality.index + 1
        found[lane.method] = Judgement(equality.verdict, equality.index, equality.logit_gap, compared, whole)
    return found


def _read(session: Session, keeping: Keeping, engine: "TextEngine", cancel: threading.Event) -> Iterator[WorkerEvent]:
    """Prefill everything before the first question, but for what was kept on disk."""
    conversation = session.conversation
    if conversation is None:  # it was taken from the shelf before the reading's turn
        return
    before, opening = session.read_seconds, conversation.opening_ids(engine.text)
    yield from keeping.fetch(session, opening, engine, cancel)
    for progress in engine.read(opening, cancel):
        session.num_read = max(session.num_read, progress.kept_tokens)
        session.read_seconds = before + progress.elapsed_seconds
        yield progress
    if session.is_read:
        keeping.read_ended(session, opening[:-1], engine)
    yield ReadingEnded(session.num_read, session.is_read)
