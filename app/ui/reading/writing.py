"""An answer as the page shows it while it waits for its turn and is written."""

from collections.abc import Sequence

from app.conversations.exchange import Exchange
from app.runtime.events import WorkerEvent
from app.runtime.recording import streamed_text
from app.runtime.sessions import Session
from app.ui.reading.live_strip import LiveStrip
from core.decoding.stats import DecodeStats, joined
from core.generation.events import Finished, RoundDone


class Writing:
    """The text is one string that only gets longer.

    Args:
        past: the exchanges shown before it, by their ids.
        before: the answer so far, if it continues.
        left: the question, which goes back into the box if there is no answer.
        editing: the exchange that the question replaces.
    """

    def __init__(
        self,
        session: Session,
        method: str,
        question: str,
        past: Sequence[str],
        *,
        before: Exchange | None = None,
        left: str = "",
        editing: str | None = None,
    ) -> None:
        self.question, self.past, self.left, self.editing = question, tuple(past), left, editing
        self.strip = LiveStrip(method)
        self.text = streamed_text(before) if before else ""
        self.thought = before.finished.thought if before else ""
        self.stats = self._before = before.finished.stats if before else DecodeStats()
        self._num_before = len(before.finished.token_ids) if before else 0
        self._number, self._conversation = session.num_cleared, session.dialogue_id
        self._beside = not session.fits  # a conversation about another book is shown
        self._finished: Finished | None = None
        self._wrote = False

    def apply(self, event: WorkerEvent) -> None:
        """Apply one event."""
        self.strip.apply([event])
        if isinstance(event, RoundDone):
            self.text += event.text
            self.thought += event.thought
            self._wrote |= bool(event.tokens or event.text or event.thought)
            self.stats = joined(self._before, event.stats)
        elif isinstance(event, Finished):
            self._finished, self.text, self.thought = event, event.text, event.thought
            self.stats = joined(self._before, event.stats)

    def is_shown(self, session: Session) -> bool:
        """The page still shows the conversation in which the question was asked."""
        return session.num_cleared == self._number

    def past_in(self, session: Session) -> tuple[str, ...]:
        """The exchanges before it; none where its book has begun another conversation than the one shown before."""
        began = self._beside and session.dialogue_id != self._conversation
        return () if began else self.past

    @property
    def answered(self) -> bool:
        """At least one token was written, so the exchange is part of the conversation."""
        if self._finished is None:
            return False
        # The earlier text may have other tokens in another model, so a count alone does not decide.
        return self._wrote or len(self._finished.token_ids) > self._num_before
