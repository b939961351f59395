"""Conversations as JSON and back: what is exported, and what files of earlier versions hold."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from app.conversations.exchange import ID, Exchange
from app.conversations.tree import ROOT, Dialogue, Node, sendable
from core.errors import InvalidSetting

FORMAT = "triforce-conversation"
VERSION = 1
AS_THEY_ARE = ("first_token_seconds", "methods", "seed", "model", "weights", "digest", "thinking")  # of an exchange
MOST_NODES = 10_000
MOST_MOMENT = 1 << 62  # microseconds since 1970, small enough that a later one always exists
MOST_NUMBER = 1e15  # with a fraction
DIGEST = re.compile("[0-9a-f]{64}|")  # SHA-256
MOST_WHOLE = (1 << 63) - 1
COUNT = (0, MOST_WHOLE)
BOUNDS = {  # of whole numbers that are no counts, by their key
    "seed": (-MOST_WHOLE, MOST_WHOLE),
    "token_ids": (0, 1 << 8200),  # files of earlier versions have pieces of a server's text as numbers
}


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
    written = {name: getattr(node, name) for name in ("id", "parent", "asked", "question", "answered")}
    return written | ({"answer": answer_document(node.exchange)} if node.exchange is not None else {})


def answer_document(exchange: Exchange) -> dict[str, Any]:
    """All of an exchange but its question, as a JSON value."""
    answer = asdict(exchange.finished)
    answer["stats"]["seconds_by_part"] = dict(exchange.finished.stats.seconds_by_part)
    return answer | {
        "reread_tokens": exchange.num_reread,
        "sampling": asdict(exchange.sampling) if exchange.sampling else None,
        **{name: getattr(exchange, name) for name in AS_THEY_ARE},
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
        version = data["version"]
        if type(version) is int and version > VERSION:
            raise NewerVersion("written by a newer version of the reader")
        if type(version) is not int or not _in_bounds(data):
            raise Damaged("numbers that nobody counts to")
        shaped = json.dumps({**data, "nodes": [_shaped(node) for node in data["nodes"]]}, ensure_ascii=False)
        return _checked(_dialogues().validate_json(sendable(shaped), strict=True))
    except (Damaged, NewerVersion):
        raise
    except (AttributeError, InvalidSetting, LookupError, RecursionError, TypeError, ValueError) as error:
        raise Damaged("not a conversation") from error


def _in_bounds(value: Any, bounds: tuple[int, int] = COUNT) -> bool:
    """Every number inside of a JSON value is one that pages and the database can do with; NaN is none."""
    if isinstance(value, dict):
        return all(_in_bounds(one, BOUNDS.get(key, COUNT)) for key, one in value.items())
    if isinstance(value, list):
        return all(_in_bounds(one, bounds) for one in value)
    if isinstance(value, float):
        return -MOST_NUMBER <= value <= MOST_NUMBER
    return not isinstance(value, int) or bounds[0] <= value <= bounds[1]


@cache
def _dialogues() -> TypeAdapter[Dialogue]:
    return TypeAdapter(Dialogue)


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
