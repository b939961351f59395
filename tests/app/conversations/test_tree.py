"""Conversations as trees, and as JSON."""

import json
from dataclasses import replace
from typing import Any

import pytest

from app.conversations.exchange import Exchange
from app.conversations.export import as_json
from app.conversations.schema import MOST_MOMENT, Damaged, load
from app.conversations.tree import ROOT, BookRef, Dialogue, Node, title_of
from core.config import SamplingParams
from tests.app.fakes import finished

EVIL = '"><img src=x onerror=alert(1)>\n\u202e\ud800'
BOOK = BookRef(names=("book.txt",), title="A book", digest="ab" * 32, num_tokens=8123)


def exchange(question: str, text: str) -> Exchange:
    return Exchange(
        question,
        finished(text),
        first_token_seconds=0.4,
        num_reread=3,
        methods=("triforce", "autoregressive"),
        sampling=SamplingParams(temperature=0.6, top_p=0.9, top_k=40),
        seed=2**40,
        model="fake",
        weights="float32",
    )


def said(dialogue: Dialogue, question: str, text: str = "Yes.", parent: str | None = None) -> tuple[Dialogue, Node]:
    dialogue, node = dialogue.ask(dialogue.tip if parent is None else parent, question)
    return dialogue.answer(node.id, exchange(question, text)), node


def a_dialogue(*questions: str) -> Dialogue:
    dialogue = Dialogue.begin(BOOK, questions[0] if questions else "?", tab="0123")
    for question in questions:
        dialogue, _ = said(dialogue, question)
    return dialogue


def shown(dialogue: Dialogue) -> list[str]:
    return [node.question for node in dialogue.path]


def test_deleting_takes_what_follows_and_shows_what_is_left() -> None:
    dialogue = a_dialogue("One?", "Two?", "Three?")
    first, second, _ = dialogue.path
    dialogue, _ = said(dialogue, "Two again?", parent=first.id)
    both = dialogue.show(dialogue.newest_below(second.id)).remove(second.id)
    assert shown(both) == ["One?", "Two again?"] and len(both.nodes) == 2
    assert dialogue.show(first.id).remove(second.id).head == first.id, "what is shown stays where it is not removed"
    assert dialogue.remove(first.id).nodes == () and dialogue.remove("unknown").nodes == dialogue.nodes


def test_an_unanswered_question_is_shown_and_not_followed() -> None:
    dialogue = a_dialogue("One?")
    dialogue, node = dialogue.ask(dialogue.tip, "Two?")
    assert shown(dialogue) == ["One?", "Two?"] and dialogue.tip == dialogue.path[0].id != node.id
    assert [one.question for one in dialogue.exchanges] == ["One?"]


@pytest.mark.parametrize(
    ("text", "title"),
    [("  What\n is it? ", "What is it?"), ("", ""), ("a\u202eb\x00c", "a b c"), ("x" * 100, "x" * 79 + "…")],
)
def test_a_title_is_one_line(text: str, title: str) -> None:
    assert title_of(text) == title


# -------------------- JSON


def test_a_conversation_survives_the_round_trip() -> None:
    dialogue = a_dialogue(EVIL, "Two?")
    dialogue, _ = said(dialogue, "Branch?", EVIL, parent=dialogue.path[0].id)
    dialogue, _ = dialogue.ask(dialogue.tip, "Unanswered")
    read = load(as_json(dialogue), dialogue.id)
    lost = exchange(EVIL.replace("\ud800", "\ufffd"), EVIL.replace("\ud800", "\ufffd"))
    assert [node.question for node in read.nodes] == [lost.question, "Two?", "Branch?", "Unanswered"]
    assert read.nodes[2].exchange is not None and read.nodes[2].exchange.finished == lost.finished
    assert load(as_json(read), dialogue.id) == read, "but for halves of characters, which no page can show"


def test_what_merges_two_states_is_written_and_files_without_it_are_read() -> None:
    dialogue = a_dialogue("One?", "Two?").rename("Another title").remove("unknown")
    dialogue = dialogue.remove(dialogue.path[1].id)
    assert dialogue.titled and dialogue.nodes[0].answered and len(dialogue.removed) == 1
    assert load(as_json(dialogue), dialogue.id) == dialogue
    old = json.loads(as_json(dialogue))
    told = {"names", "title", "digest", "num_tokens", "parts", "documents", "choices"}
    assert set(old["book"]) == told, "and nothing of the book's text"
    del old["titled"], old["removed"], old["nodes"][0]["answered"]
    read = load(json.dumps(old), dialogue.id)
    assert read.titled == 0 == read.nodes[0].answered and read.removed == frozenset()


def changed(path: tuple[Any, ...], value: object) -> str:
    """A conversation's JSON with another value at one place; None: without that key."""
    data = json.loads(as_json(DIALOGUE))
    place = data
    for key in path[:-1]:
        place = place[key]
    if value is None and isinstance(place, dict):
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(data)


DIALOGUE = a_dialogue("One?", "Two?")


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "null", "[]", "[" * 100_000, as_json(DIALOGUE)[:-40],
        changed(("version",), 1).replace('"version": 1', '"version": ' + "1" * 5_000),
        *(changed(path, value) for path, value in (
            (("format",), "something else"), (("version",), "1"), (("version",), True), (("id",), "f" * 32),
            (("title",), 3), (("book",), None), (("book", "names"), [1]), (("nodes", 0), 3),
            (("nodes", 0, "parent"), "unknown"), (("nodes", 1, "id"), DIALOGUE.nodes[0].id),
            (("nodes",), [DIALOGUE.nodes[0].id] * 20_000), (("nodes", 0, "answered"), MOST_MOMENT + 1),
            (("titled",), -1), (("removed",), [1]),
        )),
        *(changed(("nodes", 0, "answer", *path), value) for path, value in (
            (("token_ids",), [-1]), (("token_ids",), [1.5]), (("exact",), 1), (("stop_reason",), "boredom"),
            (("prefill_seconds",), float("nan")), (("sampling", "top_p"), 7), (("stats", "new_tokens"), -1),
            (("stats", "level1", "committed_per_round"), {"x": 1}),
            (("stats", "level1", "committed_per_round"), {"9" * 5_000: 1}),
        )),
    ],
    ids=range(30),
)  # fmt: skip
def test_what_is_not_a_conversation_is_damaged(text: str) -> None:
    with pytest.raises(Damaged):
        load(text, DIALOGUE.id)


def test_a_lost_head_shows_nothing_and_loses_nothing() -> None:
    dialogue = load(as_json(replace(DIALOGUE, head="gone")), DIALOGUE.id)
    assert dialogue.head == ROOT and dialogue.nodes == DIALOGUE.nodes
