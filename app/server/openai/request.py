"""A request for an answer: JSON of unknown origin in, frozen and checked values out.

Fields that would change the answer but are not supported are refused (`REFUSED`). Any other unknown field is ignored,
as OpenAI-compatible servers do: for example `user`, `metadata`, `store`.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from app.server.openai.errors import RequestError
from core.config import MOST_LOGPROBS, GenerationConfig, SamplingParams
from core.decoding.registry import METHODS

MOST_STOPS = 16
MOST_SEED = 2**63
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
}
# The values with which a field changes nothing; any other is refused, because the answer would ignore it.
REFUSED: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "min_p", "min_tokens"), (0,)),
    **dict.fromkeys(("repetition_penalty", "best_of"), (1,)),
    **dict.fromkeys(("tools", "functions"), ([],)),
    **dict.fromkeys(("tool_choice", "function_call"), ("none", "auto")),
    **dict.fromkeys(("echo", "ignore_eos"), (False,)),
    **dict.fromkeys(("audio", "prediction", "grammar", "structured_outputs"), ()),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), ()),
    **{"logit_bias": ({},), "modalities": (["text"],), "suffix": ("",)},
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


Limit = Annotated[int, AfterValidator(_limit)]  # of the tokens of an answer
Logprobs = Annotated[int, Field(ge=0, le=MOST_LOGPROBS)]
Effort = Literal["none", "minimal", "low", "medium", "high"]
Listed = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
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
    """What an answer looks like. /v1/responses has the schema here, the others a level below."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] = {}
    schema_: Any = Field(None, alias="schema")
    grammar: str | None = None  # the schema in JSON; None: any text

    @model_validator(mode="after")
    def _read(self) -> Self:
        fixed = {"text": {}, "json_object": {"type": "object"}}
        schema = fixed.get(self.type, self.schema_ or self.json_schema.get("schema"))
        if not isinstance(schema, dict):
            raise ValueError("a schema is needed, and it must be an object")
        text = json.dumps(schema)
        if len(text) > MOST_SCHEMA:
            raise ValueError(f"the schema has {len(text):,} characters; at most {MOST_SCHEMA:,} are read")
        self.grammar = None if self.type == "text" else text
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A request checked as far as possible without the model."""

    model: str | None  # None: the one that is there
    messages: Sequence[Message]
    config: GenerationConfig
    prompt: str | tuple[int, ...] | None = None  # a text to continue without a chat template, in place of messages
    field: str = "messages"  # where the request has its text
    count: int = 1  # answers to the same prompt; each has a seed of its own, one more than the one before
    stream: bool = False
    include_usage: bool = False
    continues: bool = False  # the last message is the beginning of the answer
    thinking: tuple[str, ...] = ()  # words for what is wished, the closest first; empty: as the model is set up


class TemplateOptions(Fields, extra="forbid"):
    """`chat_template_kwargs`, as vLLM and SGLang take them."""

    enable_thinking: bool | None = None
    thinking: bool | None = None
    reasoning_effort: Effort | None = None


class Body(Fields):
    """The fields that all addresses have which answer."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = REFUSED

    model: Annotated[str, Field(min_length=1)] | None = None
    stream: bool = False
    temperature: Annotated[float, Field(ge=0, le=MOST_TEMPERATURE)] = 1.0
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = 0
    seed: Annotated[int, Field(ge=-MOST_SEED, lt=MOST_SEED)] | None = None
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MOST_STOPS), Listed] = []
    chat_template_kwargs: TemplateOptions = TemplateOptions()
    triforce: dict[str, str | None] = {}

    def asked(self, methods: Sequence[str], thinking: str | None) -> ChatRequest:
        """The request. Raises RequestError."""
        raise NotImplementedError

    def request(
        self,
        methods: Sequence[str],
        *,
        most: int | None,
        wanted: Format | None,
        top_logprobs: int | None = None,
        thinking: tuple[str, ...] = (),
        **more: Any,
    ) -> ChatRequest:
        """The request for an answer of at most so many tokens."""
        method = self.triforce.get("method") or methods[0]
        if method not in methods:
            problem = f"triforce.method should be one of {', '.join(methods)}, not {quoted(method)}."
            raise RequestError(problem, param="triforce.method")
        top_p = self.top_p or LEAST_TOP_P  # 0: the most likely token alone
        config = GenerationConfig(
            max_new_tokens=most or MORE_THAN_ANY_CONTEXT,
            sampling=SamplingParams(temperature=self.temperature, top_p=top_p, top_k=max(0, self.top_k)),
            method=method,
            seed=secrets.randbits(63) if self.seed is None else self.seed,
            stop_strings=tuple(self.stop),
            json_schema=wanted.grammar if wanted else None,
            top_logprobs=top_logprobs,
        )
        return ChatRequest(model=self.model, stream=self.stream, config=config, thinking=thinking, **more)

    def wishes(self, effort: str | None, usual: str | None) -> tuple[str, ...]:
        """Words for what is wished of thoughts, the closest first."""
        options = self.chat_template_kwargs
        for switch in (options.enable_thinking, options.thinking):
            if switch is not None:
                return ("on",) if switch else ("off",)
        effort = options.reasoning_effort or effort
        return EFFORTS[effort] if effort else (usual,) if usual else ()


