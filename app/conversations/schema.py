"""Conversations as JSON and back: what is exported, and what files of earlier versions hold."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import lru_cache
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from app.conversations.exchange import ID, Exchange
from app.conversations.tree import ROOT, Dialogue, Node, sendable
from core.errors import InvalidSetting

FORMAT = "triforce-conversation"
VERSION = 1
MOST_NODES = 10_000
MOST_MOMENT = 1 << 62  # microseconds since 1970, small enough that a later one always exists
MOST_NUMBER = 1e15
MOST_DIGITS = 9  # of a number used as a key
DIGEST = re.compile("[0-9a-f]{64}|")  # SHA-256
MOST_WHOLE = (1 << 63) - 1
COUNT, SEED = (0, MOST_WHOLE), (-MOST_WHOLE, MOST_WHOLE)
TOKEN = (0, 1 << 8200)  # files of earlier versions have pieces of a server's text as numbers


class NewerVersion(ValueError):
    """It was written by a newer version of the program."""


class Damaged(ValueError):
    """It is not a conversation, or is incomplete."""


def document(dialogue: Dialogue) -> dict[str, Any]:
    """A conversation as a JSON value."""
    return {
        "format": FORMAT,
        "version": VERSION,
        **{field.name: getattr(dialogue, field.name) for field in fields(dialogue)},
        "book": asdict(dialogue.book),
        "nodes": [_node_document(node) for node in dialogue.nodes],
        "removed": sorted(dialogue.removed),
    }


def _node_document(node: Node) -> dict[str, Any]:
    written: dict[str, Any] = {"id": node.id, "parent": node.parent, "asked": node.asked, "question": node.question}
    written["answered"] = node.answered
    if node.exchange is not None:
        written["answer"] = answer_document(node.exchange)
    return written


def answer_document(exchange: Exchange) -> dict[str, Any]:
    """All of an exchange but its question, as a JSON value."""
    answer = asdict(exchange.finished)
    answer["stats"]["seconds_by_part"] = dict(exchange.finished.stats.seconds_by_part)
    return answer | {
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


def load(text: str, dialogue_id: str) -> Dialogue:
    """A conversation from its JSON.

    Raises:
        NewerVersion, Damaged: no other error, whatever the text is.
    """
    try:
        data = json.loads(text)
        if data["format"] != FORMAT or data["id"] != dialogue_id or not ID.fullmatch(dialogue_id):
            raise Damaged("not a conversation of that name")
        if _decoded(int, data["version"]) > VERSION:
            raise NewerVersion("written by a newer version of the reader")
        return _checked(
            _decoded(Dialogue, {**data, "nodes": [_shaped(node) for node in _decoded(list, data["nodes"])]})
        )
    except (Damaged, NewerVersion):
        raise
    except (
        ArithmeticError,
        AttributeError,
        InvalidSetting,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise Damaged("not a conversation") from error


def _shaped(node: Mapping[str, Any]) -> dict[str, Any]:
    """A node's JSON in the shape of `Node`."""
    answer = node.get("answer")
    if answer is None:
        return {**node, "exchange": None}
    own = {"question": node["question"], "finished": answer, "num_reread": answer["reread_tokens"]}
    return {**node, "exchange": {**answer, **own}}


def _checked(dialogue: Dialogue) -> Dialogue:
    if len(dialogue.nodes) > MOST_NODES or not all(map(DIGEST.fullmatch, dialogue.book.documents)):
        raise Damaged("nobody writes that")
    if max(dialogue.titled, *(node.answered for node in dialogue.nodes), 0) > MOST_MOMENT:
        raise Damaged("a time that nobody lives in")
    known = {ROOT}
    for node in dialogue.nodes:
        if node.parent not in known or node.id in known:
            raise Damaged("its branches do not hang together")
        known.add(node.id)
    return dialogue if dialogue.head in known else dialogue.show(ROOT)


def _decoded(kind: Any, value: Any, bounds: tuple[int, int] = COUNT) -> Any:
    """A value of a type: a dataclass, tuple, frozenset, Mapping, Literal, what may be None, or a scalar.

    Raises:
        Damaged, and what Python raises for a value of another shape.
    """
    if kind is str and isinstance(value, str):
        return sendable(value)
    if kind is int and type(value) is int and bounds[0] <= value <= bounds[1]:
        return value
    if kind is float and type(value) in (int, float) and -MOST_NUMBER <= value <= MOST_NUMBER:  # false for NaN, too
        return float(value)
    if kind in (bool, list) and isinstance(value, kind):
        return value
    if is_dataclass(kind):
        names = {name: hint for name, hint in _hints(cast(type, kind)).items() if name in value}
        return cast(Any, kind)(
            **{name: _decoded(hint, value[name], SEED if name == "seed" else COUNT) for name, hint in names.items()}
        )
    origin, args = get_origin(kind), get_args(kind)
    if type(None) in args:
        return None if value is None else _decoded(args[0], value, bounds)
    if origin in (tuple, frozenset) and isinstance(value, list):
        return origin(_decoded(args[0], one, TOKEN) for one in value)
    if origin is Mapping and isinstance(value, dict):
        return {_key(args[0], key): _decoded(args[1], one) for key, one in value.items()}
    if origin is Literal and value in args:
        return value
    raise Damaged(f"no {kind}")


def _key(kind: Any, key: str) -> int | str:
    if kind is str:
        return sendable(key)
    if not key.isdecimal() or len(key) > MOST_DIGITS:
        raise Damaged("no number")
    return int(key)


@lru_cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
