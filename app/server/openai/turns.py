"""Requests take turns at the one engine: a queue of limited length, and events handed to the event loop.

The engine's thread does the work and a thread of the loop's pool waits for its events, so the loop is never blocked.
Leaving `events` early, as when a client disconnects, cancels the answer after the current round or chunk.
"""

import threading
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

import anyio
from anyio import CapacityLimiter, to_thread

from app.runtime.events import BookMoving, Changed, Pause, Waiting, WorkerEvent
from app.runtime.jobs import Work
from app.runtime.worker import EngineWorker
from app.server.openai.errors import RequestError, overloaded, request_error
from app.server.openai.prompts import Prompt, Prompts
from app.server.openai.request import Body, TextBody
from core.config import seed_at
from core.engine_api import local
from core.errors import CoreError, InvalidSetting
from core.generation.events import Event, Finished, PrefillProgress

if TYPE_CHECKING:
    from core.engine_api import TextEngine

MOST_WAITING = 16  # requests behind the running one
SENT = ("sent by a program",)  # the name of its texts among the saved books


class Turns:
    """The queue in front of a worker.

    Args:
        most_waiting: requests that may wait behind the running one.
        thinking: the wish of requests that have none.
    """

    def __init__(self, worker: EngineWorker, *, most_waiting: int = MOST_WAITING, thinking: str | None = None) -> None:
        self._worker, self._most, self._thinking = worker, most_waiting, thinking
        self._session = worker.sessions.enter("")
        self._prompts = Prompts()
        self.num_here = 0  # requests that run or wait; only the event loop changes it
        self._threads = CapacityLimiter(most_waiting + 2)

    def answer(self, request: Body) -> AsyncGenerator[Event | Changed | Pause]:
        """The events of an answer behind a Changed, as `turn` has them."""
        return self.turn(partial(self._work, request), request.field)

    async def turn(self, work: Work, field: str = "") -> AsyncGenerator[Event | Changed | Pause]:
        """The events of work with the engine, when its turn comes. Closing the generator cancels it.

        Raises:
            RequestError: while iterating, at once where too many wait.
        """
        if self.num_here > self._most:
            raise overloaded(f"{self.num_here - 1} requests wait already: one is answered at a time.")
        self.num_here += 1
        stream = _Stream(self._worker.borrow(self._session.id, work))
        try:
            while (event := await to_thread.run_sync(stream.next, limiter=self._threads)) is not None:
                yield Pause() if isinstance(event, Waiting | BookMoving) else cast("Event | Changed | Pause", event)
        except CoreError as error:
            raise request_error(error, field) from error
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(stream.close, limiter=self._threads)
            self.num_here -= 1
            self._worker.reading.save_later(self._session)

    def _work(self, request: Body, engine: "TextEngine", cancel: threading.Event) -> Iterator[WorkerEvent]:
        """The answer, on the engine's thread; what is kept of its prompt need not be read."""
        yield Changed()
        text, books, prompts = local(engine).text, self._worker.saved_books, self._prompts
        prompt = prompts.of(request, text, wish_of(request, engine.info.thinking, self._thinking))
        if isinstance(request, TextBody):
            check_known(engine, prompt.ids)
        end, before = prompt.boundary, text.decode(prompt.written)
        most = request.config.max_new_tokens
        yield from books.fetch(self._session, [*prompt.ids, *prompt.written], engine, cancel, most)
        for event in answers(engine, prompt, request, cancel):
            match event:
                case PrefillProgress() if end:
                    if event.kept_tokens == end > event.reused_tokens:  # its longest text was just read
                        books.was_read(self._session, prompt.ids[:end], engine, SENT, event.elapsed_seconds)
                case Finished():
                    if before:  # the client has it
                        event = replace(event, text=event.text[len(before) :])
                    elif not isinstance(request, TextBody):
                        prompts.wrote(event, text)
            yield event


class _Stream:
    """A generator that can be closed while a thread waits for its next event, which comes within a tenth of a second.

    Cancelling an asyncio task does not wait for the thread that the task waits for.
    """

    def __init__(self, events: "Generator[WorkerEvent]") -> None:
        self._events, self._lock = events, threading.Lock()

    def next(self) -> WorkerEvent | None:
        with self._lock:
            return next(self._events, None)

    def close(self) -> None:
        with self._lock:
            self._events.close()


def answers(engine: "TextEngine", prompt: Prompt, request: Body, cancel: threading.Event) -> Iterator[Event]:
    """The events of all answers that a request wants, one after the other; only the first one reads its prompt.

    Several are written together where the engine can; those behind the first are held back until their turn.
    """
    from core.generation.decode_loop import Question  # already imported with the engine
    from core.generation.together import in_order

    configs = [replace(request.config, seed=seed_at(request.config.seed, number)) for number in range(request.n)]
    if len(configs) > 1 and not prompt.written:
        asked = [Question(prompt.ids, config, cancel, prompt.boundary) for config in configs]
        for _, event in in_order(local(engine).answer_together(asked), len(asked)):
            yield event
        return
    for config in configs:
        yield from engine.generate(prompt.ids, config, cancel, written=prompt.written, boundary=prompt.boundary)
        if cancel.is_set():
            return


def check_known(engine: "TextEngine", ids: Sequence[int]) -> None:
    """Raise InvalidSetting for a token that the model does not have."""
    if not engine.knows(ids):
        raise InvalidSetting("prompt holds a token that the model does not have.", hint="Send the text instead.")


def wish_of(request: Body, offered: Sequence[str], usual: str | None) -> str | None:
    """What the model is told about thoughts: the first of a request's words for it that its chat template knows.

    Args:
        usual: the wish of a request that has none.
    Raises:
        InvalidSetting: it knows none of them, and the answer would be another.
    """
    from core.generation.text import check_thinking  # already imported with the engine

    if isinstance(request, TextBody):  # which no template sees
        return None
    wishes = request.thinking or ((usual,) if usual else ())
    known = next((wish for wish in wishes if wish in offered), None)
    ignorable = not offered and wishes != ("on",)  # an effort, or "off", where there is nothing to turn
    if known is None and wishes and not ignorable:
        try:
            check_thinking(wishes[0], offered)
        except InvalidSetting as error:
            hint = "Leave out reasoning_effort and chat_template_kwargs."
            raise InvalidSetting(error.problem, hint=hint) from error
    return known


def ended_early() -> RequestError:
    """The error if the stream ended without an answer: the server is shutting down."""
    return RequestError("The server is being shut down.", 500, code="shutting_down")
