"""The one thread that owns the engine, its queue, and the verbs of the page as streams of events.

Handlers call a verb and iterate over what it yields. Errors cross the threads as values and are raised again in the
handler's thread. Closing or stopping a stream cancels the work at the next chunk or round. Knows nothing of Gradio.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from app.conversations import Conversations
from app.dialogue import digest_of
from app.documents.document import Document, Extracting
from app.documents.readers import extract_document
from app.pace import INTERVAL_SECONDS, Pause
from app.reach import reach_note
from app.recording import CUT, AnswerComplete, ExchangeGone, Place, Recording, streamed_text
from app.sessions import Book, Exchange, NoBook, OtherBook, Session, Sessions
from app.trace import Judgement, Race, Trace
from core.config import GenerationConfig
from core.errors import ContextTooSmall, CoreError, EmptyQuestion, InvalidSetting
from core.events import Event, Finished, LaneEvent, PrefillProgress

if TYPE_CHECKING:  # importing these takes seconds: the engine's thread does it while the page is already served
    from core.engine import Engine, EngineInfo
    from core.hardware import Machine
    from core.session import Conversation

log = logging.getLogger(__name__)

CUT_SHORT = {"time_up", "cancelled"}
MOST_WAIT_SECONDS = 30.0  # a pass over a long book on a slow machine
ROOM_FOR_A_QUESTION = 512  # tokens a book must leave free for a question and an answer

Kind = Literal["reading", "answer", "race"]


@dataclass(frozen=True, slots=True)
class Loading:
    """The model is being loaded."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded."""

    info: "EngineInfo"
    machine: "Machine"
    context: int


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The model cannot be loaded; every job fails with this error."""

    error: CoreError


ModelState = Loading | Ready | LoadFailed


@dataclass(frozen=True, slots=True)
class Waiting:
    """Something must end before this job begins."""

    reason: Literal["loading", "own job", "another page"]
    num_ahead: int  # jobs of other pages
    own: Kind = "reading"  # what the page itself does first, if that is the reason


@dataclass(frozen=True, slots=True)
class Counting:
    """The text is being cut into tokens."""


@dataclass(frozen=True, slots=True)
class BookOpened:
    """The book is in its session; nothing of it has been read by the model yet."""

    book: Book


@dataclass(frozen=True, slots=True)
class ReadingEnded:
    """The model has read the book, or was stopped on the way."""

    num_read: int
    complete: bool


@dataclass(frozen=True, slots=True)
class AnswerBegun:
    """It is this answer's turn."""

    num_book: int  # tokens of the book
    num_read_before: int  # tokens of the opening that were read at least once before this


@dataclass(frozen=True, slots=True)
class RaceBegun:
    """It is this race's turn. The engine's thread goes on recording in `race`."""

    race: Race


@dataclass(frozen=True, slots=True)
class RaceEnded:
    """All lanes have ended and exact texts were compared."""


BookEvent = Extracting | Counting | BookOpened | ReadingEnded
RaceEvent = RaceBegun | LaneEvent | RaceEnded
WorkerEvent = Pause | Waiting | BookEvent | AnswerBegun | Event | RaceEvent
Work = Callable[["Engine", threading.Event], Iterator[WorkerEvent]]


