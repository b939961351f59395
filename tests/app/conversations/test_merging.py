"""Any two states of a conversation join as their definition says, in whatever order they are written."""

import time
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.conversations import database
from app.conversations.tree import ROOT, Dialogue, Node
from tests.app.conversations.test_tree import a_dialogue, exchange, said
from tests.app.conversations.test_two_programs import answers, continued

Steps = st.lists(st.tuples(st.sampled_from(["ask", "continue", "rename", "remove"]), st.integers(0, 20)), max_size=6)


def walk(dialogue: Dialogue, steps: list[tuple[str, int]], who: str) -> Dialogue:
    """A state that a page arrives at."""
    for number, (step, where) in enumerate(steps):
        ids = [node.id for node in dialogue.nodes]
        if step == "ask":
            parents = [ROOT, *ids]
            dialogue, _ = said(dialogue, f"{who} {number}", parent=parents[where % len(parents)])
        elif step == "rename":
            dialogue = dialogue.rename(f"{who} {number}")
        elif ids:
            at = ids[where % len(ids)]
            longer = exchange(dialogue.nodes[where % len(ids)].question, f"{who} goes on {number}")
            dialogue = (
                dialogue.answer(at, longer) if step == "continue" else dialogue.remove(at if where % len(ids) else ROOT)
            )
    return dialogue


def merged(*states: Dialogue) -> Dialogue:
    """What the database has of states that were written in this order."""
    with database.in_memory() as db:
        for state in states:
            database.write(db, state)
        return database.read(db, states[0].id) or Dialogue.begin(states[0].book, "")


def content(dialogue: Dialogue) -> object:
    """All but the order of nodes, and what is shown."""
    return {node.id: node for node in dialogue.nodes}, dialogue.title, dialogue.titled, dialogue.removed


def merged_slowly(*states: Dialogue) -> object:
    """By definition: newest answers and title, and removed nodes as long as a node follows that was not."""
    nodes: dict[str, Node] = {}
    for state in states:
        for node in state.nodes:
            nodes[node.id] = max(node, nodes.get(node.id, node), key=lambda one: one.answered)
    removed = frozenset[str]().union(*(state.removed for state in states))
    needed = set[str]()
    for node_id in nodes.keys() - removed:
        while node_id:
            needed.add(node_id)
            node_id = nodes[node_id].parent
    titled = max(states, key=lambda state: state.titled)
    left = {node_id: node for node_id, node in nodes.items() if node_id in needed}
    return (left, titled.title, titled.titled, removed) if left else None


@settings(max_examples=100, deadline=None)
@given(states=st.lists(Steps, min_size=2, max_size=3), again=st.integers(0, 2))
def test_states_merge_in_any_order_as_their_definition_says(states: list[list[tuple[str, int]]], again: int) -> None:
    with pytest.MonkeyPatch.context() as patch:  # no two changes at one moment
        patch.setattr(time, "time_ns", count(10**18, 1000).__next__)
        base, one = said(a_dialogue("Never removed?"), "One?", parent=ROOT)
        base, _ = said(said(base, "Two?", parent=one.id)[0], "Three?")
        ours = [walk(base, steps, f"page {number}") for number, steps in enumerate(states)]
    wanted = merged_slowly(base, *ours)
    for order in ((base, *ours), (*reversed(ours), base), (base, *ours, ours[again % len(ours)])):
        found = merged(*order)
        assert (content(found) if found.nodes else None) == wanted
        ids = [node.id for node in found.nodes]
        assert found.head == ROOT or found.head in ids
        for number, node in enumerate(found.nodes):
            assert node.parent in {ROOT, *ids[:number]}, "a node without the one before it"
    assert not wanted or content(merged(found, found)) == wanted


def test_what_comes_back_stands_behind_what_it_follows() -> None:
    """Removed nodes that a database never had are in no order; then an older tab goes on from them."""
    base = a_dialogue("One?")
    above, below = (replace(base.nodes[0], id=name, parent=parent) for name, parent in (("b", base.head), ("a", "b")))
    older, _ = said(replace(base, nodes=(*base.nodes, above, below)), "Further?", parent="a")
    found = merged(replace(base, removed=frozenset("ab")), older)
    assert found.nodes == older.nodes and found.removed == {"a", "b"}


def test_a_clock_that_was_set_back_hides_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    early = a_dialogue("One?").rename("Before")
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    late = continued(early.rename("After"), "Yes, and more.")
    for joined in (merged(late, early), merged(early, late)):
        assert joined.title == "After" and answers(joined)["One?"] == "Yes, and more."
