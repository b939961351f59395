"""Clients that nobody here wrote, each as its own documentation shows it; skipped where they are not installed."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.runtime.worker import EngineWorker
from tests.app.server.openai.servers import ServedEngine, served

WORDS = "It is the keeper."


@pytest.fixture
def engine() -> ServedEngine:
    engine = ServedEngine()
    for _ in range(4):
        engine.enqueue(WORDS)
    return engine


@pytest.fixture
def url(engine: ServedEngine, start_worker: Callable[..., EngineWorker]) -> Iterator[str]:
    with served(start_worker(engine), key="a key") as address:
        yield f"{address}/v1"


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy and no list of prices from the network."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")


@pytest.mark.filterwarnings("ignore")  # its own
def test_litellm(url: str) -> None:
    litellm: Any = pytest.importorskip("litellm")
    said = {"messages": [{"role": "user", "content": "Who?"}], "api_base": url, "api_key": "a key"}
    reply = litellm.completion(model="openai/fake", **said)
    assert reply.choices[0].message.content.strip() == WORDS
    parts = litellm.completion(model="openai/fake", stream=True, **said)
    assert "".join(part.choices[0].delta.content or "" for part in parts).strip() == WORDS
    with pytest.raises(litellm.exceptions.BadRequestError, match="presence_penalty"):
        litellm.completion(model="openai/fake", presence_penalty=1, **said)


@pytest.mark.filterwarnings("ignore")
def test_langchain(url: str) -> None:
    langchain_openai: Any = pytest.importorskip("langchain_openai")
    model = langchain_openai.ChatOpenAI(model="fake", base_url=url, api_key="a key")
    reply = model.invoke("Who?")
    assert reply.content.strip() == WORDS and reply.usage_metadata["input_tokens"] > 0
    assert "".join(part.content for part in model.stream("Who?")).strip() == WORDS
