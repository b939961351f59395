"""The engine's queue: jobs of many pages take turns, and each page follows its own. Knows nothing of books.

Errors cross the threads as values and are raised again in the page's thread. Closing a stream cancels its job.
"""

import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from app.runtime.events import Kind, LoadFailed, Loading, ModelState, Pause, Ready, Waiting, WorkerEvent
from app.runtime.sessions import Session
from core.engine_api import TextEngine
from core.errors import CoreError
from core.models.loading import LoadProgress

if TYPE_CHECKING:  # importing these takes seconds: the engine's thread does it while the page is already served
    from core.engine_info import EngineInfo
    from core.planning.hardware import Machine

BEFORE = "the model before"
LOOK_SECONDS = 0.1  # between two looks whether a job is ready, or has something to tell

Work = Callable[[TextEngine, threading.Event], Iterator[WorkerEvent]]
Load = Callable[[], "tuple[TextEngine, Machine]"]


Item = WorkerEvent | CoreError | None  # None: the last of every job


@dataclass(eq=False, slots=True)
class Job:
    """Work that somebody waits for, and the events that it has told."""

    session: Session
    kind: Kind
    work: Work
    ready: Callable[[], bool]  # until then other jobs go first
    cancel: threading.Event = field(default_factory=threading.Event)
    told: SimpleQueue[Item] = field(default_factory=SimpleQueue)


