"""A request for an answer: JSON of unknown origin in, checked values out; one model for each address.

Fields that would change the answer but are not supported are refused (`REFUSED`). Any other unknown field is ignored,
as OpenAI-compatible servers do: for example `user`, `metadata`, `store`.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)
from pydantic_core import from_json

from app.server.openai.errors import RequestError
from core.config import MOST_LOGPROBS, MOST_WHOLE, GenerationConfig, SamplingParams
from core.decoding.registry import METHODS

MOST_STOPS = 16
MOST_TEMPERATURE = 2
LEAST_TOP_P = 1e-9
MOST_ANSWERS = 16  # to one prompt
TEXT_TOKENS = 16  # that a text is continued by if the request does not say, as the API has it
MORE_THAN_ANY_CONTEXT = 1 << 30
MOST_SCHEMA = 1 << 16  # characters
# What an effort means to a template that knows efforts, and to one that only turns thoughts on and off.
EFFORTS = {
    "none": ("off",),
    "minimal": ("low", "off"),
    "low": ("low", "on"),
    "medium": ("medium", "on"),
    "high": ("high", "on"),
    "xhigh": ("high", "on"),
    "max": ("high", "on"),
}
# The values with which a field changes nothing; any other is refused, because the answer would ignore it.
REFUSED: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "min_p", "min_tokens"), (0,)),
    **dict.fromkeys(("repetition_penalty", "best_of"), (1,)),
    **dict.fromkeys(("tools", "functions", "bad_words", "stop_token_ids"), ([],)),
    **dict.fromkeys(("tool_choice", "function_call"), ("none", "auto")),
    **dict.fromkeys(("echo", "ignore_eos", "include_stop_str_in_output", "use_beam_search"), (False,)),
    **dict.fromkeys(("audio", "prediction", "web_search_options", "grammar", "structured_outputs"), ()),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), ()),
    **dict.fromkeys(("allowed_token_ids", "prompt_logprobs", "chat_template", "documents"), ()),
    "truncate_prompt_tokens": (),
    **{"logit_bias": ({},), "modalities": (["text"],), "suffix": ("",), "verbosity": ("medium",)},
}


class Fields(BaseModel):
    """An object of a request. A null is no field, and a field without a name here is ignored."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return {name: one for name, one in value.items() if one is not None} if isinstance(value, dict) else value


class Part(Fields):
    """A part of a message: text alone."""

    type: Literal["text", "input_text", "output_text"]
    text: str


def _limit(tokens: int) -> int:
    if tokens < 1 and tokens != -1:
        raise ValueError("it should be 1 or more, or -1 for no limit")
    return MORE_THAN_ANY_CONTEXT if tokens == -1 else min(tokens, MORE_THAN_ANY_CONTEXT)


def _text_or_tokens(prompt: Any) -> str | tuple[int, ...]:
    prompt = prompt[0] if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int) else prompt
    if prompt and isinstance(prompt, str):
        return prompt
    if not prompt or not isinstance(prompt, list) or not all(type(token) is int for token in prompt):
        raise ValueError("it must be one text, or a list of its tokens; not empty")
    return tuple(prompt)


