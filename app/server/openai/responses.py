"""/v1/responses, as far as a client's basic call needs it: text in, text out, whole or streamed; nothing is stored."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from app.server.openai.errors import RequestError
from app.server.openai.request import REFUSED, Body, ChatRequest, Effort, Fields, Format, Limit, Message, Parts
from app.server.openai.response import Document, Head, Part, Result, ours, usage
from app.server.openai.turns import Timing
from core.generation.events import Finished


class TextOptions(Fields):
    """What the text is like."""

    format: Format | None = None
    verbosity: Literal["medium"] = "medium"


class Reasoning(Fields):
    """How long to think."""

    effort: Effort | None = None


class ResponseBody(Body):
    """/v1/responses."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **REFUSED,
        "previous_response_id": (),
        "conversation": (),
        "background": (False,),
        "prompt": (),
        "top_logprobs": (0,),
    }

    input: Annotated[
        list[Message],
        Field(min_length=1),
        BeforeValidator(lambda value: [{"role": "user", "content": value}] if isinstance(value, str) else value),
    ]
    instructions: Parts | None = None
    max_output_tokens: Limit | None = None
    reasoning: Reasoning = Reasoning()
    text: TextOptions = TextOptions()

    def asked(self, methods: Sequence[str], thinking: str | None) -> ChatRequest:
        """See `Body`."""
        if self.input[-1].role != "user":
            raise RequestError("The last message must be the user's.", param="input")
        said = (
            [Message(role="system", content=self.instructions)]
            if self.instructions and self.instructions[0].text
            else []
        )
        return self.request(
            methods,
            most=self.max_output_tokens,
            wanted=self.text.format,
            messages=[*said, *self.input],
            field="input",
            thinking=self.wishes(self.reasoning.effort, thinking),
        )


def status_of(finished: Finished) -> str:
    """Of an answer that has ended."""
    return "incomplete" if finished.stop_reason in ("max_new_tokens", "context_full") else "completed"


@dataclass(slots=True)
class ResponseShape:
    """The documents of /v1/responses; one answer a request."""

    PREFIX: ClassVar[str] = "resp_"

    head: Head
    include_usage: bool

    _texts: list[str] = field(default_factory=list)
    _number: int = 0

    def whole(self, results: Sequence[Result], timing: Timing) -> Document:
        """See `ChatShape`."""
        (result,) = results
        return {**self._response(result.finished), "usage": self._usage(results), "triforce": ours(result, timing)}

    def first(self) -> Document:
        """See `ChatShape`."""
        return self._event("response.created", response=self._response(None))

    def part(self, part: Part) -> Iterable[Document]:
        """See `ChatShape`."""
        if not part.text:
            return
        if not self._texts:
            yield self._event("response.output_item.added", output_index=0, item=self._item("", "in_progress"))
            yield self._event("response.content_part.added", **self._place, part=self._content(""))
        self._texts.append(part.text)
        yield self._event("response.output_text.delta", **self._place, delta=part.text, logprobs=[])

    def ended(self, index: int, result: Result, timing: Timing) -> Iterable[Document]:
        """See `ChatShape`."""
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
        """See `ChatShape`."""
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
        told = usage(results).items()
        return {name.replace("prompt", "input").replace("completion", "output"): value for name, value in told}
