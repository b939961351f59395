"""Records one answer in its conversation: the question at once, the text every few seconds, and the end.

Runs on the engine's thread and only makes values; another thread writes them to disk. After a crash the reader finds
the question, and the answer as it was a few seconds before.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from app.conversations.exchange import Exchange
from app.conversations.store import Conversations
from app.conversations.tree import ROOT, BookRef, Dialogue, Node, tab_of
from app.runtime.sessions import OtherBook, Session
from app.runtime.trace import REPLACEMENT, Trace
from core.config import GenerationConfig
from core.decoding.registry import is_exact
from core.decoding.stats import joined
from core.errors import CoreError
from core.generation.events import Event, Finished, RoundDone

PARTIAL_SECONDS = 3.0  # between two saved states of an unfinished answer
CUT = frozenset({"max_new_tokens", "repeating", "cancelled", "time_up"})  # endings after which an answer can continue


class ExchangeGone(CoreError):
    """The exchange was deleted, here or in another tab."""

    def __init__(self) -> None:
        super().__init__("That exchange is not there any more.", hint="Reload the page to see the conversation.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an answer belongs in its conversation."""

    question: str
    parent: str | None = None  # the node it follows; None: the last answer shown when its turn comes
    goes_on: str | None = None  # the node whose answer is continued
    asked_in: Dialogue | None = None  # the conversation shown when the question was asked


def check_place(place: Place, session: Session) -> None:
    """Check that an answer whose turn has come is about the text that was open when it was asked.

    Raises:
        CoreError: another book is open, or the library has changed.
    """
    dialogue, asked_in = session.dialogue, place.asked_in
    if dialogue is not None and not session.fits:
        raise OtherBook(dialogue.book.title)
    if asked_in is not None and dialogue is None and asked_in.book.digest != session.digest:
        raise OtherBook(asked_in.book.title)  # the library was changed before its turn
    node = dialogue.find(place.goes_on) if dialogue else None
    if node is not None and node.exchange is not None and node.exchange.digest not in ("", session.digest):
        told = "The library has changed since this answer was begun."
        raise CoreError(told, hint="Regenerate it, or ask a further question.")


