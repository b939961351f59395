"""What a stream sends of a state, applied as the script does: nothing is lost, and what grows is only added to."""

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from app.ui.site import GROWN, changes
from tests.app.ui.pages import applied

NAMES = st.sampled_from(["chat", "live.text", "exchange:a", "exchange:b", "flags"])
TEXTS = st.text("ab é𝄞", max_size=4)
VALUES = st.one_of(
    TEXTS,
    st.lists(st.sampled_from(["a", "b", 1]), max_size=3),
    st.dictionaries(st.sampled_from(["text", "foot"]), TEXTS, max_size=2),
    st.integers(0, 2),
    st.booleans(),
)
STATES = st.dictionaries(NAMES, VALUES, max_size=4)
FALSY: list[Any] = ["", [], {}, 0, False]


@given(st.lists(STATES, max_size=8), st.sets(st.integers(0, 8)))
@example([{"a": one} for one in (*FALSY, *reversed(FALSY))], set())
@example([{"a": "x"}, {}, {"a": "xy"}], {1})
@example([{"a": True}, {"a": 1}, {"a": [1]}, {"a": [1, [2]]}, {"a": "1"}], set())
def test_a_page_that_gets_all_changes_shows_the_state_however_often_it_connects_again(
    states: list[dict[str, Any]], cuts: set[int]
) -> None:
    sent: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    for number, state in enumerate(states):
        if number in cuts:  # the server begins anew, the page keeps nothing
            sent, shown = {}, {}
        told = json.loads(json.dumps(changes(sent, state)))
        shown, sent = applied(shown, told), state
        assert json.dumps(shown, sort_keys=True) == json.dumps(state, sort_keys=True)
        assert changes(state, state) == {}, "nothing is told twice"


@given(STATES, STATES)
def test_only_what_differs_is_told(before: dict[str, Any], after: dict[str, Any]) -> None:
    told = changes(before, after)
    assert {*told} == {
        name
        for name in {*before, *after}
        if json.dumps(before.get(name), sort_keys=True) != json.dumps(after.get(name), sort_keys=True)
    }


@given(st.lists(st.text(max_size=5), min_size=1, max_size=9))
def test_text_that_grows_is_only_added_to(words: list[str]) -> None:
    """All that is sent of an answer together is as long as the answer."""
    told, text, before = "", "", dict[str, Any]()
    for word in words:
        text += word
        change = changes(before, {"live.text": text}).get("live.text", "")
        if isinstance(change, dict):
            assert {*change} == {GROWN}
            change = change[GROWN]
        told, before = told + change, {"live.text": text}
    assert told == text


def test_what_begins_anew_is_told_whole() -> None:
    assert changes({"a": "long text"}, {"a": "long"}) == {"a": "long"}, "it has become shorter"
    assert changes({"a": ""}, {"a": "x"}) == {"a": "x"} and changes({}, {"a": ""}) == {"a": ""}
    assert changes({"a": [1]}, {"a": [1, 2]}) == {"a": {GROWN: [2]}} and changes({"a": 1}, {}) == {"a": None}
