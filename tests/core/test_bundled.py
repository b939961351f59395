"""The bundled pair on the bundled book: right answers, exact ones, and none of the book read twice."""

import json
from collections.abc import Iterator

import pytest

from app.documents.readers import read_document
from core.config import EngineConfig
from core.engine import Engine
from core.generation.events import Finished
from core.generation.session import Conversation
from core.models.hub.catalog import ROOT
from core.ops.threads import most_threads, set_most_threads
from tests.core.toys import answer

BOOKS = ROOT / "assets" / "books"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    before = most_threads()
    set_most_threads(2)
    yield Engine.load(EngineConfig(context=12288, device="cpu"))
    set_most_threads(before)


@pytest.fixture(scope="module")
def book(engine: Engine) -> Conversation:
    return Conversation(tuple(engine.text.encode(read_document(BOOKS / "harbour-8k.pdf").text)))


def questions(kind: str) -> list[dict[str, str]]:
    rows = json.loads((BOOKS / "questions.json").read_text(encoding="utf-8"))
    return [row for row in rows if row["book"] == "harbour-8k.pdf" and row["kind"] == kind]


@pytest.fixture(scope="module")
def plain(engine: Engine, book: Conversation) -> Finished:
    """A long answer without speculation."""
    return answer(engine, book.ask(questions("recite")[0]["question"]).prompt_ids(engine.text), "autoregressive", 96)


def facts(engine: Engine, book: Conversation, method: str) -> int:
    """How many of ten are answered right; the book is read at most once."""
    right = 0
    for number, row in enumerate(questions("fact")):
        finished = answer(engine, book.ask(row["question"]).prompt_ids(engine.text), method, 32)
        right += finished.text.strip() == row["answer"]
        assert not number or finished.reused_tokens >= len(book.book_ids), "a book token was read again"
    return right


@pytest.mark.slow
def test_facts_of_the_book_are_found_and_not_by_a_window_alone(engine: Engine, book: Conversation) -> None:
    """Why retrieval matters: the lossy sink-and-window method misses most facts that the exact methods answer."""
    assert facts(engine, book, "triforce") >= 8 and facts(engine, book, "streamingllm") <= 5


@pytest.mark.parametrize("method", ["triforce", "retrieval", "draft"])
def test_a_long_answer_is_token_for_token_the_plain_one(
    engine: Engine, book: Conversation, plain: Finished, method: str
) -> None:
    prompt = book.ask(questions("recite")[0]["question"]).prompt_ids(engine.text)
    fast = answer(engine, prompt, method, 96)
    assert fast.token_ids == plain.token_ids and fast.stats.new_tokens == 96
    assert fast.stats.full_passes < 60, "speculation must have accepted something"
    if method == "triforce":
        level1, level2 = fast.stats.level1, fast.stats.level2
        assert level1 is not None and level2 is not None
        assert (level1.acceptance or 0) > 0.3 and (level2.acceptance or 0) > 0.8, "both levels accept most"
