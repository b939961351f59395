"""/v1/responses, as far as a client's basic call needs it: text in, text out, whole or streamed; nothing is stored."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.server.openai.errors import BadRequest
from app.server.openai.request import ChatRequest, parse_chat
from app.server.openai.response import Document, Head, Part, Result, ours, usage
from app.server.openai.turns import Timing
from core.generation.events import Finished

# Fields with what nobody here stores, calls or looks up; see `app.server.openai.request.REFUSED`.
OTHERS: Mapping[str, tuple[Any, ...]] = {
    "previous_response_id": (),
    "conversation": (),
    "background": (False,),
    "prompt": (),
    "top_logprobs": (0,),
}
FORMATS = {"response_format.json_schema": "text.format", "response_format": "text.format"}  # names in chat, and here
PARTS = ("input_text", "output_text")  # of messages


def parse_response(
    body: Mapping[str, Any], *, default_method: str = "triforce", thinking: str | None = None
) -> ChatRequest:
    """Read a request by the words of a chat request.

    Raises:
        BadRequest: names the first field that cannot be served.
    """
    for name, harmless in OTHERS.items():
        if body.get(name) is not None and body[name] not in harmless:
            raise BadRequest(f"This server cannot do {name}. Leave it out.", param=name)
    reasoning = body.get("reasoning") or {}
    if not isinstance(reasoning, dict):
        raise BadRequest("reasoning must be an object.", param="reasoning")
    text = body.get("text") or {}
    if not isinstance(text, dict) or not isinstance(text.get("format") or {}, dict):
        raise BadRequest("text must be an object, and text.format too.", param="text")
    if text.get("verbosity") not in (None, "medium"):
        raise BadRequest("This server cannot do text.verbosity. Leave it out.", param="text.verbosity")
    said = body.get("input")
    messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
    if not isinstance(messages, list) or not messages:
        raise BadRequest("input must be a text, or a list of messages.", param="input")
    if body.get("instructions"):
        messages = [{"role": "system", "content": body["instructions"]}, *messages]
    chat = {
        **{name: value for name, value in body.items() if name not in ("prompt", "top_logprobs", "logprobs", "n")},
        "messages": [_message(one) for one in messages],
        "max_tokens": body.get("max_output_tokens"),
        "reasoning_effort": reasoning.get("effort"),
        "stream_options": None,
        "response_format": _response_format(text.get("format")),
    }
    try:
        return replace(parse_chat(chat, default_method=default_method, thinking=thinking), field="input")
    except BadRequest as error:  # in the words of this address
        names = {"messages": "input", "max_tokens": "max_output_tokens", **FORMATS}
        if error.param is None or not error.param.startswith(tuple(names)):
            raise
        message, param = error.message, error.param
        for theirs, ours_ in names.items():
            message, param = message.replace(theirs, ours_), param.replace(theirs, ours_)
        raise BadRequest(message, param=param, code=error.code) from error


def _response_format(wanted: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """`text.format` in the words of a chat request, which has a level more."""
    return {**wanted, "json_schema": wanted} if wanted and wanted.get("type") == "json_schema" else wanted


def _message(value: object) -> object:
    if not isinstance(value, dict):
        return value
    if value.get("type", "message") != "message":
        raise BadRequest(f"This server cannot do input of the type {value['type']!r}.", param="input")
    content = value.get("content")
    if isinstance(content, list):
        content = [
            {**one, "type": "text"} if isinstance(one, dict) and one.get("type") in PARTS else one for one in content
        ]
    return {**value, "content": content}


def status_of(finished: Finished) -> str:
    """Of an answer that has ended."""
    return "incomplete" if finished.stop_reason in ("max_new_tokens", "context_full") else "completed"


@dataclass(slots=True)
class ResponseShape:
    """The documents of /v1/responses; one answer a request."""

    head: Head
    _texts: list[str] = field(default_factory=list)
    _number: int = 0

    def whole(self, results: Sequence[Result], timing: Timing) -> Document:
        """See `Shape`."""
        (result,) = results
        return {**self._response(result.finished), "usage": self._usage(results), "triforce": ours(result, timing)}

    def first(self) -> Document:
        """See `Shape`."""
        return self._event("response.created", response=self._response(None))

    def part(self, part: Part) -> Iterable[Document]:
        """See `Shape`."""
        if not part.text:
            return
        if not self._texts:
            yield self._event("response.output_item.added", output_index=0, item=self._item("", "in_progress"))
            yield self._event("response.content_part.added", **self._place, part=self._content(""))
        self._texts.append(part.text)
        yield self._event("response.output_text.delta", **self._place, delta=part.text, logprobs=[])

    def ended(self, index: int, result: Result, timing: Timing) -> Iterable[Document]:
        """See `Shape`."""
        text = "".join(self._texts)
        if self._texts:
            yield self._event("response.output_text.done", **self._place, text=text, logprobs=[])
            yield self._event("response.content_part.done", **self._place, part=self._content(text))
            yield self._event(
                "response.output_item.done", output_index=0, item=self._item(text, status_of(result.finished))
            )
        response = self.whole([result], timing)
        yield self._event(f"response.{response['status']}", response=response)

    def last(self, results: Sequence[Result]) -> Iterable[Document]:
        """See `Shape`."""
        return ()

    @property
    def _place(self) -> Document:
        return {"item_id": f"msg_{self.head.id}", "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> Document:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def _content(self, text: str) -> Document:
        return {"type": "output_text", "text": text, "annotations": []}

    def _item(self, text: str, status: str) -> Document:
        content = [self._content(text)] if text else []
        return {
            "id": f"msg_{self.head.id}",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _response(self, finished: Finished | None) -> Document:
        status = "in_progress" if finished is None else status_of(finished)
        return {
            "id": self.head.id,
            "object": "response",
            "created_at": self.head.created,
            "model": self.head.model,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": None,
            "metadata": {},
            "output": [self._item(finished.text, status)] if finished is not None else [],
            "parallel_tool_calls": False,
            "tool_choice": "none",
            "tools": [],
            "temperature": None,
            "top_p": None,
        }

    def _usage(self, results: Sequence[Result]) -> Document:
        told = usage(results)
        return {
            "input_tokens": told["prompt_tokens"],
            "input_tokens_details": told["prompt_tokens_details"],
            "output_tokens": told["completion_tokens"],
            "output_tokens_details": told["completion_tokens_details"],
            "total_tokens": told["total_tokens"],
        }
