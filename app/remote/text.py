"""Replaces the tokenizer if the real one is on a server: texts as tokens that can be counted and decoded.

A token here is a piece of text encoded in its number, so it needs no table and survives a restart. Texts are cut into
blocks, and every block into as many pieces as the server counts tokens in it; if it does not count, into pieces of the
mean length that `usage` gave for a sample. Blocks depend only on the text before them, so texts with the same beginning
have tokens with the same beginning.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from app.remote.errors import NotRemotely
from app.remote.names import LONGEST_PIECE
from core.generation.text import Turn

BLOCK = 8192  # characters
MOST_COUNTS = 4096  # blocks whose counts are cached; a book of 128K tokens has about 70
FRAME_TOKENS = 4  # of a chat template around one message, roughly, in known families
FIRST_WORDS = "?"  # a question in its place when a book is read before any question
FRAME = 0  # a token for the template

# This text gives the mean length of tokens if the server does not count them.
SAMPLE = (
    "The keeper climbed the stair of the lighthouse every evening at six, lit the lamp, and wrote the hour, the wind "
    "and the state of the sea into a large green book. On the 14th of March 1871 he added: “Two ships passed; neither "
    "answered.” His daughter, who was nine years old and could already read, asked him why anybody should answer a "
    "light. He said that most of what people do is a kind of answer, though they seldom know the question."
)


class RemotePrompt(list[int]):
    """Tokens before an answer, with the messages they encode."""

    def __init__(self, ids: Sequence[int], messages: list[dict[str, str]]) -> None:
        super().__init__(ids)
        self.messages = messages


class RemoteText:
    """The tokens of a server's text.

    Args:
        count: tokens of a text, counted by the server; None: it does not count.
        chars_per_token: the mean, for a server that does not count.
    """

    eos_ids: frozenset[int] = frozenset()
    beginning: Sequence[int] = ()
    knows_offsets = True  # of our pieces, which differ from the server's tokens by a few characters

    def __init__(self, count: Callable[[str], int] | None, chars_per_token: float = 4.0) -> None:
        assert chars_per_token > 0
        self._count, self._chars = count, chars_per_token
        self._counts: OrderedDict[bytes, int] = OrderedDict()

    @property
    def estimates(self) -> bool:
        """Whether token counts are estimates."""
        return self._count is None

    def encode(self, text: str) -> list[int]:
        """Tokens of plain text. Raises RemoteError."""
        return [number_of(piece) for piece, _ in self._pieces(text)]

    def offsets(self, text: str) -> list[int]:
        """Index of the first character of each token of `encode(text)`."""
        return [start for _, start in self._pieces(text)]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens."""
        return "".join(map(piece_of, token_ids))

    def opening(self, book_ids: Sequence[int], thinking: str | None = None) -> list[int]:
        """Everything before the first question, with the messages to send to a server."""
        book = self.decode(book_ids)
        return RemotePrompt([FRAME] * FRAME_TOKENS + [*book_ids], [_message("user", f"{book}\n\n{FIRST_WORDS}")])

    def prompt(self, book_ids: Sequence[int], turns: Sequence[Turn], thinking: str | None = None) -> list[int]:
        """The conversation so far; the first message has the book, an empty line, and the first question."""
        ids, messages = [FRAME] * FRAME_TOKENS + [*book_ids], []
        for number, turn in enumerate(turns):
            question = f"\n\n{turn.question}" if number == 0 and book_ids else turn.question
            ids += [*self.encode(question), *[FRAME] * FRAME_TOKENS]
            before = self.decode(book_ids) if number == 0 else ""
            messages.append(_message("user", before + question))
            if turn.answer_ids is not None:
                ids += [*turn.answer_ids, *[FRAME] * FRAME_TOKENS]
                messages.append(_message("assistant", self.decode(turn.answer_ids)))
        return RemotePrompt(ids, messages)

    def without_thought(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """All: a server sends its thought beside the answer."""
        return tuple(token_ids)

    def thought_over(self, prompt_ids: list[int], _written: Sequence[int]) -> list[int]:
        """The same prompt: the server alone knows what its template opens."""
        return prompt_ids

    def pieces(self, _roles: Sequence[str], _thinking: str | None = None) -> list[list[int]]:
        """Raises NotRemotely: the server applies its template itself."""
        raise NotRemotely("A remote server's chat format cannot be seen from here.", hint="Send it the messages.")

    def split(self, text: str, num_tokens: int) -> list[int]:
        """A text as exactly `num_tokens` tokens; at least one if it is not empty."""
        pieces = cut(text, max(num_tokens, 1 if text else 0))
        return [number_of(piece) for piece, _ in pieces]

    def _pieces(self, text: str) -> Iterator[tuple[str, int]]:
        start = 0
        for block in blocks(text):
            for piece, at in cut(block, self._tokens(block)):
                yield piece, start + at
            start += len(block)

    def _tokens(self, block: str) -> int:
        if self._count is None:
            return max(1, round(len(block) / self._chars))
        key = hashlib.blake2b(block.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if key not in self._counts:
            self._counts[key] = self._count(block)
            while len(self._counts) > MOST_COUNTS:
                self._counts.popitem(last=False)
        self._counts.move_to_end(key)
        return max(1, self._counts[key])


def blocks(text: str) -> Iterator[str]:
    """Blocks of up to BLOCK characters, cut after a line or a word if possible; together they are the text."""
    start = 0
    while start < len(text):
        end = min(start + BLOCK, len(text))
        if end < len(text):
            at = max(text.rfind(space, start + BLOCK // 2, end) for space in ("\n", " "))
            end = at if at > start else end
        yield text[start:end]
        start = end


def cut(text: str, num: int) -> list[tuple[str, int]]:
    """A text in `num` pieces of about equal length with their starts; some are empty if it has fewer characters.

    More pieces if they would be longer than LONGEST_PIECE.
    """
    num = max(num, -(-len(text) // LONGEST_PIECE))
    edges = [len(text) * i // num for i in range(num + 1)] if num else [0]
    return [(text[start:end], start) for start, end in pairwise(edges)]


def number_of(piece: str) -> int:
    """A piece of text as a number other than FRAME."""
    return int.from_bytes(b"\x01" + piece.encode("utf-8", "surrogatepass"), "big")


def piece_of(number: int) -> str:
    """The text in a number; empty for another model's token."""
    written = number.to_bytes((number.bit_length() + 7) // 8, "big")
    if written[:1] != b"\x01":
        return ""
    try:
        return written[1:].decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:  # a number that was changed outside
        return ""


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
