"""Conversations as JSON and back: one versioned schema; every field is checked when read.

A file of a newer version is distinguished from a damaged one: only a newer program can read the first.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast, get_args

from app.conversations.exchange import ID, Exchange
from app.conversations.tree import ROOT, BookRef, Dialogue, Node, sendable
from core.config import SamplingParams
from core.decoding.stats import DecodeStats, LevelStats
from core.errors import InvalidSetting
from core.generation.events import Finished, StopReason

FORMAT = "triforce-conversation"
VERSION = 1
MOST_NODES = 10_000
MOST_WHOLE = (1 << 63) - 1  # the largest seed that can be stored
MOST_TOKEN_BITS = 8200  # files of earlier versions have pieces of a server's text as numbers
MOST_MOMENT = 1 << 62  # microseconds since 1970, small enough that a later one always exists
MOST_NUMBER = 1e15
MOST_DIGITS = 9  # of a number used as a key
DIGEST = re.compile("[0-9a-f]{64}|")  # SHA-256


class NewerVersion(ValueError):
    """The file was written by a newer version of the program."""


class Damaged(ValueError):
    """The file is not a conversation, or is incomplete."""


def dump(dialogue: Dialogue) -> str:
    """The file's text."""
    return json.dumps(document(dialogue), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def document(dialogue: Dialogue) -> dict[str, Any]:
    """A conversation as a JSON value."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "id": dialogue.id,
        "title": dialogue.title,
        "titled": dialogue.titled,
        "created": dialogue.created,
        "changed": dialogue.changed,
        "tab": dialogue.tab,
        "book": asdict(dialogue.book),
        "head": dialogue.head,
        "nodes": [_node_document(node) for node in dialogue.nodes],
        "removed": sorted(dialogue.removed),
    }


def _node_document(node: Node) -> dict[str, Any]:
    written: dict[str, Any] = {"id": node.id, "parent": node.parent, "asked": node.asked, "question": node.question}
    written["answered"] = node.answered
    exchange = node.exchange
    if exchange is not None:
        answer = asdict(exchange.finished)
        answer["stats"]["seconds_by_part"] = dict(exchange.finished.stats.seconds_by_part)
        answer |= {
            "first_token_seconds": exchange.first_token_seconds,
            "reread_tokens": exchange.num_reread,
            "methods": exchange.methods,
            "sampling": asdict(exchange.sampling) if exchange.sampling else None,
            "seed": exchange.seed,
            "model": exchange.model,
            "weights": exchange.weights,
            "digest": exchange.digest,
            "thinking": exchange.thinking,
        }
        written["answer"] = answer
    return written


def load(text: str, dialogue_id: str) -> Dialogue:
    """A conversation from the text of its file.

    Raises:
        NewerVersion, Damaged: no other error, whatever the text is.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged("not JSON") from error
    try:
        return _dialogue(data, dialogue_id)
    except (Damaged, NewerVersion):
        raise
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise Damaged("a value that nobody writes") from error


def _dialogue(data: object, dialogue_id: str) -> Dialogue:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise Damaged("not a conversation")
    if _whole(data, "version") > VERSION:
        raise NewerVersion(f"version {data['version']}")
    if data.get("id") != dialogue_id or not ID.fullmatch(dialogue_id):
        raise Damaged("the file has another conversation's name")
    entries = _list(data, "nodes")
    if len(entries) > MOST_NODES:
        raise Damaged("more questions than anybody asks")
    nodes = tuple(map(_node, entries))
    known = {ROOT}
    for node in nodes:
        if node.parent not in known or node.id in known:
            raise Damaged("its branches do not hang together")
        known.add(node.id)
    head = _text(data, "head")
    return Dialogue(
        id=dialogue_id,
        book=_book(_object(data, "book")),
        title=_text(data, "title"),
        created=_text(data, "created"),
        changed=_text(data, "changed"),
        tab=_text(data, "tab"),
        nodes=nodes,
        head=head if head in known else ROOT,
        titled=_moment(data, "titled"),
        removed=frozenset(_texts(data, "removed")) if "removed" in data else frozenset(),
    )


def _book(data: Mapping[str, Any]) -> BookRef:
    return BookRef(
        names=_texts(data, "names"),
        title=_text(data, "title"),
        digest=_text(data, "digest"),
        num_tokens=_whole(data, "num_tokens"),
        parts=_texts(data, "parts") if "parts" in data else (),
        documents=_digests(data, "documents") if "documents" in data else (),
        choices=_texts(data, "choices") if "choices" in data else (),
    )


def _node(data: object) -> Node:
    if not isinstance(data, dict):
        raise Damaged("nodes")
    question, answer = _text(data, "question"), data.get("answer")
    exchange = None if answer is None else _exchange(question, _object(data, "answer"))
    return Node(
        id=_text(data, "id"),
        parent=_text(data, "parent"),
        asked=_text(data, "asked"),
        question=question,
        exchange=exchange,
        answered=_moment(data, "answered"),
    )


def _exchange(question: str, data: Mapping[str, Any]) -> Exchange:
    reason = _text(data, "stop_reason")
    if reason not in get_args(StopReason):
        raise Damaged("stop_reason")
    exact = data.get("exact")
    if not isinstance(exact, bool):
        raise Damaged("exact")
    finished = Finished(
        text=_text(data, "text"),
        token_ids=_token_ids(data),
        stop_reason=cast(StopReason, reason),
        stats=_stats(_object(data, "stats")),
        prompt_tokens=_whole(data, "prompt_tokens"),
        reused_tokens=_whole(data, "reused_tokens"),
        prefill_seconds=_number(data, "prefill_seconds"),
        method=_text(data, "method"),
        exact=exact,
        thought=_text(data, "thought") if "thought" in data else "",
        in_thought=data.get("in_thought") is True,
    )
    return Exchange(
        question,
        finished,
        first_token_seconds=None if data.get("first_token_seconds") is None else _number(data, "first_token_seconds"),
        num_reread=_whole(data, "reread_tokens"),
        methods=_texts(data, "methods"),
        sampling=None if data.get("sampling") is None else _sampling(_object(data, "sampling")),
        seed=None if data.get("seed") is None else _integer(data.get("seed"), "seed"),
        model=_text(data, "model"),
        weights=_text(data, "weights"),
        digest=_text(data, "digest") if "digest" in data else "",
        thinking=None if data.get("thinking") is None else _text(data, "thinking"),
    )


def _sampling(data: Mapping[str, Any]) -> SamplingParams:
    try:
        return SamplingParams(
            temperature=_number(data, "temperature"), top_p=_number(data, "top_p"), top_k=_whole(data, "top_k")
        )
    except InvalidSetting as error:
        raise Damaged("sampling") from error


def _stats(data: Mapping[str, Any]) -> DecodeStats:
    parts = _object(data, "seconds_by_part")
    return DecodeStats(
        new_tokens=_whole(data, "new_tokens"),
        decode_seconds=_number(data, "decode_seconds"),
        full_passes=_whole(data, "full_passes"),
        level1=_level(data, "level1"),
        level2=_level(data, "level2"),
        seconds_by_part={sendable(name): _number(parts, name) for name in parts},
        kv_bytes_read=_whole(data, "kv_bytes_read"),
        kv_bytes_read_plain=_whole(data, "kv_bytes_read_plain"),
        reselections=_whole(data, "reselections"),
        thought_tokens=_whole(data, "thought_tokens") if "thought_tokens" in data else 0,
        thought_seconds=_number(data, "thought_seconds") if "thought_seconds" in data else 0.0,
        recording_seconds=_number(data, "recording_seconds") if "recording_seconds" in data else 0.0,
    )


def _level(data: Mapping[str, Any], key: str) -> LevelStats | None:
    if data.get(key) is None:
        return None
    level = _object(data, key)
    committed = _object(level, "committed_per_round")
    if not all(size.isdecimal() and len(size) <= MOST_DIGITS for size in committed):
        raise Damaged("committed_per_round")
    return LevelStats(
        rounds=_whole(level, "rounds"),
        guessed=_whole(level, "guessed"),
        tested=_whole(level, "tested"),
        accepted=_whole(level, "accepted"),
        tested_at=_wholes(level, "tested_at"),
        accepted_at=_wholes(level, "accepted_at"),
        committed_per_round={int(size): _whole(committed, size) for size in committed},
    )


# -------------------- single fields


def _object(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    if not isinstance(value, dict):
        raise Damaged(key)
    return value


def _list(data: Mapping[str, Any], key: str) -> list[Any]:
    value = data.get(key)
    if not isinstance(value, list):
        raise Damaged(key)
    return value


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str):
        raise Damaged(key)
    return sendable(value)


def _texts(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = _list(data, key)
    if not all(isinstance(value, str) for value in values):
        raise Damaged(key)
    return tuple(map(sendable, values))


def _digests(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = _texts(data, key)
    if not all(DIGEST.fullmatch(value) for value in values):
        raise Damaged(key)
    return values


def _integer(value: object, key: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > MOST_WHOLE:
        raise Damaged(key)
    return value


def _whole(data: Mapping[str, Any], key: str) -> int:
    value = _integer(data.get(key), key)
    if value < 0:
        raise Damaged(key)
    return value


def _moment(data: Mapping[str, Any], key: str) -> int:
    """Microseconds since 1970; 0 if the field is missing."""
    value = _whole(data, key) if key in data else 0
    if value > MOST_MOMENT:
        raise Damaged(key)
    return value


def _wholes(data: Mapping[str, Any], key: str) -> tuple[int, ...]:
    values = _list(data, key)
    if not all(type(value) is int and 0 <= value <= MOST_WHOLE for value in values):
        raise Damaged(key)
    return tuple(values)


def _token_ids(data: Mapping[str, Any]) -> tuple[int, ...]:
    """The token ids; only the model can say whether they exist."""
    values = _list(data, "token_ids")
    if not all(type(value) is int and value >= 0 and value.bit_length() <= MOST_TOKEN_BITS for value in values):
        raise Damaged("token_ids")
    return tuple(values)


def _number(data: Mapping[str, Any], key: str) -> float:
    value = data.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Damaged(key)
    if not -MOST_NUMBER <= value <= MOST_NUMBER:  # the comparison is false for NaN too
        raise Damaged(key)
    return float(value)
