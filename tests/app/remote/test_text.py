"""Tokens that stand for text: read back exactly, alike where texts begin alike, as many as the server counts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversations.schema import MOST_WHOLE, dump, load
from app.conversations.tree import Dialogue
from app.remote.text import BLOCK, FRAME, LONGEST_PIECE, RemotePrompt, RemoteText, blocks, number_of, piece_of
from core.caches.tokens import common_prefix
from core.generation.text import Turn
from tests.app.conversations.test_tree import a_dialogue

BOOK = "".join(f"Line {number} of a book about the sea.\n" for number in range(900))


def words(text: str) -> int:
    return len(text.split())


@given(st.text(max_size=200))
def test_what_is_encoded_is_read_back(text: str) -> None:
    for tokens in (RemoteText(words), RemoteText(None, 3.7)):
        assert tokens.decode(tokens.encode(text)) == text
        assert [text[a:][:1] for a in tokens.offsets(text)][:1] == ([text[:1]] if text else [])


@given(st.text(max_size=20))
def test_a_piece_is_its_number(piece: str) -> None:
    assert piece_of(number_of(piece)) == piece and number_of(piece) != FRAME


def test_tokens_are_as_many_as_the_server_counts() -> None:
    counted = RemoteText(words)
    assert len(counted.encode(BOOK)) == words(BOOK)
    assert len(RemoteText(None, 4.0).encode(BOOK)) == pytest.approx(len(BOOK) / 4, rel=0.01)


def test_blocks_are_counted_once() -> None:
    asked: list[str] = []
    tokens = RemoteText(lambda text: asked.append(text) or 1)  # type: ignore[func-returns-value]
    tokens.encode(BOOK)
    tokens.encode(BOOK)
    assert len(asked) == len(list(blocks(BOOK))) > 2 and max(map(len, asked)) <= BLOCK


def test_texts_that_begin_alike_have_tokens_that_do() -> None:
    tokens = RemoteText(words)
    one, other = tokens.encode(BOOK + "One end."), tokens.encode(BOOK + "Another end, quite different.")
    assert common_prefix(one, other) >= words(BOOK[: len(BOOK) // BLOCK * BLOCK - BLOCK])


def test_a_prompt_carries_the_messages_that_it_stands_for() -> None:
    tokens = RemoteText(words)
    book, answer = tokens.encode("The book."), tokens.split("Martha Voss.", 2)
    prompt = tokens.prompt(book, [Turn("Who?", tuple(answer)), Turn("Where?")])
    assert isinstance(prompt, RemotePrompt)
    assert [(m["role"], m["content"]) for m in prompt.messages] == [
        ("user", "The book.\n\nWho?"),
        ("assistant", "Martha Voss."),
        ("user", "Where?"),
    ]
    opening = tokens.opening(book)
    assert common_prefix(opening, prompt) == len(opening)


def test_another_model_s_tokens_are_not_text() -> None:
    assert RemoteText(words).decode([0, 5, 17_000]) == ""


def test_a_text_is_split_into_as_many_tokens_as_usage_says() -> None:
    tokens = RemoteText(words)
    for text, num in (("abc", 5), ("abcdef", 2), ("a", 0), ("", 0), ("", 3)):
        ids = tokens.split(text, num)
        assert tokens.decode(ids) == text and len(ids) == max(num, 1 if text else 0)


@pytest.mark.parametrize("char", ["a", "字", "\U0001f4d6"])
def test_a_conversation_with_a_server_survives_the_round_trip(char: str) -> None:
    """Tokens of a few letters are numbers of many digits; a server may count one token for a whole answer."""
    tokens, whole = RemoteText(words), a_dialogue("One?")
    text = char * (2 * LONGEST_PIECE + 9)
    ids = tuple(tokens.split(text, 1))
    assert max(ids) > MOST_WHOLE and tokens.decode(ids) == text
    (node,) = whole.nodes
    assert node.exchange is not None
    finished = replace(node.exchange.finished, text=text, token_ids=ids)
    said: Dialogue = whole.answer(node.id, replace(node.exchange, finished=finished))
    assert load(dump(said), said.id) == said


@given(st.integers(min_value=0) | st.binary(max_size=9).map(lambda raw: int.from_bytes(b"\x01" + raw, "big")))
def test_any_number_is_a_piece_of_text_or_none(number: int) -> None:
    piece = piece_of(number)
    assert piece == "" or number_of(piece) == number