class EngineFault(CoreError):
    """A bug of ours, or something outside that went wrong: the page goes on working."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(
            f"The engine stopped with an error ({type(error).__name__}: {error}).",
            hint="Try again; if it comes back, start the reader again and report what the terminal shows.",
        )


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
        load: "Callable[[], tuple[Engine, Machine]]",
        *,
        seed: int = 0,
        conversations: Conversations | None = None,
    ) -> None:
        self.sessions, self.conversations = Sessions(), conversations or Conversations()
        self._load, self._seed = load, seed
        self._engine: Engine | None = None
        self._state: ModelState = Loading()
        self._jobs: list[_Job] = []  # the running one first
        self._changed = threading.Condition()  # guards all of the above
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # -------------------- the page's side

    def start(self) -> None:
        """Begin to load the model; returns at once."""
        self._thread.start()

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Cancel everything and let the thread end."""
        with self._changed:
            self._closed = True
            for job in self._jobs:
                job.cancel.set()
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
        self.conversations.close()

    @property
    def state(self) -> ModelState:
        """The model's state now."""
        return self._state

    def states(self) -> Iterator[ModelState]:
        """The model's state now, and again once loading has ended."""
        yield self._state
        if isinstance(self._state, Loading):
            with self._changed:
                self._changed.wait_for(lambda: self._closed or not isinstance(self._state, Loading))
            yield self._state

    def open_book(self, session_id: str, file: Path) -> Iterator[WorkerEvent]:
        """Extract a file's text, count its tokens, make it the session's book and let the model read it.

        Until BookOpened the session keeps the book and the conversation it has. A file opened meanwhile in the same
        session ends this stream without another event.

        Raises:
            SessionGone: at once. While iterating: DocumentError; ContextTooSmall; the error of the model's loading.
        """
        session = self.sessions.get(session_id)
        session.opening += 1
        self.stop_reading(session_id)
        session.stop_extracting = threading.Event()
        return self._open(session, session.opening, session.stop_extracting, file)

    def _open(self, session: Session, mine: int, stop: threading.Event, file: Path) -> Iterator[WorkerEvent]:
        document: Document | None = None
        with closing(cast("Generator[Extracting | Document]", extract_document(file))) as steps:
            for step in steps:
                if stop.is_set():
                    return
                if isinstance(step, Document):
                    document = step
                else:
                    yield step
        assert document is not None, f"{file} was read without an error and without a document"
        yield Counting()
        self.stop_answer(session.id)
        self.stop_race(session.id)
        for event in self._stream(session, "reading", partial(_admit, session, document)):
            if session.opening != mine:
                return
            yield event
        for event in self.read_book(session.id):
            if session.opening != mine:
                return
            yield event

    def read_book(self, session_id: str) -> Iterator[WorkerEvent]:
        """Let the model read what it has not read of the session's book. Yields nothing if there is no book.

        Raises:
            SessionGone; the error the model's loading ended with.
        """
        session = self.sessions.get(session_id)
        if session.book is not None and not session.is_read:
            yield from self._stream(session, "reading", partial(_read, session))

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
        place = Place(question=question.strip(), parent=parent)
        return self._stream(session, "answer", partial(self._answer, session, place, config, own_seed))

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
        return self._stream(session, "answer", partial(self._answer, session, place, config, own_seed))

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
        place = Place(question=path[-1].question, goes_on=path[-1].id)
        return self._stream(session, "answer", partial(self._answer, session, place, config, own_seed))

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

    def stop_race(self, session_id: str) -> None:
        """End the session's race after the rounds it is in, or before its turn."""
        self._cancel(session_id, "race")

    def clear(self, session_id: str) -> None:
        """Begin a new conversation about the same book: it stays read."""
        session = self.sessions.get(session_id)
        session.num_cleared += 1
        self.stop_answer(session_id)
        session.trace = session.editing = None
        with session.lock:
            session.dialogue = None

    def stop_answer(self, session_id: str) -> None:
        """End the session's answer after the round it is in, or before its turn."""
        self._cancel(session_id, "answer")

    def end_answer(self, session_id: str, timeout_seconds: float = MOST_WAIT_SECONDS) -> None:
        """Stop the session's answer and wait until it is recorded."""
        self.stop_answer(session_id)
        with self._changed:
            self._changed.wait_for(lambda: not self.has_answer(session_id), timeout_seconds)

    def has_answer(self, session_id: str) -> bool:
        """An answer of the session is being written, or waits for its turn."""
        return any(job.session.id == session_id and job.kind == "answer" for job in self._jobs)

    def stop_reading(self, session_id: str) -> None:
        """Stop opening or reading the session's book. What was read stays read."""
        self.sessions.get(session_id).stop_extracting.set()
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

    def _stream(self, session: Session, kind: Kind, work: Work) -> Iterator[WorkerEvent]:
        """Queue a job and hand on its events; closing this generator cancels the job."""
        job = _Job(session, kind, work)
        with self._changed:
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
            ahead = self._jobs[: self._jobs.index(job)]
        others = sum(other.session is not job.session for other in ahead)
        if others:
            return Waiting("another page", others)
        return Waiting("own job", 0, ahead[0].kind)

    # -------------------- the engine's side

    def _run(self) -> None:
        self._settle_state(self._loaded())
        while job := self._next_job():
            self._do(job)

    def _loaded(self) -> ModelState:
        started = time.perf_counter()
        try:
            self._engine, machine = self._load()
        except CoreError as error:
            return LoadFailed(error)
        except Exception as error:
            log.exception("loading the model failed")
            return LoadFailed(EngineFault(error))
        log.info("model loaded in %.1f s", time.perf_counter() - started)
        return Ready(self._engine.info, machine, self._engine.context)

    def _settle_state(self, state: ModelState) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()

    def _next_job(self) -> _Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._jobs)
            return None if self._closed else self._jobs[0]

    def _do(self, job: _Job) -> None:
        try:
            if isinstance(self._state, LoadFailed):
                raise self._state.error
            assert self._engine is not None, "a job before the model is loaded"
            for event in job.work(self._engine, job.cancel):
                job.events.put(event)
        except CoreError as error:
            job.events.put(error)
        except Exception as error:  # the one broad except: this thread must outlive every bug
            log.exception("a job failed")
            job.events.put(EngineFault(error))
        finally:
            with self._changed:
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
        engine: "Engine",
        cancel: threading.Event,
    ) -> Iterator[WorkerEvent]:
        """Write an answer, or more of one, and record it."""
        book, conversation = session.book, session.conversation
        assert book is not None and conversation is not None, "an answer without a book"
        if cancel.is_set():
            return
        if not session.fits and session.dialogue is not None:
            raise OtherBook(session.dialogue.book.title)
        seeded = replace(config, seed=self._seed + session.num_drawn) if own_seed else config
        number_format = str(engine.info.plan.dtype.value).removeprefix("torch.")
        num_read_before = session.num_read
        recording = Recording(
            session, self.conversations, place, seeded, model=engine.info.model, weights=number_format
        )
        before = recording.before
        if before is not None and before.seed is not None and own_seed:
            recording.config = seeded = replace(
                seeded, seed=before.seed
            )  # plain decoding then draws what it would have
        written = recording.written = answer_ids(before, engine) if before else ()
        trace = session.trace = Trace(f"{place.question} (continued)" if before else place.question, config.method)
        session.newest = "answer"
        yield AnswerBegun(book.num_tokens, num_read_before)
        prompt = prompt_of(conversation, recording.past, place.question, engine)
        try:
            for event in engine.generate(prompt, seeded, cancel, written=written):
                trace.apply(only_new(event, before, len(written)))
                if isinstance(event, PrefillProgress):
                    session.num_read = max(session.num_read, min(event.done_tokens, book.num_opening))
                if isinstance(event, Finished) and len(event.token_ids) > len(written):
                    session.num_drawn += 1
                recording.apply(event)
                yield event
        finally:
            recording.end()

    def _race(
        self,
        session: Session,
        question: str,
        configs: tuple[GenerationConfig, ...],
        seconds: float | None,
        engine: "Engine",
        cancel: threading.Event,
    ) -> Iterator[WorkerEvent]:
        """Run the lanes, then compare the exact ones with plain decoding."""
        book, conversation = session.book, session.conversation
        assert book is not None and conversation is not None, "a race without a book"
        prompt = conversation.until(0).ask(question).prompt_ids(engine.text)
        race = Race(
            question=question.strip(),
            lanes=tuple(Trace(question.strip(), config.method) for config in configs),
            configs=configs,
            seconds=seconds,
            book=book.document.title,
            num_book=book.num_tokens,
            num_read_before=session.num_read,
        )
        session.race, session.newest = race, "race"
        yield RaceBegun(race)
        try:
            with closing(cast("Generator[LaneEvent]", engine.race(prompt, configs, cancel, seconds=seconds))) as events:
                for event in events:
                    race.apply(event)
                    if isinstance(event.event, PrefillProgress):
                        session.num_read = max(session.num_read, min(event.event.done_tokens, book.num_opening))
                        if cancel.is_set():
                            break  # nothing was written: there is no race to show
                    yield event
            if race.greedy and race.plain and race.plain.finished:
                race.judgements = _judgements(race, prompt, engine)
        finally:
            race.ended = True
        yield RaceEnded()


