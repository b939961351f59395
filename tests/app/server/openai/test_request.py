"""What a request may say, and what is said about one that may not."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.server.openai.errors import RequestError, request_error
from app.server.openai.prompts import Prompts
from app.server.openai.request import ChatBody, ResponseBody, TextBody, parse, parse_json
from core.errors import BadGrammar
from tests.app.fakes import FakeText

ASKED = [{"role": "user", "content": "Who keeps the light?"}]


def parsed(fields: dict[str, Any]) -> Any:
    """A request to the address that such fields are for."""
    kind = TextBody if "prompt" in fields else ResponseBody if "input" in fields else ChatBody
    return parse(kind, ({"model": "m", "messages": ASKED} if kind is ChatBody else {}) | fields)


def test_fields_reach_the_engine_and_defaults_are_those_of_openai() -> None:
    request = parsed({})
    assert [(one.role, one.text) for one in request.messages] == [("user", "Who keeps the light?")]
    assert (request.config.sampling.temperature, request.config.sampling.top_p) == (1.0, 1.0)
    assert request.config.method == "triforce" and not request.stream
    assert parsed({}).config.seed != parsed({}).config.seed, "without a seed every answer is drawn anew"
    told = {"temperature": 0, "top_p": 0.5, "top_k": 7, "seed": -3, "max_tokens": 5, "stop": "\n"}
    config = parsed(told | {"triforce": {"method": "retrieval"}}).config
    assert config.sampling.greedy and (config.sampling.top_p, config.sampling.top_k) == (0.5, 7)
    assert (config.seed, config.max_new_tokens, config.method) == (-3, 5, "retrieval")
    assert tuple(config.stop_strings) == ("\n",)
    assert parsed({"max_tokens": 5, "max_completion_tokens": 9}).config.max_new_tokens == 9, "the newer name counts"
    assert parsed({"reasoning_effort": "xhigh"}).thinking == parsed({"reasoning_effort": "high"}).thinking
    assert parsed({"messages": [{"role": "developer", "content": "Greet."}]}).messages[-1].text == "Greet."


TEXT, INPUT = {"prompt": "a"}, {"input": "a"}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": "y"}}
LONG = {"type": "json_schema", "json_schema": {"schema": {"const": "x" * 70_000}}}
PICTURE = {"type": "image_url", "image_url": {"url": "http://x"}}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n": 17}, "n"), ({"n": True}, "n"), ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"logit_bias": {"5": 1}}, "logit_bias"), ({"top_logprobs": 21}, "top_logprobs"), ({"suffix": "and"}, "suffix"),
    ({"tools": [{"type": "function"}]}, "tools"), ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "grammar"}}, "response_format.type"),
    ({"response_format": LONG}, "response_format"), ({"response_format": SCHEMA}, "response_format"),
    *(({name: [1]}, name) for name in ("guided_json", "bad_words", "stop_token_ids", "prompt_logprobs", "documents")),
    ({"verbosity": "low"}, "verbosity"), ({"web_search_options": {}}, "web_search_options"),
    ({"temperature": "hot"}, "temperature"), ({"temperature": -1}, "temperature"),
    ({"temperature": 10**400}, "temperature"), ({"temperature": 2.1}, "temperature"), ({"top_p": 1.5}, "top_p"),
    ({"top_k": 1.5}, "top_k"), ({"top_k": 2**63}, "top_k"), ({"seed": 2**63}, "seed"),
    ({"max_tokens": 0}, "max_tokens"), ({"truncate_prompt_tokens": 9}, "truncate_prompt_tokens"),
    ({"add_special_tokens": True}, "add_special_tokens"), ({"add_generation_prompt": False}, "add_generation_prompt"),
    ({"response_format": {"type": "json_object", "schema": True}}, "response_format"),
    ({"max_tokens": -2}, "max_tokens"), ({"max_completion_tokens": "9"}, "max_completion_tokens"),
    ({"stop": ["a"] * 17}, "stop"), ({"stop": [""]}, "stop[0]"), ({"stop": 5}, "stop"), ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"), ({"triforce": "retrieval"}, "triforce"),
    ({"triforce": {"method": "magic"}}, "triforce.method"), ({"model": ""}, "model"), ({"messages": None}, "messages"),
    ({"messages": []}, "messages"), ({"messages": ["hello"]}, "messages[0]"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": " "}]}, "messages[0]"),
    ({"messages": [{"role": "user", "content": [PICTURE]}]}, "messages[0].content[0].type"),
    ({"messages": [*ASKED, CALL]}, "messages[1]"), ({"continue_final_message": True}, "messages"),
    ({"messages": [*ASKED, {"role": "assistant", "content": "The"}]}, "messages"),
    ({"prompt": []}, "prompt"), ({"prompt": ["a", "b"]}, "prompt"), ({"prompt": ""}, "prompt"),
    ({"prompt": [1, True]}, "prompt"), (TEXT | {"echo": True}, "echo"), (TEXT | {"messages": ASKED}, "messages"),
    (TEXT | {"max_tokens": 0}, "max_tokens"), (TEXT | {"logprobs": True}, "logprobs"), ({"input": []}, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
    ({"input": [{"type": "function_call_output"}]}, "input[0].type"), (INPUT | {"tools": [{}]}, "tools"),
    (INPUT | {"max_output_tokens": 0}, "max_output_tokens"),
    (INPUT | {"previous_response_id": "resp_1"}, "previous_response_id"),
    (INPUT | {"text": {"format": {"type": "grammar"}}}, "text.format.type"),
    (INPUT | {"text": {"format": {"type": "json_schema", "schema": 1}}}, "text.format"),
    (INPUT | {"text": {"verbosity": "low"}}, "text.verbosity"),
    (INPUT | {"text": "plain"}, "text"),
    (INPUT | {"reasoning": ["high"]}, "reasoning"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_what_cannot_be_served_is_refused_in_one_line_that_names_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parsed(fields)
    assert caught.value.param == param and (param.partition("[")[0] in caught.value.message or param == "messages")
    assert "\n" not in caught.value.message and len(caught.value.message) < 300
    assert "--" not in caught.value.message, "the API's words"
    json.dumps(caught.value.body())


NAMES = [*ChatBody.model_fields, *TextBody.model_fields, "input", "max_output_tokens", "text", "reasoning", "tools"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_subnormal=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*NAMES, "role", "content"]), inner),
    max_leaves=6,
)


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4))
def test_anything_else_is_a_request_or_an_error_of_one_line(fields: dict[str, Any]) -> None:
    for kind, words in ((ChatBody, {"messages": ASKED}), (TextBody, TEXT), (ResponseBody, INPUT)):
        try:
            body = parse(kind, {**words, **fields})
        except RequestError as error:
            assert "\n" not in error.message and error.param is not None
        else:
            assert body.config.max_new_tokens >= 1 and 0 <= body.config.sampling.temperature <= 2


@pytest.mark.parametrize("prompt", ["Hi", "^Hi"])
def test_a_text_that_has_its_own_beginning_gets_no_second(prompt: str) -> None:
    text: Any = FakeText()
    text.beginning = [ord("^")]
    assert Prompts().of(parsed({"prompt": prompt}), text).ids == [*map(ord, "^Hi")]
    assert Prompts().of(parsed({"prompt": prompt, "add_special_tokens": False}), text).ids == [*map(ord, prompt)]


def test_a_schema_reaches_the_engine_from_every_address() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    named = {"name": "a", "schema": schema, "strict": True}
    wanted = {"response_format": {"type": "json_schema", "json_schema": named}}
    text = {"text": {"format": {"type": "json_schema", **named}, "verbosity": "medium"}}
    plain = {"response_format": {"type": "json_object", "schema": schema}}
    for fields in (wanted, TEXT | wanted, INPUT | text, plain):
        assert json.loads(parsed(fields).config.json_schema or "") == schema
    for kind, told in (("json_object", '{"type": "object"}'), ("text", None)):
        assert parsed({"response_format": {"type": kind}}).config.json_schema == told
    for field, param in (("input", "text.format"), ("messages", "response_format")):
        assert request_error(BadGrammar("No.", hint="Leave it out."), field).param == param


BAD_JSON = (
    b"", b"{", b"[]", b'"x"', b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5_000,
    b'{"a": "\\ud800"}', b'{"seed": ' + b"9" * 5_000 + b"}",
)  # fmt: skip


def test_what_is_not_an_object_in_json_is_refused() -> None:
    for body in BAD_JSON:
        with pytest.raises(RequestError):
            parse_json(body)
