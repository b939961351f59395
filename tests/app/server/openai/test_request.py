"""What a request may say, and what is said about one that may not."""

import json
from typing import Any

import pytest

from app.server.openai.errors import BadRequest
from app.server.openai.request import Message, parse_chat, parse_json

ASKED = [{"role": "user", "content": "Who keeps the light?"}]


def parsed(**fields: Any) -> Any:
    return parse_chat({"model": "m", "messages": ASKED, **fields})


def test_defaults_are_those_of_openai() -> None:
    request = parsed()
    assert request.messages == (Message("user", "Who keeps the light?"),)
    assert (request.config.sampling.temperature, request.config.sampling.top_p) == (1.0, 1.0)
    assert request.config.method == "triforce" and not request.stream
    assert parsed().config.seed != parsed().config.seed, "without a seed every answer is drawn anew"


def test_fields_reach_the_engine() -> None:
    config = parsed(
        temperature=0, top_p=0.5, top_k=7, seed=-3, max_tokens=5, stop="\n", triforce={"method": "retrieval"}
    ).config
    assert config.sampling.greedy and (config.sampling.top_p, config.sampling.top_k) == (0.5, 7)
    assert (config.seed, config.max_new_tokens, config.method) == (-3, 5, "retrieval")
    assert tuple(config.stop_strings) == ("\n",)
    assert parsed(max_tokens=5, max_completion_tokens=9).config.max_new_tokens == 9, "the newer name counts"


def test_parts_of_text_stand_an_empty_line_apart() -> None:
    parts = [{"type": "text", "text": "The book."}, {"type": "text", "text": "Who?"}]
    assert parsed(messages=[{"role": "user", "content": parts}]).messages[0].text == "The book.\n\nWho?"


def test_instructions_have_two_names() -> None:
    roles = [{"role": "developer", "content": "Be brief."}, *ASKED]
    assert parsed(messages=roles).messages[0].role == "system"


def test_what_changes_nothing_is_accepted() -> None:
    parsed(n=1, presence_penalty=0.0, logit_bias={}, tools=[], tool_choice="none", response_format={"type": "text"})
    parsed(user="someone", metadata={"a": 1}, store=True, service_tier="auto", top_k=-1, logprobs=False, stop=None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("n", True),
        ("presence_penalty", 0.5),
        ("repetition_penalty", 1.1),
        ("logit_bias", {"5": 1}),
        ("logprobs", True),
        ("tools", [{"type": "function"}]),
        ("response_format", {"type": "json_object"}),
        ("temperature", "hot"),
        ("temperature", -1),
        ("temperature", 10**400),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", 1.5),
        ("seed", 2**64),
        ("seed", 1.5),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_completion_tokens", "9"),
        ("stop", ["a"] * 17),
        ("stop", [""]),
        ("stop", 5),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
        ("triforce", "retrieval"),
        ("triforce", {"method": "magic"}),
        ("model", None),
        ("model", ""),
        ("messages", None),
        ("messages", []),
        ("messages", "hello"),
        ("messages", ["hello"]),
        ("messages", [{"role": "tool", "content": "x"}]),
        ("messages", [{"role": ["user"], "content": "x"}]),
        ("messages", [{"role": "user"}]),
        ("messages", [{"role": "user", "content": " "}]),
        ("messages", [{"role": "user", "content": []}]),
        ("messages", [{"role": "user", "content": "\ud800"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]),
        ("messages", [*ASKED, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]),
        ("messages", [*ASKED, {"role": "assistant", "content": "The"}]),
        ("continue_final_message", True),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(field: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        parsed(**{field: value})
    assert "\n" not in caught.value.message and len(caught.value.message) < 300
    json.dumps(caught.value.body())


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5_000]
)
def test_what_is_not_an_object_in_json_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_json(body)


def test_an_answer_can_be_continued() -> None:
    request = parsed(messages=[*ASKED, {"role": "assistant", "content": "The"}], continue_final_message=True)
    assert request.continues and request.messages[-1] == Message("assistant", "The")