Limit = Annotated[int, AfterValidator(_limit)]  # of the tokens of an answer
Logprobs = Annotated[int, Field(ge=0, le=MOST_LOGPROBS)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Stop = Annotated[str, Field(min_length=1)]
Parts = Annotated[
    list[Part],
    Field(min_length=1),
    BeforeValidator(lambda value: [{"type": "text", "text": value}] if isinstance(value, str) else value),
]


class Message(Fields):
    """One message, text only."""

    type: Literal["message"] = "message"
    role: Annotated[
        Literal["system", "user", "assistant"], BeforeValidator(lambda role: "system" if role == "developer" else role)
    ]
    content: Parts = []
    tool_calls: Any = None
    function_call: Any = None

    @property
    def text(self) -> str:
        """Its parts, an empty line between them."""
        return "\n\n".join(part.text for part in self.content)

    @model_validator(mode="after")
    def _can_be_read(self) -> Self:
        if self.tool_calls or self.function_call:
            raise ValueError("it calls tools, which this server cannot do")
        if not self.content or (self.role == "user" and not self.text.strip()):
            raise ValueError("the message is empty")
        return self


class Format(Fields):
    """What an answer looks like. /v1/responses has the schema here, and `json_object` may; the others a level below."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] = {}
    schema_: Any = Field(None, alias="schema")
    grammar: str | None = None  # the schema in JSON; None: any text

    @model_validator(mode="after")
    def _read(self) -> Self:
        schema = self.json_schema.get("schema") if self.schema_ is None else self.schema_
        if self.type == "text" or (self.type == "json_object" and schema in (None, {})):
            schema = {"type": "object"}
        if not isinstance(schema, dict):
            raise ValueError("a schema is needed, and it must be an object")
        text = json.dumps(schema)
        if len(text) > MOST_SCHEMA:
            raise ValueError(f"the schema has {len(text):,} characters; at most {MOST_SCHEMA:,} are read")
        self.grammar = None if self.type == "text" else text
        return self


class TemplateOptions(Fields, extra="forbid"):
    """`chat_template_kwargs`, as vLLM and SGLang take them."""

    enable_thinking: bool | None = None
    thinking: bool | None = None
    reasoning_effort: Effort | None = None


class Body(Fields):
    """The fields that all addresses have which answer, and what they mean for the engine."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = REFUSED
    field: ClassVar[str] = "messages"  # where the request has its text

    model: Annotated[str, Field(min_length=1)] | None = None  # None: the one that is there
    n: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] = 1  # answers to one prompt, each with a seed one higher
    stream: bool = False
    stream_options: dict[str, bool | None] = {}
    max_tokens: Limit | None = None
    temperature: Annotated[float, Field(ge=0, le=MOST_TEMPERATURE)] = 1.0
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=MOST_WHOLE)] = 0
    seed: Annotated[int, Field(ge=-MOST_WHOLE, le=MOST_WHOLE)] = Field(default_factory=lambda: secrets.randbits(63))
    stop: Annotated[
        list[Stop],
        Field(max_length=MOST_STOPS),
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    ] = []
    response_format: Format | None = None
    reasoning_effort: Effort | None = None
    chat_template_kwargs: TemplateOptions = TemplateOptions()
    triforce: dict[str, str | None] = {}

    @property
    def num_logprobs(self) -> int | None:
        """How many other tokens are told at each token's log-probability; None: not even its own."""
        return None

    @cached_property
    def config(self) -> GenerationConfig:
        """The settings of the answer; `parse` has chosen the method."""
        top_p = self.top_p or LEAST_TOP_P  # 0: the most likely token alone
        return GenerationConfig(
            max_new_tokens=self.max_tokens or MORE_THAN_ANY_CONTEXT,
            sampling=SamplingParams(temperature=self.temperature, top_p=top_p, top_k=max(0, self.top_k)),
            method=str(self.triforce["method"]),
            seed=self.seed,
            stop_strings=tuple(self.stop),
            json_schema=self.response_format.grammar if self.response_format else None,
            top_logprobs=self.num_logprobs,
        )

    @property
    def thinking(self) -> tuple[str, ...]:
        """Words for what is wished of thoughts, the closest first; empty: as the model is set up."""
        options = self.chat_template_kwargs
        for switch in (options.enable_thinking, options.thinking):
            if switch is not None:
                return ("on",) if switch else ("off",)
        effort = options.reasoning_effort or self.reasoning_effort
        return EFFORTS[effort] if effort else ()

    @model_validator(mode="after")
    def _streams_what_it_counts(self) -> Self:
        if self.stream_options and not self.stream:
            raise RequestError("stream_options needs stream=true.", param="stream_options")
        return self


class TextBody(Body):
    """/v1/completions: one text to continue without a chat template, or a list of its tokens."""

    refused = {**REFUSED, "messages": ()}
    field = "prompt"

    prompt: Annotated[str | tuple[int, ...], PlainValidator(_text_or_tokens)]
    add_special_tokens: bool = True  # in front of a text, as its tokenizer does
    max_tokens: Limit | None = TEXT_TOKENS
    logprobs: Logprobs | None = None

    @property
    def num_logprobs(self) -> int | None:
        """See `Body`."""
        return self.logprobs


