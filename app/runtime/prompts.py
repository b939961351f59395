"""From exchanges to tokens: earlier answers enter a prompt with exactly the ids they were written with."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.conversations.exchange import Exchange
from app.runtime.trace import streamed_text
from core.engine_api import TextEngine, local

if TYPE_CHECKING:  # importing these takes seconds: the engine's thread has done it when this is called
    from core.generation.session import Conversation


def with_past(conversation: "Conversation", past: Sequence[Exchange], engine: TextEngine) -> "Conversation":
    """A conversation about a book, extended by earlier questions and answers."""
    for exchange in past:
        ids = answer_ids(exchange, engine)
        finished = exchange.finished
        if (finished.thought or finished.stats.thought_tokens) and ids == finished.token_ids:
            ids = () if finished.in_thought else local(engine).text.without_thought(ids)
        conversation = conversation.ask(exchange.question).answered(ids, engine.text.eos_ids)
    return conversation


def prompt_of(
    conversation: "Conversation",
    past: Sequence[Exchange],
    question: str,
    engine: TextEngine,
    thinking: str | None = None,
) -> list[int]:
    """The tokens before an answer; earlier thoughts are left out, as chat templates do."""
    return with_past(conversation, past, engine).ask(question).prompt_ids(engine.text, thinking)


def answer_ids(exchange: Exchange, engine: TextEngine) -> tuple[int, ...]:
    """The tokens an answer was written with, its thought included; the tokens of its text where another model wrote it.

    Also the tokens of its text if this model lacks one of the ids: the file or the model behind the name has changed.
    """
    token_ids = exchange.finished.token_ids
    if exchange.model == engine.info.model and engine.knows(token_ids):
        return token_ids
    return tuple(engine.text.encode(streamed_text(exchange)))
