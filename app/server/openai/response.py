"""Answers in the format of OpenAI's interface, with one object of our own: `triforce`. Pure functions."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from app.runtime.answer_json import answer_report, rounded
from app.server.openai.turns import Timing
from core.generation.events import Finished, StopReason

FinishReason = Literal["stop", "length"]
FINISH: dict[StopReason, FinishReason] = {
    "end_of_text": "stop",
    "stop_string": "stop",
    "max_new_tokens": "length",
    "context_full": "length",
    "time_up": "length",
    "cancelled": "length",
}
OURS = ("full_passes", "tokens_per_full_pass", "acceptance", "gamma1_mean", "gamma2_mean", "reselections")
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Head:
    """The fields common to all parts of one answer."""

    id: str
    created: int  # seconds since 1970
    model: str


def completion(head: Head, finished: Finished, timing: Timing, seed: int) -> dict[str, Any]:
    """The response with a whole answer."""
    message = {"role": "assistant", "content": finished.text[timing.num_before :], "refusal": None}
    if finished.thought:
        message["reasoning_content"] = finished.thought
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": FINISH[finished.stop_reason],
    }
    return {
        **_head(head, "chat.completion"),
        "choices": [choice],
        "usage": usage(finished),
        "triforce": ours(finished, timing, seed),
    }


def chunk(head: Head, delta: dict[str, str], finish: FinishReason | None = None) -> dict[str, Any]:
    """One part of a streamed answer."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {**_head(head, "chat.completion.chunk"), "choices": [choice]}


def last_chunk(head: Head, finished: Finished, timing: Timing, seed: int) -> dict[str, Any]:
    """The last part of a streamed answer: why it ended, and the `triforce` figures."""
    return {**chunk(head, {}, FINISH[finished.stop_reason]), "triforce": ours(finished, timing, seed)}


def usage_chunk(head: Head, finished: Finished) -> dict[str, Any]:
    """The part that `stream_options.include_usage` asks for."""
    return {**_head(head, "chat.completion.chunk"), "choices": [], "usage": usage(finished)}


def usage(finished: Finished) -> dict[str, Any]:
    """Tokens read, written, and found in the cache."""
    new = finished.stats.new_tokens
    return {
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": new,
        "total_tokens": finished.prompt_tokens + new,
        "completion_tokens_details": {"reasoning_tokens": finished.stats.thought_tokens},
        "prompt_tokens_details": {"cached_tokens": min(finished.reused_tokens, finished.prompt_tokens)},
    }


def ours(finished: Finished, timing: Timing, seed: int) -> dict[str, Any]:
    """Method, acceptance and times, for which OpenAI's interface has no field."""
    stats, report = finished.stats, answer_report(finished)
    found = {
        "method": finished.method,
        "exact": finished.exact,
        "seed": seed,
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


def event(document: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def remark(text: str) -> bytes:
    """A stream comment, which clients skip: it keeps a connection open while a book is read."""
    return b": " + text.encode() + b"\n\n"


def _head(head: Head, kind: str) -> dict[str, Any]:
    return {"id": head.id, "object": kind, "created": head.created, "model": head.model, "system_fingerprint": None}