class ChatBody(Body):
    """/v1/chat/completions."""

    refused = {**REFUSED, "add_special_tokens": (False,)}

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Limit | None = None  # the newer name, which counts
    logprobs: bool = False
    top_logprobs: Logprobs | None = None
    continue_final_message: bool = False  # it is the beginning of the answer
    add_generation_prompt: bool | None = None

    @property
    def num_logprobs(self) -> int | None:
        """See `Body`."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        continues = self.continue_final_message
        if continues and self.add_generation_prompt:
            problem = "continue_final_message needs add_generation_prompt=false."
            raise RequestError(problem, param="continue_final_message")
        if continues != (self.messages[-1].role == "assistant"):
            problem = "The last message is an answer. To continue it, send continue_final_message=true."
            if continues:
                problem = "The last message is no answer that continue_final_message could continue."
            raise RequestError(problem, param=self.field)
        if self.add_generation_prompt is False and not continues:
            problem = "This server cannot do add_generation_prompt=false where no answer is continued. Leave it out."
            raise RequestError(problem, param="add_generation_prompt")
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs=true.", param="top_logprobs")
        self.max_tokens = self.max_completion_tokens or self.max_tokens
        return self


class ResponseBody(ChatBody):
    """/v1/responses, as far as a client's basic call needs it: text in, text out; nothing is stored."""

    refused = {
        **ChatBody.refused,
        **dict.fromkeys(("previous_response_id", "conversation", "prompt"), ()),
        **{"background": (False,), "n": (1,), "top_logprobs": (0,)},
    }
    field = "input"

    messages: Annotated[
        list[Message],
        Field(min_length=1, alias="input"),
        BeforeValidator(lambda value: [{"role": "user", "content": value}] if isinstance(value, str) else value),
    ]
    instructions: Parts | None = None
    text: dict[str, Any] | None = None  # what is read of these two stands below
    reasoning: dict[str, Any] | None = None
    max_tokens: Limit | None = Field(None, alias="max_output_tokens")
    response_format: Format | None = Field(None, validation_alias=AliasPath("text", "format"))
    verbosity: Literal["medium"] | None = Field(None, validation_alias=AliasPath("text", "verbosity"))
    reasoning_effort: Effort | None = Field(None, validation_alias=AliasPath("reasoning", "effort"))

    @model_validator(mode="after")
    def _begins_with_instructions(self) -> Self:
        if self.instructions and self.instructions[0].text:
            self.messages = [Message(role="system", content=self.instructions), *self.messages]
        return self


def parse_json(body: bytes) -> dict[str, Any]:
    """A JSON object.

    Raises:
        RequestError: it is not an object, or has numbers or characters that JSON does not allow.
    """
    try:
        found = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"The body is not JSON: {error}.", code="invalid_json") from error
    if not isinstance(found, dict):
        raise RequestError("The body is not a JSON object.", code="invalid_json")
    return found


B = TypeVar("B", bound=Body)


def parse(kind: type[B], fields: Mapping[str, Any], methods: Sequence[str] = ("triforce", *METHODS)) -> B:
    """Read a request from a JSON object.

    Args:
        methods: of decoding that can be asked for; the first if the request names none.
    Raises:
        RequestError: names the first field that cannot be served.
    """
    for name, harmless in kind.refused.items():
        if (value := fields.get(name)) is not None and value not in harmless:
            raise RequestError(f"This server cannot do {name}={quoted(value)}. Leave it out.", param=name)
    try:
        body = kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in first["loc"]).lstrip(".")
        told = first["msg"].removeprefix("Value error, ")
        if first["type"] == "model_type":
            told = "Input should be an object"
        raise RequestError(f"{field}: {told}.", param=field) from error
    method = body.triforce.get("method") or methods[0]
    if method not in methods:
        problem = f"triforce.method should be one of {', '.join(methods)}, not {quoted(method)}."
        raise RequestError(problem, param="triforce.method")
    body.triforce = {"method": method}
    return body


def quoted(value: object) -> str:
    """A value for an error message, cut to one line."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
