"""The bundled pair on the bundled book: right answers, exact ones, and none of the book read twice."""

import json
from collections.abc import Iterator

import pytest
import torch

from app.documents.readers import read_document
from core.config import EngineConfig
from core.engine import Engine
from core.engine_builder import LoadedPair, PairFiles
from core.generation.events import Finished
from core.generation.session import Conversation
from core.models.hub.catalog import ROOT
from core.ops.threads import most_threads, set_most_threads
from core.planning.plan import make_plan
from tests.core.toys import MACHINE, answer

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


def test_facts_of_the_book_are_found_and_the_book_is_read_once(engine: Engine, book: Conversation) -> None:
    right = 0
    for number, row in enumerate(questions("fact")):
        finished = answer(engine, book.ask(row["question"]).prompt_ids(engine.text), "triforce", 32)
        right += finished.text.strip() == row["answer"]
        if number:
            assert finished.reused_tokens >= len(book.book_ids), "a book token was read again"
    assert right >= 8, f"{right} of 10 facts right"


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


def test_a_window_alone_does_not_find_what_retrieval_finds(engine: Engine, book: Conversation) -> None:
    """Why retrieval matters: the lossy sink-and-window method misses most facts that the exact methods answer."""
    right = 0
    for row in questions("fact"):
        finished = answer(engine, book.ask(row["question"]).prompt_ids(engine.text), "streamingllm", 32)
        right += finished.text.strip() == row["answer"]
    assert right <= 5, f"{right} of 10 facts right without the book"


def test_a_share_left_to_the_host_changes_no_greedy_token() -> None:
    """The bundled pair with all layers in host memory, and with half of their blocks attended to there."""
    files = PairFiles.find("harbour", "auto")
    text = read_document(BOOKS / "harbour-8k.pdf").text
    written: dict[tuple[float, str], Finished] = {}
    for share in (0.0, 0.5):
        config = EngineConfig(
            context=2048, device="cpu", placement="offloaded", gpu_memory_gib=1.0, cpu_attention_share=share
        )
        plan = make_plan(files.size(), files.draft, config, MACHINE)
        engine = Engine.of(LoadedPair.load(files, config, plan, torch.device("cpu")), config, plan)
        opened = Conversation(tuple(engine.text.encode(text)[:1200]))
        prompt = opened.ask("Who keeps the light?").prompt_ids(engine.text)
        for method in ("autoregressive", "triforce"):
            written[share, method] = answer(engine, prompt, method, 32)
    texts = {finished.token_ids for finished in written.values()}
    assert len(texts) == 1 and len(next(iter(texts))) >= 4
    for method in ("autoregressive", "triforce"):
        assert 0 < written[0.5, method].stats.link_bytes < 0.6 * written[0.0, method].stats.link_bytes
