"""A request for an answer: JSON of unknown origin in, frozen and checked values out.

Fields that would change the answer but are not supported are refused (`REFUSED`). Any other unknown field is ignored,
as OpenAI-compatible servers do: for example `user`, `metadata`, `store`.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.runtime.error_text import problem_and_hint
from app.server.openai.errors import BadRequest
from core.config import MOST_LOGPROBS, GenerationConfig, SamplingParams
from core.decoding.registry import METHODS
from core.errors import CoreError

Role = Literal["system", "user", "assistant"]
ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
MOST_STOPS = 16
MOST_SEED = 2**63
MOST_NUMBER = 2**64
MOST_TEMPERATURE = 2
LEAST_TOP_P = 1e-9
MOST_ANSWERS = 16  # to one prompt
LIMITS = ("max_completion_tokens", "max_tokens")  # fields with the most tokens of an answer to messages
TEXT_TOKENS = 16  # that a text is continued by if the request does not say, as the API has it
MORE_THAN_ANY_CONTEXT = 1 << 30
ANY_OBJECT = '{"type": "object"}'  # the schema of response_format json_object
MOST_SCHEMA = 1 << 16  # characters
SWITCHES = ("enable_thinking", "thinking")  # variables of chat templates
# What an effort means to a template that knows efforts, and to one that only turns thoughts on and off.
EFFORTS = {
    "none": ("off",),
    "minimal": ("low", "off"),
    "low": ("low", "on"),
    "medium": ("medium", "on"),
    "high": ("high", "on"),
}
OTHER_GRAMMARS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "grammar")
# The value with which a field changes nothing; any other is refused, because the answer would ignore it.
REFUSED: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "echo": (False,),
    "ignore_eos": (False,),
    "suffix": ("",),
    **dict.fromkeys(OTHER_GRAMMARS, ()),
}


@dataclass(frozen=True, slots=True)
class Message:
    """One message, text only."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A request checked as far as possible without the model."""

    model: str | None  # None: the one that is there
    messages: tuple[Message, ...]
    config: GenerationConfig
    prompt: str | tuple[int, ...] | None = None  # a text to continue without a chat template, in place of messages
    field: str = "messages"  # where the request has its text
    count: int = 1  # answers to the same prompt; each has a seed of its own, one more than the one before
    stream: bool = False
    include_usage: bool = False
    continues: bool = False  # the last message is the beginning of the answer
    thinking: tuple[str, ...] = ()  # words for what is wished, the closest first; empty: as the model is set up


def parse_json(body: bytes) -> dict[str, Any]:
    """A JSON object.

    Raises:
        BadRequest: it is not an object, or has numbers or characters that JSON does not allow.
    """

    def refuse(name: str) -> float:
        raise ValueError(f"{name} is no number in JSON")

    try:
        found = json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        where = f" (character {error.pos})" if isinstance(error, json.JSONDecodeError) else ""
        reason = "nested too deeply" if isinstance(error, RecursionError) else f"not JSON{where}"
        raise BadRequest(f"The body is {reason}.", code="invalid_json") from error
    if not isinstance(found, dict):
        raise BadRequest("The body is not a JSON object.", code="invalid_json")
    return found


def parse_chat(
    body: Mapping[str, Any], *, default_method: str = "triforce", thinking: str | None = None
) -> ChatRequest:
    """Read a chat request from a JSON object.

    Args:
        default_method: of decoding, if the request names none.
        thinking: the wish, if the request has none.
    Raises:
        BadRequest: names the first field that cannot be served.
    """
    refuse_others(body, REFUSED)
    messages = parse_messages(body.get("messages"))
    continues = _flag(body, "continue_final_message")
    if continues and _flag(body, "add_generation_prompt"):
        raise BadRequest("continue_final_message needs add_generation_prompt=false.", param="continue_final_message")
    last: Role = "assistant" if continues else "user"
    if messages[-1].role != last:
        hint = "" if continues else " To continue an answer, send continue_final_message=true."
        raise BadRequest(f"The last message must be the {last}'s.{hint}", param="messages")
    top = _whole(body, "top_logprobs", None, least=0, most=MOST_LOGPROBS)
    if top is not None and not _flag(body, "logprobs"):
        raise BadRequest("top_logprobs needs logprobs=true.", param="top_logprobs")
    return ChatRequest(
        model=model_of(body),
        messages=messages,
        config=generation(body, default_method, LIMITS, top_logprobs=(top or 0) if _flag(body, "logprobs") else None),
        count=_whole(body, "n", 1, least=1, most=MOST_ANSWERS) or 1,
        stream=_flag(body, "stream"),
        include_usage=_wants_usage(body),
        continues=continues,
        thinking=_thinking(body) or ((thinking,) if thinking else ()),
    )


