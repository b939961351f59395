"""Whose book would be read again: there is one cache, and another page's book takes its place."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from app.runtime.events import WorkerEvent
from app.runtime.jobs import Job
from app.runtime.sessions import Session, Sessions
from core.generation.events import PrefillProgress

if TYPE_CHECKING:  # importing it takes seconds: the engine's thread does it while the page is already served
    from core.engine_api import TextEngine


Kept = Callable[[Sequence[int]], int]  # how many of a text's first tokens are kept in memory, beside the cache


def noticed(job: Job, sessions: Sessions, engine: "TextEngine", kept: Kept) -> Iterator[WorkerEvent]:
    """Do a job and yield its events; as soon as it reads, and at its end, note whose books are read again."""
    reads = False
    for event in job.work(engine, job.cancel):
        yield event
        if isinstance(event, PrefillProgress) and not reads:
            reads = True
            _note(sessions.all(), engine, kept)
    if reads:
        _note(sessions.all(), engine, kept)


def _note(sessions: list[Session], engine: "TextEngine", kept: Kept) -> None:
    """Cost: a comparison of token ids for each page with a book; a page alone is not compared."""
    if len(sessions) == 1:
        return
    for session in sessions:
        conversation = session.conversation
        if conversation is not None and session.is_read:
            opening = conversation.opening_ids(engine.text)
            session.displaced = max(engine.cached_prefix(opening), kept(opening)) < len(opening) - 1
