"""The conversation as messages of the chat component: past answers, and the answer in progress."""

from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

from app import formats
from app.conversations.exchange import Exchange
from app.conversations.figures import seconds
from app.conversations.tree import Node
from app.markdown import literal
from app.runtime.events import WorkerEvent
from app.runtime.recording import streamed_text
from app.runtime.sessions import Session
from app.ui.reading.answer_footer import answer_footer, question_footer
from app.ui.reading.evidence_chips import chips, own_key
from core.decoding.stats import DecodeStats, joined
from core.generation.events import Finished, RoundDone, StopReason

PENDING = "…"
EMPTY_ANSWER = "*(The model ended its answer at once.)*"
BLANK_ANSWER = "*(The answer is white space alone.)*"
IN_THOUGHT: dict[StopReason, str] = {
    "max_new_tokens": "*(Still thinking at the limit of new tokens. Continue goes on; Settings have the limit.)*",
    "context_full": "*(Still thinking when the context was full.)*",
    "repeating": "*(Ended: its thought went on repeating itself.)*",
    "cancelled": "*(Stopped while it was thinking.)*",
}
NO_CONTINUE = "*(Still thinking at the limit of new tokens. Regenerate it with more new tokens; Settings have them.)*"
ENDED_THINKING = "*(The model ended its answer inside its thought.)*"


class TextBlock(TypedDict):
    """A piece of a message: as a block it is neither trimmed nor dedented by Gradio."""

    type: str
    text: str


class Fold(TypedDict):
    """What makes a message one that is folded: its title, and whether it is still being written."""

    title: str
    status: str


class Message(TypedDict):
    """One turn of one side."""

    role: str
    content: list[TextBlock]
    metadata: NotRequired[Fold]


class ChatView:
    """Extends the last answer. The text is one string that only gets longer.

    Args:
        past: messages before the question.
        question: the one being answered; None: none is.
        before: the answer so far, if it continues.
    """

    def __init__(self, past: Sequence[Message], question: str | None = None, before: Exchange | None = None) -> None:
        self._past, self._question = list(past), question
        self._num_before = len(before.finished.token_ids) if before else 0
        self._answer = streamed_text(before) if before else ""
        self._thought = before.finished.thought if before else ""
        self._stats = self._before = before.finished.stats if before else DecodeStats()
        self.finished: Finished | None = None
        self.wait = ""  # HTML: why there is no word yet
        self._wrote = False

    def apply(self, events: Sequence[WorkerEvent]) -> "ChatView":
        """Apply events."""
        for event in events:
            if isinstance(event, RoundDone):
                self._answer += event.text
                self._thought += event.thought
                self._wrote |= bool(event.tokens or event.text or event.thought)
                self._stats = joined(self._before, event.stats)
            elif isinstance(event, Finished):
                self.finished, self._answer, self._thought = event, event.text, event.thought
                self._stats = joined(self._before, event.stats)
        return self

    @property
    def answered(self) -> bool:
        """At least one token was written, so the exchange is part of the conversation."""
        if self.finished is None:
            return False
        # The earlier text may have other tokens in another model, so a count alone does not decide.
        return self._wrote or len(self.finished.token_ids) > self._num_before

    def messages(self) -> list[Message]:
        """The messages for the chat component."""
        if self._question is None:
            return self._past
        waits = self.finished is None and not self._answer.strip()
        thinks = waits and bool(self._thought)
        thought = [thought_message(self._thought, self._stats, thinks=thinks)] if self._thought else []
        pending = message("assistant", self.wait or PENDING, raw=True)
        answer = pending if waits else _said(self._answer, of=self.finished)
        return [*self._past, message("user", self._question), *thought, *([] if thinks else [answer])]


def conversation(session: Session | None) -> list[Message]:
    """The messages of a session, with figures and buttons."""
    return shown(session, session.dialogue.path) if session and session.dialogue else []


def shown(session: Session, path: Sequence[Node]) -> list[Message]:
    """The messages of a branch of a session's conversation, or of its beginning, with figures and buttons."""
    messages: list[Message] = []
    dialogue = session.dialogue
    if dialogue is None:
        return messages
    for node in path:
        last = node is path[-1] and node.id == dialogue.head
        found = chips(session, node)
        messages += [
            message("user", node.question),
            message("user", question_footer(dialogue, node), raw=True),
            *(_answer(node.exchange.finished, found) if node.exchange else []),
            message("assistant", answer_footer(dialogue, node, last=last, key=own_key(session, node)), raw=True),
        ]
    return messages


def _answer(finished: Finished, found: Mapping[int, str]) -> list[Message]:
    said = _said(finished.text, found, of=finished)
    return [thought_message(finished.thought, finished.stats, thinks=False), said] if finished.thought else [said]


def thought_message(thought: str, stats: DecodeStats, *, thinks: bool) -> Message:
    """A thought, folded; `thinks`: it is still being written."""
    tokens = formats.plural(stats.thought_tokens, "token")
    title = f"Thinking · {tokens}" if thinks else f"Thought for {tokens}, {seconds(stats.thought_seconds)}"
    said = message("assistant", thought)
    said["metadata"] = {"title": title, "status": "pending" if thinks else "done"}
    return said


def _said(text: str, inserted: Mapping[int, str] | None = None, *, of: Finished | None = None) -> Message:
    """An answer, or a notice where there is none."""
    if text.strip():
        return message("assistant", text, inserted=inserted)
    if of is not None and of.in_thought:
        told = IN_THOUGHT.get(of.stop_reason, ENDED_THINKING)
        at_limit = of.stop_reason == "max_new_tokens"
        return message("assistant", NO_CONTINUE if at_limit and not of.token_ids else told, raw=True)
    return message("assistant", BLANK_ANSWER if text else EMPTY_ANSWER, raw=True)


def message(role: str, text: str, raw: bool = False, inserted: Mapping[int, str] | None = None) -> Message:
    """A message; `raw` text is our own Markdown, all other text appears as written, with the inserted HTML."""
    return {"role": role, "content": [{"type": "text", "text": text if raw else literal(text, inserted)}]}
