"""Reads what the retrieval cache holds during an answer, about twice a second. Runs on the engine's thread."""

import time
from typing import TYPE_CHECKING

from app.context.retrieval_map import Loaded
from app.runtime.sessions import Session
from core.engine_api import local
from core.generation.events import Event, Finished, RoundDone

if TYPE_CHECKING:
    from core.engine_api import TextEngine

LOOK_SECONDS = 0.5  # between two reads of the retrieval cache


class RetrievalProbe:
    """Records what the retrieval cache loads for one answer.

    Args:
        exchange_id: of the answer. A continued answer keeps its earlier record, unless the retrieval cache has changed.
    """

    def __init__(self, session: Session, exchange_id: str, question: str, method: str, engine: "TextEngine") -> None:
        self._session, self._id, self._engine = session, exchange_id, engine
        self._looked = -LOOK_SECONDS
        known = session.loads.get(exchange_id)
        retrieves = not engine.info.elsewhere and local(engine).retrieves(method)
        budget = session.budget or 0
        same = known is not None and (known.retrieves, known.budget) == (retrieves, budget)
        self.loaded = known if known is not None and same else Loaded(question, method, retrieves, budget=budget)
        session.loads.put(exchange_id, self.loaded)

    def apply(self, event: Event) -> Loaded | None:
        """What is loaded now, where a report is due: after the first round, twice a second, and at the end."""
        ended = isinstance(event, Finished)
        due = isinstance(event, RoundDone) and time.monotonic() - self._looked >= LOOK_SECONDS
        if not ended and not due:
            return None
        self._looked = time.monotonic()
        if self.loaded.retrieves:
            engine = local(self._engine)
            weights, all_held = engine.chunk_weights().tolist(), engine.holds_all_chunks
            self.loaded = self.loaded.seen(weights, all_held=all_held)
        self._session.loads.put(self._id, self.loaded)
        return self.loaded