class JobQueue:
    """Jobs in order of arrival, and the state of the model."""

    def __init__(self) -> None:
        self.state: ModelState = Loading()
        self.closed = False
        self.stop_loading = threading.Event()  # of the model that is being loaded
        self._jobs: list[Job] = []
        self._turn: Job | None = None  # the one that runs
        self._switch: Load | None = None  # done before the next job
        self._changed = threading.Condition()  # guards all fields above

    def __len__(self) -> int:
        return len(self._jobs)

    # -------------------- the pages' side

    def stream(
        self, session: Session, kind: Kind, work: Work, *, ready: Callable[[], bool] = lambda: True
    ) -> Generator[WorkerEvent]:
        """Queue a job and yield its events; closing this generator cancels the job.

        Raises:
            CoreError: whatever the job raises.
        """
        job = self.add(session, kind, work, ready)
        before: Waiting | None = None
        try:
            while True:
                try:
                    item = job.told.get(timeout=LOOK_SECONDS)
                except Empty:
                    if self._withdrawn(job):
                        return
                    waiting = self._waiting(job)
                    if waiting and waiting != before:
                        yield (before := waiting)
                    else:
                        yield Pause()
                    continue
                if item is None:
                    return
                if isinstance(item, CoreError):
                    raise item
                yield item
        finally:
            job.cancel.set()
            self._withdrawn(job)

    def add(self, session: Session, kind: Kind, work: Work, ready: Callable[[], bool] = lambda: True) -> Job:
        """Queue a job."""
        job = Job(session, kind, work, ready)
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()
        return job

    def add_once(self, session: Session, kind: Kind, work: Work) -> None:
        """`add`, unless the session has a job of that kind."""
        with self._changed:
            if not self.of(session.id, kind):
                self.add(session, kind, work)

    def cancel(self, session_id: str, kind: Kind) -> None:
        """End the session's jobs of a kind, or withdraw them."""
        with self._changed:
            for job in self.of(session_id, kind):
                job.cancel.set()

    def cancel_reading(self, session_id: str) -> None:
        """End the session's reading, and withdraw its questions that wait: each would read the rest."""
        with self._changed:
            own = [job for job in self._jobs if job.session.id == session_id]
            stops = any(job.kind == "reading" or not job.ready() for job in own)
            for job in own:
                waits = job is not self._turn and job.kind in ("answer", "race")
                if job.kind == "reading" or (stops and waits):
                    job.cancel.set()

    def of(self, session_id: str, kind: Kind) -> list[Job]:
        """The session's jobs of a kind."""
        return [job for job in self._jobs if job.session.id == session_id and job.kind == kind]

    def settle(self, session_id: str, kind: Kind, timeout_seconds: float) -> None:
        """Wait until cancelled jobs of a kind have ended."""
        with self._changed:
            self._changed.wait_for(
                lambda: not any(job.cancel.is_set() for job in self.of(session_id, kind)), timeout_seconds
            )

    def is_busy(self, session: Session) -> bool:
        """A job of this page runs or waits."""
        return any(job.session is session and job.kind != "survey" for job in self._jobs)

    def others_wait(self) -> bool:
        """Another job waits for the running one to end."""
        return any(job is not self._turn and job.kind != "survey" and job.ready() for job in self._jobs)

    def switch(self, load: Load, model: str) -> None:
        """Load another model in place of the present one before the next job; returns at once.

        The present model is freed first, and loaded again if the other cannot be loaded. Reading and counting end;
        books are counted and read again, conversations stay.

        Args:
            model: its name, for display.
        Raises:
            CoreError: a model is being loaded, or any page has an answer or a race that runs or waits.
        """
        with self._changed:
            if isinstance(self.state, Loading):
                raise CoreError("A model is being loaded.", hint="Choose another when it is there.")
            busy = next((job for job in self._jobs if job.kind in ("answer", "race")), None)
            if busy is not None:
                what = "An answer is being written" if busy.kind == "answer" else "A race runs"
                what = what if busy.ready() else "A question waits for its book"
                raise CoreError(f"{what}, perhaps on another page.", hint="Wait for its end, or stop it there.")
            for job in self._jobs:
                if job is self._turn or job.kind == "survey":
                    job.cancel.set()
            self.state, self._switch = Loading(model), load
            self.stop_loading.clear()
            self._changed.notify_all()

    def halt(self) -> None:
        """Stop loading a model; the one before it, which then is loaded again, comes in any case."""
        if not (isinstance(self.state, Loading) and self.state.model == BEFORE):
            self.stop_loading.set()

    def has_loaded(self, timeout_seconds: float) -> bool:
        """Wait until no model is being loaded; False: one still is."""
        with self._changed:
            return self._changed.wait_for(lambda: self.closed or not isinstance(self.state, Loading), timeout_seconds)

    def close(self) -> bool:
        """Cancel everything and start no further jobs. True: a model is being loaded."""
        with self._changed:
            self.closed = True
            self.stop_loading.set()
            for job in self._jobs:
                job.cancel.set()
            self._changed.notify_all()
            return isinstance(self.state, Loading)

    def _withdrawn(self, job: Job) -> bool:
        """Take a cancelled job out of the queue, unless it has begun."""
        with self._changed:
            begun = job is self._turn and not self.closed
            if job in self._jobs and job.cancel.is_set() and not begun:
                self._jobs.remove(job)
                self._changed.notify_all()
                return True
            return False

    def _waiting(self, job: Job) -> Waiting | None:
        with self._changed:
            if isinstance(self.state, Loading):
                return Waiting("loading", 0)
            if job is self._turn or job not in self._jobs:
                return None
            if not job.ready():
                return Waiting("opening", 0)
            before = self._jobs[: self._jobs.index(job)]
            ahead = [one for one in self._jobs if one is self._turn or (one in before and one.ready())]
            ahead = [one for one in ahead if one.kind != "survey"]
            if not ahead:
                return None
        others = sum(other.session is not job.session for other in ahead)
        if others:
            return Waiting("another page", others)
        return Waiting("own job", 0, ahead[0].kind)

    # -------------------- the engine's side

    def next_turn(self) -> Job | Load | None:
        """Wait for the next work; None: the queue is closed."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self.closed or self._switch or self._jobs)
                if self.closed:
                    return None
                switch, self._switch = self._switch, None
                if switch:
                    return switch
                self._turn = self._next_job()
                if self._turn:
                    return self._turn
                self._changed.wait(LOOK_SECONDS)

    def _next_job(self) -> Job | None:
        """The oldest that is ready; but a text that came later is opened before the questions that waited for it."""
        failed = isinstance(self.state, LoadFailed)  # then nothing becomes ready any more
        first = next((job for job in self._jobs if failed or job.cancel.is_set() or job.ready()), None)
        if first is None or first.kind not in ("answer", "race") or not first.session.lacks_book:
            return first
        return next((job for job in self._jobs if job.session is first.session and job.kind == "reading"), first)

    def has_become(self, state: ModelState) -> None:
        """Set the model's state."""
        with self._changed:
            self.state = state
            self._changed.notify_all()

    def forget_refusal(self) -> None:
        """The present model is the one in use, whatever was wished."""
        with self._changed:
            if isinstance(self.state, Ready):
                self.state = replace(self.state, refused=None)

    def loads_again(self) -> None:
        """The model that another one was to replace is being loaded."""
        if not self.closed:
            self.stop_loading.clear()
        self.has_become(Loading(BEFORE))

    def loads(self, progress: LoadProgress) -> None:
        """How far loading is."""
        with self._changed:
            if isinstance(self.state, Loading):
                self.state = replace(self.state, progress=progress)

    def end(self, job: Job, info: "EngineInfo | None") -> None:
        """End the job's turn. `info`: what the engine reports of itself now."""
        with self._changed:
            ready = self.state if isinstance(self.state, Ready) else None
            if ready and info is not None and info is not ready.info:  # layers have moved to host memory
                self.state = replace(ready, info=info)
            self._turn = None
            if job in self._jobs:  # not removed while the program ends
                self._jobs.remove(job)
            self._changed.notify_all()
        job.told.put(None)
