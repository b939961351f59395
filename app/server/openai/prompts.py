"""Messages to tokens, so that text that was read before is found again in the cache.

Every message is tokenized separately, and a user's message is split at its last empty line, as the reader does between
book and question: so a book's tokens do not depend on the question. An answer that comes back as a message gets
exactly the tokens it was written with.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from app.server.openai.request import Body, ChatBody, Message, TextBody
from core.errors import InvalidSetting
from core.generation.events import Finished

if TYPE_CHECKING:  # importing these takes seconds: the engine's thread has done it when they are used
    from core.generation.text import LocalText

K = TypeVar("K")
V = TypeVar("V")
EMPTY_LINE = "\n\n"
MOST_ANSWERS = 256  # whose tokens are remembered
LEAST_BOOK = 1024  # tokens of a text that is worth a boundary
MOST_TEXTS, LONG_TEXT = 4, 20_000  # texts of at least LONG_TEXT characters are tokenized once


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens before an answer, and the tokens of an answer that is already begun."""

    ids: list[int]
    written: tuple[int, ...] = ()
    boundary: int = 0  # where its longest text ends, which others may ask about too; 0: all are short


class Prompts:
    """Makes prompts for one model. Only the engine's thread uses it."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._texts: OrderedDict[tuple[str, bool], list[int]] = OrderedDict()
        self._knows_system: bool | None = None

    def of(self, request: Body, text: "LocalText", thinking: str | None = None) -> Prompt:
        """The tokens of a request's messages. `thinking`: see `LocalText.pieces`.

        Raises:
            InvalidSetting: the model's chat format does not allow these messages.
        """
        if isinstance(request, TextBody):
            return self._plain(request, text)
        assert isinstance(request, ChatBody), "a text or messages"
        messages, continues = self._placed(request.messages, text), request.continue_final_message
        asked = messages[:-1] if continues else messages
        if not asked:
            raise InvalidSetting("There is no question before the answer.", hint="Send the question first.")
        pieces = text.pieces([message.role for message in asked], thinking)
        ids, longest, boundary = list(pieces[0]), LEAST_BOOK, 0
        for message, piece in zip(asked, pieces[1:], strict=True):
            for part in self._parts(message, text):
                ids += part
                if len(part) >= longest:
                    longest, boundary = len(part), len(ids)
            ids += piece
        written = [one for part in self._parts(messages[-1], text) for one in part] if continues else []
        return Prompt(text.thought_over(ids, written) if written else ids, tuple(written), boundary)

    def _plain(self, request: TextBody, text: "LocalText") -> Prompt:
        prompt = request.prompt
        if isinstance(prompt, tuple):
            return Prompt(list(prompt))
        at = prompt.rfind(EMPTY_LINE)
        first, rest = (prompt[:at], prompt[at:]) if at > 0 else (prompt, "")
        ids = self._encoded(first, text, special=True)
        beginning = list(text.beginning) if request.add_special_tokens else []
        if ids[: len(beginning)] != beginning:  # the text has not its own
            ids = beginning + ids
        boundary = len(ids) if len(ids) >= LEAST_BOOK and rest else 0
        return Prompt(ids + text.encode(rest, special=True), boundary=boundary)

    def wrote(self, finished: Finished, text: "LocalText") -> None:
        """Remember the tokens of an answer without its thought, if they decode to exactly its text."""
        answer, token_ids = finished.text, finished.token_ids
        if finished.stats.thought_tokens:
            token_ids = text.without_thought(token_ids)
        ids = tuple(token_ids[:-1] if token_ids and token_ids[-1] in text.eos_ids else token_ids)
        if answer and text.decode(ids) == answer:  # false where a stop string was cut off
            keep(self._answers, answer, ids, MOST_ANSWERS)

    def _placed(self, messages: Sequence[Message], text: "LocalText") -> list[Message]:
        """Messages as the chat format takes them: without a system role, instructions begin the first question."""
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
        whole = EMPTY_LINE.join([*said, others[first].text])
        others[first] = Message.model_validate({"role": "user", "content": whole})
        return others

    def _parts(self, message: Message, text: "LocalText") -> list[Sequence[int]]:
        if message.role == "assistant":
            return [self._answers.get(message.text) or text.encode(message.text)]
        at = message.text.rfind(EMPTY_LINE) if message.role == "user" else -1
        if at <= 0:
            return [self._encoded(message.text, text)]
        return [self._encoded(message.text[:at], text), text.encode(message.text[at:])]

    def _encoded(self, words: str, text: "LocalText", *, special: bool = False) -> list[int]:
        ids = self._texts.get((words, special)) or text.encode(words, special=special)
        if len(words) >= LONG_TEXT:
            keep(self._texts, (words, special), ids, MOST_TEXTS)
        return ids


def knows_system(text: "LocalText") -> bool:
    """Whether a chat format has a system role. Some formats treat every role but one as the assistant."""
    try:
        system = text.pieces(["system", "user"])
    except InvalidSetting:
        return False
    try:
        return system != text.pieces(["assistant", "user"])
    except InvalidSetting:  # the format does not let the assistant begin
        return True


def keep(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """Add the newest entry; beyond `most` entries drop the oldest."""
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > most:
        kept.popitem(last=False)
