"""An answer on the engine's thread: its prompt, its seed, its record, and the reading of the rest of the book."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

from app.context.retrieval_map import Loaded
from app.conversations.store import Conversations
from app.runtime.context_loader import recount
from app.runtime.events import Begun, Changed, Pause, WorkerEvent
from app.runtime.prompts import answer_ids, prompt_of
from app.runtime.recording import Place, Recording, check_place
from app.runtime.saved_books import SavedBooks
from app.runtime.sessions import NoBook, Session
from core.config import GenerationConfig, seed_at
from core.engine_api import TextEngine, local
from core.generation.events import Event, Finished, PrefillProgress, RoundDone


def write_answer(
    session: Session,
    place: Place,
    config: GenerationConfig,
    seed: int | None,
    conversations: Conversations,
    saved_books: SavedBooks,
    engine: TextEngine,
    cancel: threading.Event,
) -> Iterator[WorkerEvent]:
    """Write a new answer, or continue one, and record it.

    Args:
        seed: the start of every answer's seed in this program; None: take the seed in `config`.
    """
    for _ in recount(session, engine, cancel):
        yield Pause()
    if cancel.is_set():
        return
    book, conversation = session.book, session.conversation
    check_place(place, session)
    if book is None or conversation is None:
        raise NoBook(too_long=session.uploads.too_long)
    recording = _recording(session, place, config, seed, conversations, engine)
    trace = session.trace = recording.trace
    before, written = trace.before, recording.written
    session.inside = ""
    looking = RetrievalProbe(session, recording.node.id, trace.method, engine)
    thinking = recording.config.thinking
    try:
        yield Begun(trace)
        prompt = prompt_of(conversation, recording.past, place.question, engine, thinking)
        if before is not None and before.finished.text:
            prompt = local(engine).text.thought_over(prompt, written)
        most = recording.config.max_new_tokens
        yield from saved_books.fetch(session, [*prompt, *written], engine, cancel, most)
        # The rest of the book is read first, exactly up to the book's end: only that state can be saved on disk.
        end = len(conversation.opening_ids(engine.text, thinking)) - 1
        seconds_before, was_read = session.read_seconds, session.is_read
        for event in engine.generate(prompt, recording.config, cancel, written=written, boundary=end):
            if isinstance(event, PrefillProgress):
                session.num_read = max(session.num_read, min(event.kept_tokens, end + 1))
                if not was_read and event.reused_tokens < end:
                    session.read_seconds = seconds_before + event.elapsed_seconds
                    if event.kept_tokens == end:
                        was_read = True
                        saved_books.read_ended(session, prompt[:end], engine)
            if isinstance(event, Finished) and event.stats.new_tokens:
                session.num_drawn += 1
            recording.apply(event)
            if looking.apply(event):
                yield Changed()
            yield event
    finally:
        recording.end()


def _recording(
    session: Session,
    place: Place,
    config: GenerationConfig,
    seed: int | None,
    conversations: Conversations,
    engine: TextEngine,
) -> Recording:
    """The record, with the settings that write this answer."""
    node = session.dialogue.find(place.goes_on) if session.dialogue else None
    info, before = engine.info, node.exchange if node else None  # the answer that is continued
    wish = before.thinking if before is not None else config.thinking  # an answer goes on as it was begun
    wish = wish if wish in info.thinking else None  # another model may have taken this one's place
    method = "" if info.elsewhere else config.method
    config = replace(config, method=method or info.usual_method, thinking=wish)
    if seed is not None:
        config = replace(config, seed=seed_at(seed, session.num_drawn))
    session.budget = 0 if info.elsewhere else local(engine).use_budget(config.budget)
    recording = Recording(session, conversations, place, config, model=info.model, weights=info.weights)
    if before is not None and before.seed is not None and seed is not None:
        recording.config = replace(config, seed=before.seed)  # plain decoding then draws as if uncut
    recording.written = answer_ids(before, engine) if before else ()
    return recording


LOOK_SECONDS = 0.5  # between two reads of the retrieval cache


class RetrievalProbe:
    """Records what the retrieval cache loads for one answer.

    Args:
        exchange_id: of the answer. A continued answer keeps its earlier record, unless the retrieval cache has changed.
    """

    def __init__(self, session: Session, exchange_id: str, method: str, engine: TextEngine) -> None:
        self._session, self._id, self._engine = session, exchange_id, engine
        self._looked = -LOOK_SECONDS
        known = session.loads.get(exchange_id)
        retrieves = not engine.info.elsewhere and local(engine).retrieves(method)
        budget = session.budget or 0
        same = known is not None and (known.retrieves, known.budget) == (retrieves, budget)
        self.loaded = known if known is not None and same else Loaded(retrieves, budget=budget)
        session.loads.put(exchange_id, self.loaded)

    def apply(self, event: Event) -> bool:
        """Record what is loaded now, where that is due: after the first round, twice a second, and at the end."""
        due = isinstance(event, RoundDone) and time.monotonic() - self._looked >= LOOK_SECONDS
        if not due and not isinstance(event, Finished):
            return False
        self._looked = time.monotonic()
        if self.loaded.retrieves:
            engine = local(self._engine)
            weights, all_held = engine.chunk_weights().tolist(), engine.holds_all_chunks
            self.loaded = self.loaded.seen(weights, all_held=all_held)
        self._session.loads.put(self._id, self.loaded)
        return True