class Recording:
    """Records the events of one answer, in its conversation and in a trace.

    Args:
        model, weights: what runs, for the record.
    """

    def __init__(
        self,
        session: Session,
        conversations: Conversations,
        place: Place,
        config: GenerationConfig,
        *,
        model: str = "",
        weights: str = "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        assert session.book is not None, "an answer without a book"
        self._session, self._conversations, self.config, self._clock = session, conversations, config, clock
        self._model, self._weights, self._digest = model, weights, session.digest
        self._kept = not session.incognito
        self._began, self._saved = clock(), clock()
        self._first_token_seconds: float | None = None
        self._done = False
        with session.lock:
            dialogue = session.dialogue or Dialogue.begin(
                BookRef.of(session.book, session.digest), place.question, tab_of(session.id)
            )
            if conversations.was_deleted(dialogue.id):  # another page deleted it while this one shows it
                dialogue = replace(dialogue, id=secrets.token_hex(16))
            self._head_before, self._book_before = dialogue.head, dialogue.book
            if dialogue.book.digest != session.digest:  # the conversation continues about a changed library
                dialogue = replace(dialogue, book=BookRef.of(session.book, session.digest))
            node = dialogue.find(place.goes_on)
            self._is_new = node is None
            if node is None:
                known = place.parent == ROOT or dialogue.find(place.parent) is not None
                parent = place.parent if place.parent is not None and known else dialogue.tip
                dialogue, node = dialogue.ask(parent, place.question)
            self.node: Node = node
            self.written = node.exchange.finished.token_ids if node.exchange else ()  # in the present model's tokens
            dialogue = dialogue.show(node.id)
            self._dialogue = session.dialogue = replace(dialogue, tab=tab_of(session.id))
        self.trace = Trace(
            node.question,
            config.method,
            node.exchange,
            num_book=session.book.num_tokens,
            num_read_before=session.num_read,
        )
        self._save()

    @property
    def past(self) -> tuple[Exchange, ...]:
        """The earlier exchanges, in order."""
        path = self._dialogue.path_to(self.node.parent)
        return tuple(node.exchange for node in path if node.exchange is not None)

    def apply(self, event: Event) -> None:
        """Record one event."""
        self.trace.apply(event)
        match event:
            case RoundDone():
                if self._first_token_seconds is None:
                    self._first_token_seconds = self._clock() - self._began
                if self._clock() - self._saved > PARTIAL_SECONDS:
                    self._saved = self._clock()
                    self._record(self._so_far())
            case Finished():
                if event.stats.new_tokens:
                    self._record(event)
                    self._done = True

    def end(self) -> None:
        """The stream has ended: remove an answer without any text."""
        if self._done:
            return
        self._done = True
        if self.trace.stats.new_tokens:  # it was interrupted: the text so far is recorded
            self._record(self._so_far())
        elif self._is_new:
            with self._session.lock:
                left = self._newest.remove(self.node.id).show(self._head_before)
                left = replace(left, book=self._book_before)
                if self._in_view:
                    self._session.dialogue = left if left.nodes else None
            self._dialogue = left
            self._save()

    @property
    def _in_view(self) -> bool:
        shown = self._session.dialogue
        return shown is not None and shown.id == self._dialogue.id

    @property
    def _newest(self) -> Dialogue:
        """The conversation with other changes made meanwhile, for example a new title."""
        shown = self._session.dialogue
        return shown if shown is not None and self._in_view else self._dialogue

    def _record(self, finished: Finished) -> None:
        exchange = self._exchange(finished)
        with self._session.lock:
            changed, in_view = self._newest.answer(self.node.id, exchange), self._in_view
            self._dialogue = changed
            if in_view:
                self._session.dialogue = changed
        self._save()

    def _save(self) -> None:
        if self._kept:
            self._conversations.save(self._dialogue)

    def _so_far(self) -> Finished:
        trace = self.trace
        progress = trace.reading
        return Finished(
            text=trace.answer,
            thought=trace.thought,
            in_thought=bool(trace.thought and not trace.answer),
            token_ids=(*self.written, *(record.token_id for record in trace.records)),
            stop_reason="cancelled",
            stats=trace.stats,
            prompt_tokens=progress.total_tokens + 1 if progress else 0,
            reused_tokens=progress.reused_tokens if progress else 0,
            prefill_seconds=progress.elapsed_seconds if progress else 0.0,
            method=self.config.method,
            exact=is_exact(self.config.method),
        )

    def _exchange(self, finished: Finished) -> Exchange:
        before, num_reread = self.trace.before, self.trace.num_reread or 0
        if before is not None:
            old, thought = before.finished, before.finished.thought.rstrip().rstrip(REPLACEMENT)
            whole = finished.thought.startswith(thought)  # else another model, or a server, tells of the new part alone
            finished = replace(
                finished,
                thought=finished.thought if whole else "\n\n".join(filter(None, (thought, finished.thought))),
                stats=joined(old.stats, finished.stats),
                prompt_tokens=old.prompt_tokens,
                reused_tokens=old.reused_tokens,
                prefill_seconds=old.prefill_seconds + finished.prefill_seconds,
                exact=old.exact and finished.exact,
            )
        methods = (*(before.methods if before else ()), finished.method)
        return Exchange(
            self.node.question,
            finished,
            first_token_seconds=before.first_token_seconds if before else self._first_token_seconds,
            num_reread=num_reread + (before.num_reread if before else 0),
            methods=tuple(dict.fromkeys(methods)),
            sampling=self.config.sampling,
            seed=self.config.seed,
            model=self._model,
            weights=self._weights,
            digest=self._digest,
            thinking=self.config.thinking,
        )
