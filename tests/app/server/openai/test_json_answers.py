"""Answers that follow a JSON schema, asked for by the `openai` client.

Most need llguidance (requirements-grammar.txt) and are skipped without it.
"""

import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import openai
import pytest

from app.runtime.worker import EngineWorker
from tests.app.server.openai.servers import served
from tests.app.server.openai.test_openai import ask, client_of, text_of

needs_llguidance = pytest.mark.skipif(find_spec("llguidance") is None, reason="llguidance is not installed")
SCHEMA = {
    "type": "object",
    "properties": {"keeper": {"type": "string", "maxLength": 24}, "sure": {"type": "boolean"}},
    "required": ["keeper", "sure"],
    "additionalProperties": False,
}
NAMED = {"name": "keeper", "schema": SCHEMA, "strict": True}
FORMAT = {"type": "json_schema", "json_schema": NAMED}


@pytest.fixture(scope="module")
def client(bundled_worker: EngineWorker) -> Iterator[openai.OpenAI]:
    with served(bundled_worker, key="a key") as url, client_of(url) as one:
        yield one


def checked(text: str) -> dict[str, Any]:
    found = json.loads(text)
    assert found.keys() == {"keeper", "sure"} and isinstance(found["sure"], bool)
    return dict(found)


@needs_llguidance
def test_every_method_answers_in_the_schema_and_alike(client: openai.OpenAI) -> None:
    texts = set()
    for method in ("autoregressive", "triforce", "triforce-lookup"):
        answer = ask(client, response_format=FORMAT, max_tokens=120, extra_body={"triforce": {"method": method}})
        checked(text_of(answer))
        texts.add(text_of(answer))
        assert answer.choices[0].finish_reason == "stop"
    assert len(texts) == 1
    assert text_of(ask(client)) not in texts


@needs_llguidance
def test_streams_samples_several_answers_and_log_probabilities(client: openai.OpenAI) -> None:
    options: Any = {"response_format": FORMAT, "max_tokens": 120, "temperature": 1.2, "seed": 5}
    whole = ask(client, n=2, logprobs=True, **options)
    assert len({json.dumps(checked(one.message.content)) for one in whole.choices}) == 2
    assert all(token.logprob <= 0 for token in whole.choices[0].logprobs.content)
    parts = [part.choices[0].delta.content or "" for part in ask(client, stream=True, **options)]
    assert "".join(parts) == text_of(whole)


@needs_llguidance
def test_a_schema_that_cannot_be_followed_is_refused_by_name(client: openai.OpenAI) -> None:
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {"type": "string"}}}}
    with pytest.raises(openai.BadRequestError, match="cannot be followed") as told:
        ask(client, response_format=wrong)
    assert told.value.param == "response_format"


def test_without_the_package_it_is_refused_by_name(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(openai.BadRequestError, match="requirements-grammar") as told:
        ask(client, response_format={"type": "json_object"})
    assert told.value.param == "response_format"
    assert text_of(ask(client, response_format={"type": "text"}))
