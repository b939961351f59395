"""Stands in for a tokenizer where the real one is on a server: texts as tokens that can be counted and read back.

A token here is a piece of text, written into its number, so that it needs no table and outlives a restart. Texts are
cut into blocks, and every block into as many pieces as the server counts tokens in it; where it does not count, into
pieces of the mean length that `usage` told for a sample. Blocks depend on what comes before them only: texts that begin
alike have tokens that begin alike.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from app.remote.errors import NotRemotely
from app.remote.names import LONGEST_PIECE
from core.generation.text import Turn

BLOCK = 8192  # characters
MOST_COUNTS = 4096  # blocks whose counts are remembered; a book of 128K tokens has about 70
FRAME_TOKENS = 4  # of a chat template around one message: about so many in the families that are known
FIRST_WORDS = "?"  # a question that stands in where a book is read before anything is asked
FRAME = 0  # a token that stands for the template

# How long tokens are, is asked with this text where the server has no tokenizer to ask.
SAMPLE = (
    "The keeper climbed the stair of the lighthouse every evening at six, lit the lamp, and wrote the hour, the wind "
    "and the state of the sea into a large green book. On the 14th of March 1871 he added: “Two ships passed; neither "
    "answered.” His daughter, who was nine years old and could already read, asked him why anybody should answer a "
    "light. He said that most of what people do is a kind of answer, though they seldom know the question."
)


class RemotePrompt(list[int]):
    """Tokens in front of an answer, with the messages that they stand for."""

    def __init__(self, ids: Sequence[int], messages: list[dict[str, str]]) -> None:
        super().__init__(ids)
        self.messages = messages


class RemoteText:
    """A server's tokens.

    Args:
        count: tokens of a text, by the server; None: it does not count.
        chars_per_token: the mean, for a server that does not count.
    """

    eos_ids: frozenset[int] = frozenset()
    knows_offsets = True  # of our pieces; they are those of the server's tokens up to some characters

    def __init__(self, count: Callable[[str], int] | None, chars_per_token: float = 4.0) -> None:
        assert chars_per_token > 0
        self._count, self._chars = count, chars_per_token
        self._counts: OrderedDict[bytes, int] = OrderedDict()

    @property
    def estimates(self) -> bool:
        """Numbers of tokens are estimates."""
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

    def opening(self, book_ids: Sequence[int]) -> list[int]:
        """Everything before the first question, with the messages that let a server read it."""
        book = self.decode(book_ids)
        return RemotePrompt([FRAME] * FRAME_TOKENS + [*book_ids], [_message("user", f"{book}\n\n{FIRST_WORDS}")])

    def prompt(self, book_ids: Sequence[int], turns: Sequence[Turn]) -> list[int]:
        """The conversation so far; the book stands in the first message, an empty line before the first question."""
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

    def pieces(self, _roles: Sequence[str]) -> list[list[int]]:
        """The server puts its template around messages by itself. Raises NotRemotely."""
        raise NotRemotely("A remote server's chat format cannot be seen from here.", hint="Send it the messages.")

    def split(self, text: str, num_tokens: int) -> list[int]:
        """A text as just so many tokens, at least one if it says anything."""
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
    """Stretches of up to BLOCK characters that end at a line or a word, if there is one; together they are the text."""
    start = 0
    while start < len(text):
        end = min(start + BLOCK, len(text))
        if end < len(text):
            at = max(text.rfind(space, start + BLOCK // 2, end) for space in ("\n", " "))
            end = at if at > start else end
        yield text[start:end]
        start = end


def cut(text: str, num: int) -> list[tuple[str, int]]:
    """A text in `num` pieces of about the same length, some empty if it has fewer characters, and where each begins.

    In more pieces if they were longer than LONGEST_PIECE.
    """
    num = max(num, -(-len(text) // LONGEST_PIECE))
    edges = [len(text) * i // num for i in range(num + 1)] if num else [0]
    return [(text[start:end], start) for start, end in pairwise(edges)]


def number_of(piece: str) -> int:
    """A piece of text as a number. FRAME is none of them."""
    return int.from_bytes(b"\x01" + piece.encode("utf-8", "surrogatepass"), "big")


def piece_of(number: int) -> str:
    """The text in a number; that of another model's token, which has none, is nothing."""
    written = number.to_bytes((number.bit_length() + 7) // 8, "big")
    if written[:1] != b"\x01":
        return ""
    try:
        return written[1:].decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:  # a number that somebody has changed
        return ""


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