def prompt_of(conversation: "Conversation", past: Sequence[Exchange], question: str, engine: "Engine") -> list[int]:
    """The tokens in front of an answer: those of earlier answers are the very ones that were written."""
    for exchange in past:
        conversation = conversation.ask(exchange.question).answered(answer_ids(exchange, engine), engine.text.eos_ids)
    return conversation.ask(question).prompt_ids(engine.text)


def answer_ids(exchange: Exchange, engine: "Engine") -> tuple[int, ...]:
    """The tokens an answer was written with, or those of its text where another model wrote it."""
    if exchange.model == engine.info.model:
        return exchange.finished.token_ids
    return tuple(engine.text.encode(exchange.finished.text))


def only_new(event: Event, before: Exchange | None, num_before: int) -> Event:
    """The end of a continued answer without what was there before; all other events are of what is new anyway."""
    if before is None or not isinstance(event, Finished):
        return event
    return replace(event, text=event.text[len(streamed_text(before)) :], token_ids=event.token_ids[num_before:])


def _judgements(race: Race, prompt: list[int], engine: "Engine") -> dict[str, Judgement]:
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


def _admit(session: Session, document: Document, engine: "Engine", cancel: threading.Event) -> Iterator[WorkerEvent]:
    """Make a document the session's book, in one step, if the context holds it."""
    from core.session import Conversation  # loaded by now: the engine is

    conversation = Conversation(book_ids=tuple(engine.text.encode(document.text)))
    num_opening = len(conversation.opening_ids(engine.text))
    if num_opening + ROOM_FOR_A_QUESTION > engine.context:
        raise ContextTooSmall(num_opening + ROOM_FOR_A_QUESTION, engine.context, possible=engine.info.most_context)
    if cancel.is_set():
        return
    if note := reach_note(engine.info.limits, document.text, len(conversation.book_ids)):
        document = replace(document, warnings=(*document.warnings, note))
    book = Book(document, len(conversation.book_ids), num_opening, engine.context)
    session.book, session.conversation, session.digest = book, conversation, digest_of(document.text)
    with session.lock:
        if not session.fits:
            session.dialogue = session.editing = None  # it stays in the list; one about this very text goes on
    session.num_read, session.read_seconds = 0, 0.0
    session.trace = session.race = None
    yield BookOpened(book)


def _read(session: Session, engine: "Engine", cancel: threading.Event) -> Iterator[WorkerEvent]:
    """Prefill everything before the first question."""
    book, conversation = session.book, session.conversation
    assert book is not None and conversation is not None, "reading without a book"
    before = session.read_seconds
    for progress in engine.read(conversation.opening_ids(engine.text), cancel):
        session.num_read = max(session.num_read, progress.done_tokens)
        session.read_seconds = before + progress.elapsed_seconds
        yield progress
    yield ReadingEnded(session.num_read, session.is_read)
