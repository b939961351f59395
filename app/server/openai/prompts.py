"""Messages to tokens, so that what was read before is found again in the cache.

Every message is cut into tokens by itself, and a user's message at its last empty line, too, as the reader does between
book and question: the tokens of a book are the same whatever is asked about it. An answer that comes back as a message
gets the very tokens it was written with.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from app.server.openai.request import ChatRequest, Message
from core.caches.tokens import common_prefix
from core.errors import InvalidSetting

if TYPE_CHECKING:  # importing these takes seconds: the engine's thread has done it when they are used
    from core.generation.text import PromptText

K = TypeVar("K")
V = TypeVar("V")
EMPTY_LINE = "\n\n"
MOST_ANSWERS = 256  # whose tokens are remembered
MOST_PROMPTS = 8  # that are remembered, to tell what was read more than once; 128K tokens take 1 MB
MOST_TEXTS, LONG_TEXT = 4, 20_000  # texts from so many characters on are cut into tokens once


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens in front of an answer, and those of the answer that are there already."""

    ids: list[int]
    written: tuple[int, ...] = ()


class Prompts:
    """Makes prompts for one model. Used by the engine's thread alone."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._texts: OrderedDict[str, list[int]] = OrderedDict()
        self._prompts: OrderedDict[int, list[int]] = OrderedDict()
        self._num_prompts = 0
        self._knows_system: bool | None = None

    def of(self, request: ChatRequest, text: "PromptText") -> Prompt:
        """The tokens of a request's messages.

        Raises:
            InvalidSetting: the model's chat format has no place for such messages.
        """
        messages = self._placed(request.messages, text)
        asked = messages[:-1] if request.continues else messages
        if not asked:
            raise InvalidSetting("There is no question before the answer.", hint="Send the question first.")
        pieces = text.pieces([message.role for message in asked])
        ids = list(pieces[0])
        for message, piece in zip(asked, pieces[1:], strict=True):
            ids += self._ids(message, text)
            ids += piece
        return Prompt(ids, tuple(self._ids(messages[-1], text)) if request.continues else ())

    def wrote(self, answer: str, token_ids: Sequence[int], text: "PromptText") -> None:
        """Remember the tokens of an answer, if they say just that."""
        ids = tuple(token_ids[:-1] if token_ids and token_ids[-1] in text.eos_ids else token_ids)
        if answer and text.decode(ids) == answer:  # not where a stop string was cut off
            keep(self._answers, answer, ids, MOST_ANSWERS)

    def known(self, ids: Sequence[int]) -> int:
        """How many leading tokens some earlier prompt began with."""
        return max((common_prefix(before, ids) for before in self._prompts.values()), default=0)

    def read(self, ids: list[int]) -> None:
        """Remember tokens that have been read."""
        longer = [number for number, before in self._prompts.items() if common_prefix(before, ids) == len(before)]
        for number in longer:  # they say nothing that this one does not
            del self._prompts[number]
        self._num_prompts += 1
        keep(self._prompts, self._num_prompts, ids, MOST_PROMPTS)

    def _placed(self, messages: Sequence[Message], text: "PromptText") -> list[Message]:
        """Messages as the chat format takes them: without a place for instructions, they begin the first question."""
        if all(message.role != "system" for message in messages):
            return list(messages)
        if self._knows_system is None:
            self._knows_system = knows_system(text)
        if self._knows_system:
            return list(messages)
        said = [message.text for message in messages if message.role == "system" and message.text.strip()]
        others = [message for message in messages if message.role != "system"]
        first = next((number for number, message in enumerate(others) if message.role == "user"), None)
        if first is None:
            raise InvalidSetting("There is no question.", hint="Send a message of the user.")
        others[first] = Message("user", EMPTY_LINE.join([*said, others[first].text]))
        return others

    def _ids(self, message: Message, text: "PromptText") -> list[int]:
        if message.role == "assistant":
            return list(self._answers.get(message.text) or text.encode(message.text))
        at = message.text.rfind(EMPTY_LINE) if message.role == "user" else -1
        if at <= 0:
            return self._encoded(message.text, text)
        return self._encoded(message.text[:at], text) + text.encode(message.text[at:])

    def _encoded(self, words: str, text: "PromptText") -> list[int]:
        if len(words) < LONG_TEXT:
            return text.encode(words)
        ids = self._texts.get(words)
        ids = text.encode(words) if ids is None else ids
        keep(self._texts, words, ids, MOST_TEXTS)
        return ids


def knows_system(text: "PromptText") -> bool:
    """Whether a chat format tells instructions from the assistant's words. Some take all roles but one for it."""
    try:
        system = text.pieces(["system", "user"])
    except InvalidSetting:
        return False
    try:
        return system != text.pieces(["assistant", "user"])
    except InvalidSetting:  # it does not let the assistant begin
        return True


def keep(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """Put something where the newest is; beyond `most` the oldest goes."""
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > most:
        kept.popitem(last=False)
