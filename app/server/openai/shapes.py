"""Answers in the three formats of OpenAI's interface, whole or as events, with one object of our own: `triforce`."""

import json
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

from app.runtime.answer_json import answer_report, rounded
from core.generation.events import Finished, TokenRecord

OURS = ("full_passes", "tokens_per_full_pass", "acceptance", "gamma1_mean", "gamma2_mean", "reselections")
HALF_CHARACTER = "\ufffd"
DONE = b"data: [DONE]\n\n"

Document = dict[str, Any]
Records = Sequence[TokenRecord] | None  # None: no log-probabilities were asked for


@dataclass(slots=True)
class Result:
    """One whole answer to the prompt; a request may want several."""

    finished: Finished
    seed: int
    queue_seconds: float  # from the arrival of the request to its turn
    first_token_seconds: float | None  # from its arrival to its first token
    records: Records = None  # of its text


class ChatShape:
    """The documents of one response of /v1/chat/completions."""

    PREFIX: ClassVar[str] = "chatcmpl-"  # of its id
    KIND: ClassVar[str] = "chat.completion"
    STREAM: ClassVar[str] = "chat.completion.chunk"

    def __init__(self, model: str, *, include_usage: bool = False) -> None:
        self.id, self._created, self._model = f"{self.PREFIX}{secrets.token_hex(12)}", int(time.time()), model
        self._include_usage = include_usage

    def whole(self, results: Sequence[Result]) -> Document:
        """The response with whole answers."""
        choices = [self._whole(index, result) for index, result in enumerate(results)]
        return self._document(self.KIND, choices, usage=usage(results), triforce=ours(results[0]))

    def first(self, num_answers: int) -> Document:
        """The first event of a stream."""
        begun = {"role": "assistant", "content": ""}
        return self._document(self.STREAM, [self._choice(index, begun) for index in range(num_answers)])

    def part(self, index: int, text: str, thought: str = "", records: Records = None) -> Iterable[Document]:
        """The events for what a round adds to a numbered answer."""
        if thought:
            yield self._document(self.STREAM, [self._choice(index, {"reasoning_content": thought})])
        if text or records:
            yield self._document(self.STREAM, [self._choice(index, {"content": text}, self._logs(index, records))])

    def ended(self, index: int, result: Result) -> Iterable[Document]:
        """The events at the end of an answer."""
        choice = self._choice(index, {}, finish=finish_reason(result.finished))
        yield self._document(self.STREAM, [choice], triforce=ours(result))

    def last(self, results: Sequence[Result]) -> Iterable[Document]:
        """The events at the end of the stream."""
        if self._include_usage:
            yield self._document(self.STREAM, [], usage=usage(results))

    def _whole(self, index: int, result: Result) -> Document:
        finished = result.finished
        message = {"role": "assistant", "content": finished.text, "refusal": None}
        if finished.thought:
            message["reasoning_content"] = finished.thought
        return self._choice(index, message, self._logs(index, result.records), finish_reason(finished), "message")

    def _logs(self, _index: int, records: Records) -> Document | None:
        """Log-probabilities of tokens."""
        if records is None:
            return None

        def one(text: str, logprob: float | None) -> Document:
            whole = text and HALF_CHARACTER not in text
            return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if whole else None}

        content = [
            one(record.text, record.logprob)
            | {"top_logprobs": [one(other.text, other.logprob) for other in record.top]}
            for record in of_text(records)
        ]
        return {"content": content, "refusal": None}

    def _choice(
        self, index: int, told: Document, logs: Document | None = None, finish: str | None = None, name: str = "delta"
    ) -> Document:
        return {"index": index, name: told, "logprobs": logs, "finish_reason": finish}

    def _document(self, kind: str, choices: list[Document], **more: Document) -> Document:
        head = {"id": self.id, "object": kind, "created": self._created, "model": self._model}
        return {**head, "system_fingerprint": None, "choices": choices, **more}


class TextShape(ChatShape):
    """The documents of one response of /v1/completions."""

    PREFIX = "cmpl-"
    KIND = STREAM = "text_completion"

    def __init__(self, model: str, *, include_usage: bool = False) -> None:
        super().__init__(model, include_usage=include_usage)
        self._sent: dict[int, int] = {}  # characters of each answer, for the offsets of tokens

    def _logs(self, index: int, records: Records) -> Document | None:
        at = self._sent.get(index, 0)
        self._sent[index] = at + sum(len(record.text) for record in records or ())
        if records is None:
            return None
        rows = list(of_text(records))
        return {
            "tokens": [row.text for row in rows],
            "token_logprobs": [row.logprob for row in rows],
            "top_logprobs": [{other.text: other.logprob for other in row.top} or None for row in rows],
            "text_offset": [*accumulate((len(row.text) for row in rows), initial=at)][:-1],
        }

    def _choice(
        self, index: int, told: Document, logs: Document | None = None, finish: str | None = None, name: str = "delta"
    ) -> Document:
        more = {name: told[name] for name in told if name == "reasoning_content"}
        return {"index": index, "text": told.get("content", ""), "logprobs": logs, "finish_reason": finish, **more}


