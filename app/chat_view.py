"""The conversation as messages of the chat component: what was answered, and the answer that is being written."""

from collections.abc import Sequence
from typing import TypedDict

from app import render
from app.sessions import Exchange
from app.worker import WorkerEvent
from core.events import Finished, RoundDone

PENDING = "…"
EMPTY_ANSWER = "*(The model ended its answer at once.)*"


class TextBlock(TypedDict):
    """A piece of a message: sent as a block, it is neither trimmed nor dedented on the way."""

    type: str
    text: str


class Message(TypedDict):
    """One turn of one side."""

    role: str
    content: list[TextBlock]


class ChatView:
    """Grows the last answer. The text is one string that only gets longer."""

    def __init__(self, exchanges: Sequence[Exchange], question: str | None = None) -> None:
        self._past = [message for exchange in exchanges for message in _messages(exchange)]
        self._question, self._answer = question, ""
        self.finished: Finished | None = None

    def apply(self, events: Sequence[WorkerEvent]) -> "ChatView":
        """Take in what happened."""
        for event in events:
            if isinstance(event, RoundDone):
                self._answer += event.text
            elif isinstance(event, Finished):
                self.finished, self._answer = event, event.text
        return self

    @property
    def answered(self) -> bool:
        """At least one token was written, so the exchange is part of the conversation."""
        return self.finished is not None and bool(self.finished.token_ids)

    def messages(self) -> list[Message]:
        """For the chat component."""
        if self._question is None:
            return self._past
        if self._answer:
            answer = message("assistant", self._answer)
        else:
            answer = message("assistant", EMPTY_ANSWER if self.finished else PENDING, raw=True)
        return [*self._past, message("user", self._question), answer]


def message(role: str, text: str, *, raw: bool = False) -> Message:
    """A message; `raw` text is our own Markdown, all other text is shown as it is written."""
    return {"role": role, "content": [{"type": "text", "text": text if raw else render.literal(text)}]}


def _messages(exchange: Exchange) -> list[Message]:
    text = exchange.finished.text
    return [message("user", exchange.question), message("assistant", text or EMPTY_ANSWER, raw=not text)]