def parse_text(body: Mapping[str, Any], *, default_method: str = "triforce") -> ChatRequest:
    """Read a request to continue a text, without a chat template. Raises as `parse_chat`."""
    refuse_others(body, {**REFUSED, "messages": ()})
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, list) and all(type(one) is int for one in prompt):
        prompt = tuple(prompt)
    if not isinstance(prompt, str | tuple) or not prompt:
        raise BadRequest("prompt must be one text, or a list of its tokens; not empty.", param="prompt")
    return ChatRequest(
        model=model_of(body),
        messages=(),
        prompt=_whole_characters(prompt, "prompt") if isinstance(prompt, str) else prompt,
        field="prompt",
        config=generation(
            {"max_tokens": TEXT_TOKENS, **{name: value for name, value in body.items() if value is not None}},
            default_method,
            ("max_tokens",),
            top_logprobs=_whole(body, "logprobs", None, least=0, most=MOST_LOGPROBS),
        ),
        count=_whole(body, "n", 1, least=1, most=MOST_ANSWERS) or 1,
        stream=_flag(body, "stream"),
        include_usage=_wants_usage(body),
    )


def refuse_others(body: Mapping[str, Any], harmless: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises BadRequest at the first field with another value than those that change nothing."""
    for name, values in harmless.items():
        value = body.get(name)
        if value is not None and not any(value == same and type(value) is type(same) for same in _alike(values)):
            raise BadRequest(f"This server cannot do {name}={quoted(value)}. Leave it out.", param=name)


def _wants_usage(body: Mapping[str, Any]) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not _flag(body, "stream"):
        raise BadRequest("stream_options needs stream=true.", param="stream_options")
    if not isinstance(options, dict):
        raise BadRequest("stream_options must be an object.", param="stream_options")
    return _flag(options, "include_usage")


def parse_messages(value: object) -> tuple[Message, ...]:
    """Messages with text, given as a string or as a list of text parts; parts are joined by an empty line.

    Raises:
        BadRequest: not a list, an empty list, an unknown role, or content that is not text.
    """
    if not isinstance(value, list) or not value:
        raise BadRequest("messages must be a list with at least one message.", param="messages")
    return tuple(_message(one, f"messages[{number}]") for number, one in enumerate(value))


def _message(value: object, where: str) -> Message:
    if not isinstance(value, dict):
        raise BadRequest(f"{where} must be an object.", param=where)
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise BadRequest(
            f"{where} has the role {quoted(role)}; this server knows {', '.join(ROLES)}.", param=f"{where}.role"
        )
    if value.get("tool_calls") or value.get("function_call"):
        raise BadRequest(f"{where} calls tools, which this server cannot do.", param=f"{where}.tool_calls")
    content = value.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [_part(part, f"{where}.content") for part in parts]
    if not texts or (not any(text.strip() for text in texts) and ROLES[role] == "user"):
        raise BadRequest(f"{where} is empty.", param=f"{where}.content")
    return Message(ROLES[role], "\n\n".join(texts))


def _part(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("text") if isinstance(part, dict) else None
    if kind != "text" or not isinstance(text, str):
        what = quoted(kind) if kind not in (None, "text") else "something else"
        raise BadRequest(f"{where} must be text, this server reads nothing else; it is {what}.", param=where)
    return _whole_characters(text, where)


def _whole_characters(text: str, where: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadRequest(f"{where} holds half a character ({error.reason}).", param=where) from error
    return text


def generation(
    body: Mapping[str, Any], default_method: str, limits: Sequence[str], *, top_logprobs: int | None = None
) -> GenerationConfig:
    """The settings of an answer; each is checked here, because errors speak of the API's fields.

    Args:
        limits: the fields that may hold the most tokens of the answer, the first that is given counts; -1: no limit.
    Raises:
        BadRequest: names the field.
    """
    named = next((name for name in limits if body.get(name) is not None), limits[0])
    most = _whole(body, named, None, least=1, most=MOST_NUMBER, off=-1)
    temperature = _number(body, "temperature", 1.0)
    if not 0 <= temperature <= MOST_TEMPERATURE:
        raise BadRequest(f"temperature must be from 0 to {MOST_TEMPERATURE}, not {temperature:g}.", param="temperature")
    top_p = _number(body, "top_p", 1.0)
    if not 0 <= top_p <= 1:
        raise BadRequest(f"top_p must be from 0 to 1, not {top_p:g}.", param="top_p")
    seed = _whole(body, "seed", None, least=-MOST_SEED, most=MOST_SEED - 1)
    try:
        return GenerationConfig(
            max_new_tokens=min(MORE_THAN_ANY_CONTEXT, most or MORE_THAN_ANY_CONTEXT),
            sampling=SamplingParams(
                temperature=temperature,
                top_p=top_p or LEAST_TOP_P,  # 0: the most likely token alone
                top_k=_whole(body, "top_k", 0, least=0, most=MOST_NUMBER, off=-1) or 0,
            ),
            method=_method(body) or default_method,
            seed=secrets.randbits(63) if seed is None else seed,
            stop_strings=_stops(body.get("stop")),
            json_schema=_schema(body),
            top_logprobs=top_logprobs,
        )
    except CoreError as error:
        raise BadRequest(" ".join(problem_and_hint(error))) from error


def _schema(body: Mapping[str, Any]) -> str | None:
    """The JSON schema that `response_format` asks for; None: any text."""
    wanted = body.get("response_format")
    if wanted is None:
        return None
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return ANY_OBJECT
    if kind != "json_schema":
        told = quoted(kind if isinstance(wanted, dict) else wanted)
        raise BadRequest(
            f"response_format must be of the type text, json_object or json_schema, not {told}.",
            param="response_format",
        )
    named = wanted.get("json_schema")
    schema = named.get("schema") if isinstance(named, dict) else None
    if not isinstance(schema, dict):
        raise BadRequest("response_format.json_schema.schema must be an object.", param="response_format")
    try:
        text = json.dumps(schema)
    except RecursionError as error:
        raise BadRequest("response_format has a schema that is nested too deeply.", param="response_format") from error
    if len(text) > MOST_SCHEMA:
        raise BadRequest(
            f"response_format has a schema of {len(text):,} characters; at most {MOST_SCHEMA:,} are read.",
            param="response_format",
        )
    return text


def _thinking(body: Mapping[str, Any]) -> tuple[str, ...]:
    """`chat_template_kwargs` as vLLM and SGLang take them, or `reasoning_effort` as OpenAI does."""
    options = body.get("chat_template_kwargs") or {}
    if not isinstance(options, dict):
        raise BadRequest("chat_template_kwargs must be an object.", param="chat_template_kwargs")
    if others := sorted(set(options) - {*SWITCHES, "reasoning_effort"}):
        raise BadRequest(f"This server cannot do chat_template_kwargs.{others[0]}.", param="chat_template_kwargs")
    for name in SWITCHES:
        if name in options:
            return ("on",) if _flag(options, name) else ("off",)
    effort = options.get("reasoning_effort", body.get("reasoning_effort"))
    if effort is None:
        return ()
    if not isinstance(effort, str) or effort not in EFFORTS:
        raise BadRequest(f"reasoning_effort must be one of {', '.join(EFFORTS)}.", param="reasoning_effort")
    return EFFORTS[effort]


def _method(body: Mapping[str, Any]) -> str | None:
    ours = body.get("triforce")
    if ours is not None and not isinstance(ours, dict):
        raise BadRequest("triforce must be an object.", param="triforce")
    method = (ours or {}).get("method")
    if method is None:
        return None
    if not isinstance(method, str) or method not in METHODS:
        raise BadRequest(
            f"There is no method {quoted(method)}; use one of {', '.join(METHODS)}.", param="triforce.method"
        )
    return method


def _stops(value: object) -> Sequence[str]:
    stops = [value] if isinstance(value, str) else value if value is not None else []
    if not isinstance(stops, list) or not all(isinstance(one, str) and one for one in stops) or len(stops) > MOST_STOPS:
        raise BadRequest(f"stop must be a text, or a list of up to {MOST_STOPS} of them, none empty.", param="stop")
    return tuple(stops)


def _number(body: Mapping[str, Any], name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MOST_NUMBER:
        raise BadRequest(f"{name} must be a number, not {quoted(value)}.", param=name)
    return value


def _whole(
    body: Mapping[str, Any], name: str, default: int | None, *, least: int, most: int, off: int | None = None
) -> int | None:
    """A whole number; None where it is `off`."""
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise BadRequest(f"{name} must be a whole number, not {quoted(value)}.", param=name)
    if value == off:
        return None
    if not least <= value <= most:
        span = f"{least:,} or more" if most == MOST_NUMBER else f"from {least:,} to {most:,}"
        raise BadRequest(f"{name} must be {span}, not {quoted(value)}.", param=name)
    return value


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{name} must be true or false, not {quoted(value)}.", param=name)
    return bool(value)


def model_of(body: Mapping[str, Any]) -> str | None:
    """The name of the model; None: the one that is there."""
    value = body.get("model")
    if value is not None and (not isinstance(value, str) or not value):
        raise BadRequest("model must be a name.", param="model")
    return value


def _alike(harmless: tuple[Any, ...]) -> list[Any]:
    """The values and their float forms: 0 and 0.0 mean the same, False does not."""
    return [*harmless, *(float(one) for one in harmless if type(one) is int)]


def quoted(value: object) -> str:
    """A value for an error message, cut to one line."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
