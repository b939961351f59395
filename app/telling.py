"""What was said, as the model reads it: answers keep the very tokens they were written with.

Runs on the engine's thread, which has the tokenizer.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from app.recording import streamed_text
from app.sessions import Exchange
from core.events import Event, Finished

if TYPE_CHECKING:
    from core.engine import Engine
    from core.session import Conversation
    from core.text import Turn


def answer_ids(exchange: Exchange, engine: "Engine") -> tuple[int, ...]:
    """The tokens an answer was written with, or those of its text where another model wrote it."""
    if exchange.model == engine.info.model:
        return exchange.finished.token_ids
    return tuple(engine.text.encode(exchange.finished.text))


def told(conversation: "Conversation", past: Sequence[Exchange], engine: "Engine") -> "Conversation":
    """A conversation about a book in which this was said."""
    for exchange in past:
        conversation = conversation.ask(exchange.question).answered(answer_ids(exchange, engine), engine.text.eos_ids)
    return conversation


def turns(past: Sequence[Exchange], engine: "Engine") -> "tuple[Turn, ...]":
    """What was said, turn by turn."""
    from core.session import Conversation  # loaded by now: the engine is

    return told(Conversation(), past, engine).turns


def only_new(event: Event, before: Exchange | None, num_before: int) -> Event:
    """The end of a continued answer without what was there before; all other events are of what is new anyway."""
    if before is None or not isinstance(event, Finished):
        return event
    return replace(event, text=event.text[len(streamed_text(before)) :], token_ids=event.token_ids[num_before:])
