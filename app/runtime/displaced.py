"""Whose book the model still holds: there is one cache, and another page's book takes its place."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from app.runtime.events import WorkerEvent
from app.runtime.sessions import Session, Sessions
from core.generation.events import PrefillProgress

if TYPE_CHECKING:  # importing it takes seconds: the engine's thread does it while the page is already served
    from core.engine_api import TextEngine


def noticed(events: Iterator[WorkerEvent], sessions: Sessions, engine: "TextEngine") -> Iterator[WorkerEvent]:
    """Yield a job's events; as soon as it reads, and at its end, note which pages' books are still in the cache."""
    reads = False
    for event in events:
        yield event
        if isinstance(event, PrefillProgress) and not reads:
            reads = True
            _note(sessions.all(), engine)
    if reads:
        _note(sessions.all(), engine)


def _note(sessions: list[Session], engine: "TextEngine") -> None:
    """Cost: a comparison of token ids for each page with a book; a page alone is not compared."""
    if len(sessions) == 1 or not engine.info.capabilities.computes_here:
        return
    for session in sessions:
        conversation = session.conversation
        if conversation is not None and session.is_read:
            opening = conversation.opening_ids(engine.text)
            session.displaced = engine.cached_prefix(opening) < len(opening) - 1
