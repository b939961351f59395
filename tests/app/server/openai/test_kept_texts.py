"""Texts that clients sent: kept in memory, saved on disk where that is on, and not read again by the next server."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from app.runtime.saved_books import SavedBooks
from app.runtime.worker import EngineWorker
from tests.app.fakes import wait_for
from tests.app.server.openai.servers import served
from tests.app.server.openai.test_openai import client_of
from tests.core.toys import tiny_engine, with_words

BOOK = "It was a dark and stormy night. " * 40


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.kv_store.engine_store.WORTH_SECONDS", 0.0)
    monkeypatch.setattr("app.server.openai.prompts.LEAST_BOOK", 100)


@pytest.fixture
def begun(start_worker: Callable[..., EngineWorker]) -> Any:
    """A server on a data folder, each with an engine of its own."""
    return lambda books: start_worker(with_words(tiny_engine(context=2048, prefill_chunk=128)), saved_books=books)


def ask(client: openai.OpenAI, question: str, book: str = BOOK) -> tuple[str, int]:
    """The answer, and how many tokens of the prompt were read for it."""
    messages: Any = [{"role": "user", "content": f"{book}\n\n{question}"}]
    (model,) = client.models.list().data
    reply = client.chat.completions.create(model=model.id, messages=messages, max_tokens=8, temperature=0)
    details = reply.usage and reply.usage.prompt_tokens_details
    assert reply.usage and details and details.cached_tokens is not None
    return str(reply.choices[0].message.content), reply.usage.prompt_tokens - details.cached_tokens


def test_a_text_goes_to_disk_and_the_next_server_opens_it(begun: Any, tmp_path: Path) -> None:
    first = begun(SavedBooks(tmp_path, "always"))
    with served(first) as url, client_of(url) as client:
        text, read = ask(client, "Who?")
        assert read > 200
        wait_for(lambda: len(first.saved_books.folder.books()) == 1)
        assert first.saved_books.folder.books()[0].name == "sent by a program"
    with served(begun(SavedBooks(tmp_path))) as url, client_of(url) as client:
        again, read = ask(client, "Who?")
        assert again == text and read < 30, "it came from disk"
    with served(begun(SavedBooks())) as url, client_of(url) as client:
        assert ask(client, "Who?")[0] == text, "as a fresh engine writes it"


def test_a_text_that_was_pushed_out_before_it_was_written_is_saved_from_memory(begun: Any, tmp_path: Path) -> None:
    worker = begun(SavedBooks(tmp_path, "always"))
    with served(worker) as url, client_of(url) as client:
        ask(client, "Who?")
        ask(client, "Where?", "Then came the day. " * 60)
        wait_for(lambda: len(worker.saved_books.folder.books()) >= 1)
        assert ask(client, "When?")[1] < 30
