"""What a request may say, and what is said about one that may not."""

import json
from typing import Any

import pytest

from app.server.openai.errors import RequestError, request_error
from app.server.openai.request import ChatBody, ResponseBody, TextBody, parse, parse_json
from core.errors import BadGrammar

ASKED = [{"role": "user", "content": "Who keeps the light?"}]


def parsed(**fields: Any) -> Any:
    return parse(ChatBody, {"model": "m", "messages": ASKED, **fields})


def test_defaults_are_those_of_openai() -> None:
    request = parsed()
    assert [(one.role, one.text) for one in request.messages] == [("user", "Who keeps the light?")]
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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 17),
        ("n", True),
        ("presence_penalty", 0.5),
        ("repetition_penalty", 1.1),
        ("logit_bias", {"5": 1}),
        ("logprobs", 3),
        ("top_logprobs", 21),
        ("suffix", "and so on"),
        ("tools", [{"type": "function"}]),
        ("response_format", "json"),
        ("response_format", {"type": "grammar"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": "y"}}),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {"const": "x" * 70_000}}}),
        ("guided_json", {"type": "object"}),
        ("temperature", "hot"),
        ("temperature", -1),
        ("temperature", 10**400),
        ("temperature", True),
        ("temperature", 2.1),
        ("top_p", -0.1),
        ("top_p", 1.5),
        ("top_k", 1.5),
        ("seed", 2**64),
        ("seed", 1.5),
        ("max_tokens", 0),
        ("max_tokens", -2),
        ("max_completion_tokens", "9"),
        ("stop", ["a"] * 17),
        ("stop", [""]),
        ("stop", 5),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
        ("triforce", "retrieval"),
        ("triforce", {"method": "magic"}),
        ("model", 5),
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
        ("messages", [{"role": "user", "content": None, "tool_calls": []}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]),
        ("messages", [*ASKED, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]),
        ("messages", [*ASKED, {"role": "assistant", "content": "The"}]),
        ("continue_final_message", True),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        parsed(**{field: value})
    assert "\n" not in caught.value.message and len(caught.value.message) < 300
    assert "--" not in caught.value.message and caught.value.param is not None, "the API's words"
    json.dumps(caught.value.body())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "messages": ASKED}, "messages"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
    ],
)
def test_a_text_to_continue_is_checked_too(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(TextBody, fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call_output"}]}, "input[0].type"),
        ({"input": "a", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "a", "text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"input": "a", "text": {"format": {"type": "json_schema", "schema": 1}}}, "text.format"),
        ({"input": "a", "text": {"verbosity": "low"}}, "text.verbosity"),
        ({"input": "a", "tools": [{}]}, "tools"),
    ],
)
def test_responses_are_refused_in_their_own_words(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(ResponseBody, fields)
    assert caught.value.param == param
    assert param in caught.value.message and "\n" not in caught.value.message


def test_a_schema_reaches_the_engine_from_every_address() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    named = {"name": "a", "schema": schema, "strict": True}
    wanted = {"type": "json_schema", "json_schema": named}
    requests = (
        parsed(response_format=wanted),
        parse(TextBody, {"prompt": "a", "response_format": wanted}),
        parse(
            ResponseBody, {"input": "a", "text": {"format": {"type": "json_schema", **named}, "verbosity": "medium"}}
        ),
    )
    assert [json.loads(one.config.json_schema or "") for one in requests] == [schema] * 3
    anything = parsed(response_format={"type": "json_object"})
    assert anything.config.json_schema == '{"type": "object"}'
    assert parsed(response_format={"type": "text"}).config.json_schema is None
    assert request_error(BadGrammar("No.", hint="Leave it out."), "input").param == "text.format"
    assert request_error(BadGrammar("No.", hint="Leave it out.")).param == "response_format"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"a": NaN}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"9" * 5_000,
        b'{"a": "\\ud800"}',
        b'{"seed": ' + b"9" * 5_000 + b"}",
    ],
)
def test_what_is_not_an_object_in_json_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError):
        parse_json(body)
