"""Answers in the format of OpenAI's interface, with one object of our own: `triforce`. Pure functions."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, ClassVar

from app.runtime.answer_json import answer_report, rounded
from app.server.openai.turns import Timing
from core.generation.events import Finished, TokenRecord

OURS = ("full_passes", "tokens_per_full_pass", "acceptance", "gamma1_mean", "gamma2_mean", "reselections")
HALF_CHARACTER = "\ufffd"
DONE = b"data: [DONE]\n\n"

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Head:
    """The fields common to all parts of one response."""

    id: str
    created: int  # seconds since 1970
    model: str


@dataclass(slots=True)
class Result:
    """One whole answer to the prompt; a request may want several."""

    finished: Finished
    seed: int
    records: Sequence[TokenRecord] | None = None  # of its text; None: no log-probabilities were asked for


@dataclass(slots=True)
class Part:
    """What a round adds to an answer."""

    index: int  # of the answer
    text: str = ""
    thought: str = ""
    records: Sequence[TokenRecord] | None = None

    def __bool__(self) -> bool:
        return bool(self.text or self.thought or self.records)


@dataclass(slots=True)
class ChatShape:
    """The documents of /v1/chat/completions."""

    PREFIX: ClassVar[str] = "chatcmpl-"  # of its id
    KIND: ClassVar[str] = "chat.completion"
    STREAM: ClassVar[str] = "chat.completion.chunk"

    head: Head
    include_usage: bool

    def whole(self, results: Sequence[Result], timing: Timing) -> Document:
        """The response with whole answers."""
        choices = [self._whole(index, result) for index, result in enumerate(results)]
        return self._document(self.KIND, choices, usage=usage(results), triforce=ours(results[0], timing))

    def first(self) -> Document:
        """The first event of a stream."""
        return self._document(self.STREAM, [self._choice(0, {"role": "assistant", "content": ""})])

    def part(self, part: Part) -> Iterable[Document]:
        """The events for what is new."""
        if part.thought:
            yield self._document(self.STREAM, [self._choice(part.index, {"reasoning_content": part.thought})])
        if part.text or part.records:
            logs = self._logs(part.index, part.records)
            yield self._document(self.STREAM, [self._choice(part.index, {"content": part.text}, logs)])

    def ended(self, index: int, result: Result, timing: Timing) -> Iterable[Document]:
        """The events at the end of an answer."""
        choice = self._choice(index, {}, finish=finish_reason(result.finished))
        yield self._document(self.STREAM, [choice], triforce=ours(result, timing))

    def last(self, results: Sequence[Result]) -> Iterable[Document]:
        """The events at the end of the stream."""
        if self.include_usage:
            yield self._document(self.STREAM, [], usage=usage(results))

    def _whole(self, index: int, result: Result) -> Document:
        finished = result.finished
        message = {"role": "assistant", "content": finished.text, "refusal": None}
        if finished.thought:
            message["reasoning_content"] = finished.thought
        return self._choice(index, message, self._logs(index, result.records), finish_reason(finished), "message")

    def _logs(self, _index: int, records: Sequence[TokenRecord] | None) -> Document | None:
        return chat_logprobs(records)

    def _choice(
        self, index: int, told: Document, logs: Document | None = None, finish: str | None = None, name: str = "delta"
    ) -> Document:
        return {"index": index, name: told, "logprobs": logs, "finish_reason": finish}

    def _document(self, kind: str, choices: list[Document], **more: Document) -> Document:
        head = {"id": self.head.id, "object": kind, "created": self.head.created, "model": self.head.model}
        return {**head, "system_fingerprint": None, "choices": choices, **more}


@dataclass(slots=True)
class TextShape(ChatShape):
    """The documents of /v1/completions."""

    PREFIX = "cmpl-"
    KIND = STREAM = "text_completion"

    _sent: dict[int, int] = field(default_factory=dict)  # characters of each answer, for the offsets of tokens

    def _logs(self, index: int, records: Sequence[TokenRecord] | None) -> Document | None:
        at = self._sent.get(index, 0)
        self._sent[index] = at + sum(len(record.text) for record in records or ())
        return text_logprobs(records, at)

    def _choice(
        self, index: int, told: Document, logs: Document | None = None, finish: str | None = None, name: str = "delta"
    ) -> Document:
        more = {name: told[name] for name in told if name == "reasoning_content"}
        return {"index": index, "text": told.get("content", ""), "logprobs": logs, "finish_reason": finish, **more}


def finish_reason(finished: Finished) -> str:
    """Why an answer has ended."""
    return "stop" if finished.stop_reason in ("end_of_text", "stop_string") else "length"


def chat_logprobs(records: Sequence[TokenRecord] | None) -> Document | None:
    """Log-probabilities of the tokens of an answer, for chat."""
    if records is None:
        return None

    def one(text: str, logprob: float | None) -> Document:
        return {"token": text, "logprob": logprob, "bytes": bytes_of(text)}

    content = [
        {**one(record.text, record.logprob), "top_logprobs": [one(other.text, other.logprob) for other in record.top]}
        for record in _of_text(records)
    ]
    return {"content": content, "refusal": None}


def text_logprobs(records: Sequence[TokenRecord] | None, at: int = 0) -> Document | None:
    """Log-probabilities of the tokens of a text that begins at character `at` of the answer, as /v1/completions has."""
    if records is None:
        return None
    rows = list(_of_text(records))
    return {
        "tokens": [row.text for row in rows],
        "token_logprobs": [row.logprob for row in rows],
        "top_logprobs": [{other.text: other.logprob for other in row.top} or None for row in rows],
        "text_offset": [*accumulate((len(row.text) for row in rows), initial=at)][:-1],
    }


def _of_text(records: Iterable[TokenRecord]) -> Iterator[TokenRecord]:
    return (record for record in records if record.logprob is not None)


def bytes_of(text: str) -> list[int] | None:
    """The bytes of a token's text; None where it is a part of a character."""
    return list(text.encode()) if text and HALF_CHARACTER not in text else None


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


def ours(result: Result, timing: Timing) -> Document:
    """Method, acceptance and times, for which OpenAI's interface has no field."""
    finished, report = result.finished, answer_report(result.finished)
    return {
        "method": finished.method,
        "exact": finished.exact,
        "seed": result.seed,
        "stop_reason": finished.stop_reason,
        "queue_seconds": round(timing.queue_seconds, 4),
        "time_to_first_token_seconds": rounded(timing.first_token_seconds, 4),
        "prefill_seconds": round(finished.prefill_seconds, 4),
        "decode_seconds": report["decode_seconds"],
        "tokens_per_second": report["tokens_per_second"],
        **{name: report[name] for name in OURS if name in report},
    }


def event(document: Document) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def remark(text: str) -> bytes:
    """A stream comment, which clients skip: it keeps a connection open while a book is read."""
    return b": " + text.encode() + b"\n\n"