class ResponseShape(ChatShape):
    """The documents of one response of /v1/responses: one answer of text alone."""

    PREFIX = "resp_"

    def __init__(self, model: str, *, include_usage: bool = False) -> None:
        super().__init__(model)  # the last event has the usage
        self._text, self._number = "", 0

    def whole(self, results: Sequence[Result]) -> Document:
        """See `ChatShape`."""
        counts = {
            name.replace("prompt", "input").replace("completion", "output"): value
            for name, value in usage(results).items()
        }
        return {**self._response(results[0].finished), "usage": counts, "triforce": ours(results[0])}

    def first(self, num_answers: int) -> Document:
        """See `ChatShape`."""
        return self._event("response.created", response=self._response(None))

    def part(self, index: int, text: str, thought: str = "", records: Records = None) -> Iterable[Document]:
        """See `ChatShape`; thoughts are not told."""
        if text:
            if not self._text:
                yield from self._begun()
            self._text += text
            yield self._event("response.output_text.delta", **self._place, delta=text, logprobs=[])

    def _begun(self) -> Iterator[Document]:
        """The message begins."""
        yield self._event("response.output_item.added", output_index=0, item=self._item("", "in_progress"))
        yield self._event("response.content_part.added", **self._place, part=content(""))

    def ended(self, index: int, result: Result) -> Iterable[Document]:
        """See `ChatShape`."""
        response, text = self.whole([result]), self._text
        if not text:
            yield from self._begun()
        yield self._event("response.output_text.done", **self._place, text=text, logprobs=[])
        yield self._event("response.content_part.done", **self._place, part=content(text))
        yield self._event("response.output_item.done", output_index=0, item=self._item(text, response["status"]))
        yield self._event(f"response.{response['status']}", response=response)

    @property
    def _place(self) -> Document:
        return {"item_id": f"msg_{self.id}", "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> Document:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def _item(self, text: str, status: str) -> Document:
        said = [] if status == "in_progress" else [content(text)]
        return {"id": f"msg_{self.id}", "type": "message", "role": "assistant", "status": status, "content": said}

    def _response(self, finished: Finished | None) -> Document:
        is_cut = finished is not None and finished.stop_reason in ("max_new_tokens", "context_full")
        status = "in_progress" if finished is None else "incomplete" if is_cut else "completed"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "model": self._model,
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


def of_text(records: Sequence[TokenRecord]) -> Iterator[TokenRecord]:
    """The tokens of the answer's text: no others have a log-probability."""
    return (record for record in records if record.logprob is not None)


def finish_reason(finished: Finished) -> str:
    """Why an answer has ended."""
    return "stop" if finished.stop_reason in ("end_of_text", "stop_string") else "length"


def usage(results: Sequence[Result]) -> Document:
    """Tokens read, written, and found in the cache; the prompt counts once."""
    first, thought = results[0].finished, sum(one.finished.stats.thought_tokens for one in results)
    new = sum(one.finished.stats.new_tokens for one in results)
    return {
        "prompt_tokens": first.prompt_tokens,
        "completion_tokens": new,
        "total_tokens": first.prompt_tokens + new,
        "completion_tokens_details": {"reasoning_tokens": thought},
        "prompt_tokens_details": {"cached_tokens": min(first.reused_tokens, first.prompt_tokens)},
    }


def ours(result: Result) -> Document:
    """Method, acceptance and times, for which OpenAI's interface has no field."""
    finished, report = result.finished, answer_report(result.finished)
    return {
        "method": finished.method,
        "exact": finished.exact,
        "seed": result.seed,
        "stop_reason": finished.stop_reason,
        "queue_seconds": round(result.queue_seconds, 4),
        "time_to_first_token_seconds": rounded(result.first_token_seconds, 4),
        "prefill_seconds": round(finished.prefill_seconds, 4),
        "decode_seconds": report["decode_seconds"],
        "tokens_per_second": report["tokens_per_second"],
        **{name: report[name] for name in OURS if name in report},
    }


def event(document: Document) -> bytes:
    """One server-sent event; those of /v1/responses have names."""
    name = f"event: {document['type']}\n" if "type" in document else ""
    return f"{name}data: {json.dumps(document, separators=(',', ':'))}\n\n".encode()


def remark(text: str) -> bytes:
    """A stream comment, which clients skip: it keeps a connection open while a book is read."""
    return b": " + text.encode() + b"\n\n"
