"""Answers in the format of OpenAI's interface, with one object of our own: `triforce`. Pure functions.

A `Shape` is how one of the addresses answers: /v1/chat/completions, /v1/completions, and /v1/responses in `responses`.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from app.runtime.answer_json import answer_report, rounded
from app.server.openai.turns import Timing
from core.generation.events import Finished, StopReason, TokenRecord

FinishReason = Literal["stop", "length"]
FINISH: dict[StopReason, FinishReason] = {
    "end_of_text": "stop",
    "stop_string": "stop",
    "max_new_tokens": "length",
    "context_full": "length",
    "repeating": "length",
    "time_up": "length",
    "cancelled": "length",
}
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


class Shape(Protocol):
    """The documents of one kind of response."""

    def whole(self, results: Sequence[Result], timing: Timing) -> Document:
        """The response with whole answers."""

    def first(self) -> Document:
        """The first event of a stream."""

    def part(self, part: Part) -> Iterable[Document]:
        """The events for what is new."""

    def ended(self, index: int, result: Result, timing: Timing) -> Iterable[Document]:
        """The events at the end of an answer."""

    def last(self, results: Sequence[Result]) -> Iterable[Document]:
        """The events at the end of the stream."""


@dataclass(slots=True)
class ChatShape:
    """/v1/chat/completions."""

    head: Head
    include_usage: bool

    def whole(self, results: Sequence[Result], timing: Timing) -> Document:
        """See `Shape`."""
        choices = [self._choice(index, result, timing) for index, result in enumerate(results)]
        return _whole(self.head, "chat.completion", choices, results, timing)

    def _choice(self, index: int, result: Result, timing: Timing) -> Document:
        finished = result.finished
        message = {"role": "assistant", "content": finished.text[timing.num_before :], "refusal": None}
        if finished.thought:
            message["reasoning_content"] = finished.thought
        logs = chat_logprobs(result.records)
        return {"index": index, "message": message, "logprobs": logs, "finish_reason": FINISH[finished.stop_reason]}

    def first(self) -> Document:
        """See `Shape`."""
        return self._chunk(0, {"role": "assistant", "content": ""})

    def part(self, part: Part) -> Iterable[Document]:
        """See `Shape`."""
        if part.thought:
            yield self._chunk(part.index, {"reasoning_content": part.thought})
        if part.text or part.records:
            yield self._chunk(part.index, {"content": part.text}, logprobs=chat_logprobs(part.records))

    def ended(self, index: int, result: Result, timing: Timing) -> Iterable[Document]:
        """See `Shape`."""
        last = self._chunk(index, {}, finish_reason=FINISH[result.finished.stop_reason])
        yield {**last, "triforce": ours(result, timing)}

    def last(self, results: Sequence[Result]) -> Iterable[Document]:
        """See `Shape`."""
        if self.include_usage:
            yield {**_head(self.head, "chat.completion.chunk"), "choices": [], "usage": usage(results)}

    def _chunk(self, index: int, delta: dict[str, str], **more: Any) -> Document:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        return {**_head(self.head, "chat.completion.chunk"), "choices": [choice]}


@dataclass(slots=True)
class TextShape:
    """/v1/completions."""

    head: Head
    include_usage: bool
    _sent: dict[int, int] = field(default_factory=dict)  # characters of each answer, for the offsets of tokens

    def whole(self, results: Sequence[Result], timing: Timing) -> Document:
        """See `Shape`."""
        choices = [
            self._choice(index, one.finished.text, one.records, FINISH[one.finished.stop_reason], one.finished.thought)
            for index, one in enumerate(results)
        ]
        return _whole(self.head, "text_completion", choices, results, timing)

    def first(self) -> Document:
        """See `Shape`."""
        return {**_head(self.head, "text_completion"), "choices": [self._choice(0, "")]}

    def part(self, part: Part) -> Iterable[Document]:
        """See `Shape`."""
        choice = self._choice(part.index, part.text, part.records, thought=part.thought)
        yield {**_head(self.head, "text_completion"), "choices": [choice]}

    def ended(self, index: int, result: Result, timing: Timing) -> Iterable[Document]:
        """See `Shape`."""
        choice = self._choice(index, "", finish=FINISH[result.finished.stop_reason])
        yield {**_head(self.head, "text_completion"), "choices": [choice], "triforce": ours(result, timing)}

    def last(self, results: Sequence[Result]) -> Iterable[Document]:
        """See `Shape`."""
        if self.include_usage:
            yield {**_head(self.head, "text_completion"), "choices": [], "usage": usage(results)}

    def _choice(
        self,
        index: int,
        text: str,
        records: Sequence[TokenRecord] | None = None,
        finish: FinishReason | None = None,
        thought: str = "",
    ) -> Document:
        at = self._sent.get(index, 0)
        logs = text_logprobs(records, at)
        self._sent[index] = at + sum(len(record.text) for record in records or ())
        choice: Document = {"index": index, "text": text, "logprobs": logs, "finish_reason": finish}
        return {**choice, "reasoning_content": thought} if thought else choice


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
    found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for record in _of_text(records):
        found["tokens"].append(record.text)
        found["token_logprobs"].append(record.logprob)
        found["top_logprobs"].append({other.text: other.logprob for other in record.top} or None)
        found["text_offset"].append(at)
        at += len(record.text)
    return found


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
    finished = result.finished
    stats, report = finished.stats, answer_report(finished)
    found = {
        "method": finished.method,
        "exact": finished.exact,
        "seed": result.seed,
        "stop_reason": finished.stop_reason,
        "queue_seconds": round(timing.queue_seconds, 4),
        "time_to_first_token_seconds": rounded(timing.first_token_seconds, 4),
        "prefill_seconds": round(finished.prefill_seconds, 4),
        "decode_seconds": report["decode_seconds"],
        "tokens_per_second": report["tokens_per_second"],
        "reread_tokens": timing.num_reread,
        **{name: report[name] for name in OURS if name in report},
    }
    levels = {"level1": stats.level1, "level2": stats.level2}
    found["counts"] = {
        name: {"rounds": one.rounds, "guessed": one.guessed, "tested": one.tested, "accepted": one.accepted}
        for name, one in levels.items()
        if one is not None
    }
    return found


def event(document: Document) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def remark(text: str) -> bytes:
    """A stream comment, which clients skip: it keeps a connection open while a book is read."""
    return b": " + text.encode() + b"\n\n"


def _whole(head: Head, kind: str, choices: list[Document], results: Sequence[Result], timing: Timing) -> Document:
    both = {"usage": usage(results), "triforce": ours(results[0], timing)}
    return {**_head(head, kind), "choices": choices, **both}


def _head(head: Head, kind: str) -> Document:
    return {"id": head.id, "object": kind, "created": head.created, "model": head.model, "system_fingerprint": None}