class Completion(Body):
    """The fields that /v1/chat/completions and /v1/completions share."""

    n: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] = 1
    max_tokens: Limit | None = None
    response_format: Format | None = None
    stream_options: dict[str, bool | None] | None = None

    def request(self, methods: Sequence[str], **more: Any) -> ChatRequest:
        """As `Body`, with what these fields say."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream=true.", param="stream_options")
        usage = bool((self.stream_options or {}).get("include_usage"))
        more = {"most": self.max_tokens, **more}
        return super().request(methods, wanted=self.response_format, count=self.n, include_usage=usage, **more)


class ChatBody(Completion):
    """/v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Limit | None = None  # the newer name, which counts
    logprobs: bool = False
    top_logprobs: Logprobs | None = None
    continue_final_message: bool = False
    add_generation_prompt: bool = False
    reasoning_effort: Effort | None = None

    def asked(self, methods: Sequence[str], thinking: str | None) -> ChatRequest:
        """See `Body`."""
        continues = self.continue_final_message
        if continues and self.add_generation_prompt:
            problem = "continue_final_message needs add_generation_prompt=false."
            raise RequestError(problem, param="continue_final_message")
        if self.messages[-1].role != (last := "assistant" if continues else "user"):
            hint = "" if continues else " To continue an answer, send continue_final_message=true."
            raise RequestError(f"The last message must be the {last}'s.{hint}", param="messages")
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs=true.", param="top_logprobs")
        return self.request(
            methods,
            most=self.max_completion_tokens or self.max_tokens,
            top_logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            messages=self.messages,
            continues=continues,
            thinking=self.wishes(self.reasoning_effort, thinking),
        )


class TextBody(Completion):
    """/v1/completions: one text to continue without a chat template, or a list of its tokens."""

    refused = {**REFUSED, "messages": ()}

    prompt: Annotated[list[Any], Field(min_length=1), Listed]
    max_tokens: Limit | None = TEXT_TOKENS
    logprobs: Logprobs | None = None

    def asked(self, methods: Sequence[str], thinking: str | None) -> ChatRequest:
        """See `Body`."""
        text = self.prompt[0] if len(self.prompt) == 1 and isinstance(self.prompt[0], str | list) else self.prompt
        if not text or not (isinstance(text, str) or all(type(one) is int for one in text)):
            raise RequestError("prompt must be one text, or a list of its tokens; not empty.", param="prompt")
        prompt = text if isinstance(text, str) else tuple(text)
        return self.request(methods, messages=(), prompt=prompt, field="prompt", top_logprobs=self.logprobs)


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


def parse(
    kind: type[Body],
    fields: Mapping[str, Any],
    methods: Sequence[str] = ("triforce", *METHODS),
    thinking: str | None = None,
) -> ChatRequest:
    """Read a request from a JSON object.

    Args:
        methods: of decoding that can be asked for; the first if the request names none.
        thinking: the wish, if the request has none.
    Raises:
        RequestError: names the first field that cannot be served.
    """
    for name, harmless in kind.refused.items():
        if (value := fields.get(name)) is not None and value not in harmless:
            raise RequestError(f"This server cannot do {name}={quoted(value)}. Leave it out.", param=name)
    try:
        return kind.model_validate(fields).asked(methods, thinking)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in first["loc"]).lstrip(".")
        told = first["msg"].removeprefix("Value error, ")
        if first["type"] == "model_type":
            told = "Input should be an object"
        raise RequestError(f"{field}: {told}.", param=field) from error


def quoted(value: object) -> str:
    """A value for an error message, cut to one line."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
