"""The documents of /v1/responses, whole or streamed; one answer a request, of text alone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from app.server.openai.response import Document, Head, Part, Result, ours, usage
from app.server.openai.turns import Timing
from core.generation.events import Finished


@dataclass(slots=True)
class ResponseShape:
    """The documents of /v1/responses; its methods are those of `ChatShape`."""

    PREFIX: ClassVar[str] = "resp_"

    head: Head
    include_usage: bool

    _texts: list[str] = field(default_factory=list)
    _number: int = 0

    def whole(self, results: Sequence[Result], timing: Timing) -> Document:
        """The response with a whole answer."""
        told = usage(results).items()
        counts = {name.replace("prompt", "input").replace("completion", "output"): value for name, value in told}
        return {**self._response(results[0].finished), "usage": counts, "triforce": ours(results[0], timing)}

    def first(self) -> Document:
        """The first event of a stream."""
        return self._event("response.created", response=self._response(None))

    def part(self, part: Part) -> Iterable[Document]:
        """The events for what is new."""
        if not part.text:
            return
        if not self._texts:
            yield self._event("response.output_item.added", output_index=0, item=self._item("", "in_progress"))
            yield self._event("response.content_part.added", **self._place, part=content(""))
        self._texts.append(part.text)
        yield self._event("response.output_text.delta", **self._place, delta=part.text, logprobs=[])

    def ended(self, index: int, result: Result, timing: Timing) -> Iterable[Document]:
        """The events at the end of the answer."""
        response = self.whole([result], timing)
        if self._texts:
            text = "".join(self._texts)
            yield self._event("response.output_text.done", **self._place, text=text, logprobs=[])
            yield self._event("response.content_part.done", **self._place, part=content(text))
            item = self._item(text, response["status"])
            yield self._event("response.output_item.done", output_index=0, item=item)
        yield self._event(f"response.{response['status']}", response=response)

    def last(self, results: Sequence[Result]) -> Iterable[Document]:
        """The events at the end of the stream."""
        return ()

    @property
    def _place(self) -> Document:
        return {"item_id": f"msg_{self.head.id}", "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> Document:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def _item(self, text: str, status: str) -> Document:
        said = [content(text)] if text else []
        head = {"id": f"msg_{self.head.id}", "type": "message", "role": "assistant"}
        return {**head, "status": status, "content": said}

    def _response(self, finished: Finished | None) -> Document:
        is_cut = finished is not None and finished.stop_reason in ("max_new_tokens", "context_full")
        status = "in_progress" if finished is None else "incomplete" if is_cut else "completed"
        return {
            "id": self.head.id,
            "object": "response",
            "created_at": self.head.created,
            "model": self.head.model,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": None,
            "metadata": {},
            "output": [self._item(finished.text, status)] if finished is not None else [],
            "parallel_tool_calls": False,
            "tool_choice": "none",
            "tools": [],
            "temperature": None,
            "top_p": None,
        }


def content(text: str) -> Document:
    """The only part of a message."""
    return {"type": "output_text", "text": text, "annotations": []}
