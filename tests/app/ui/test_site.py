"""A page's state: drawn part by part as keys change, and sent as what has changed of it."""

import json
import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.runtime.sessions import Session
from app.ui import site
from app.ui.site import GROWN, Drawer, Is, Part, changes
from tests.app.fakes import SECONDS, wait_for
from tests.app.ui.pages import applied

ANY: Any = None  # these parts draw nothing of the program


def drawer_of(*parts: Part, session: Session | None = None, tab: str = "read") -> Drawer:
    return Drawer(ANY, session or Session("x"), tab, parts)


# -------------------- drawing


def test_a_part_is_drawn_again_only_when_its_key_changes() -> None:
    drawn, one, other = list[int](), [0], [0]  # the last two are equal
    keys: list[Callable[[], object]] = [lambda: 1, lambda: None, lambda: 1, lambda: Is(one), lambda: Is(other)]

    def draw(*_: object) -> str:
        drawn.append(1)
        return f"drawn {len(drawn)}"

    drawer = drawer_of(Part("a", draw, lambda *_: keys[0]()), Part("b", lambda *_: len(drawn)))
    for number in range(1, 6):  # None is a key as any other, and only the newest drawing is kept
        assert drawer.state() == {"a": f"drawn {number}", "b": number} == drawer.state()
        keys.pop(0)


def test_a_part_rests_between_drawings_and_is_late_until_it_shows_the_last_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, told, session = SimpleNamespace(now=1000.0), ["one"], Session("x")
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(site, "time", clock)
    own = Part("own", lambda *_: told[-1], lambda *_: told[-1], rest=0.5)
    drawer = drawer_of(own, Part("clock", lambda *_: clock.now), session=session)
    assert drawer.state()["own"] == "one" and not drawer.is_late
    told.append("two")
    session.changed()
    clock.now += 0.49
    assert drawer.state() == {"own": "one", "clock": clock.now} and drawer.is_late, "the others do not wait for it"
    for _ in ("its change", "a change of another part"):
        clock.now += 0.5
        assert drawer.state()["own"] == "two" and not drawer.is_late
        session.changed()


def test_what_takes_long_is_there_later_and_the_others_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "ASIDE_SECONDS", 0.02)
    session, gate, drawn = Session("x"), threading.Event(), list[int]()

    def slow(*_: object) -> str:
        drawn.append(1)
        assert gate.wait(SECONDS)
        return "slow"

    drawer = drawer_of(Part("a", slow, lambda *_: 1, aside=True), Part("b", lambda *_: "quick"), session=session)
    assert drawer.state() == drawer.state() == {"b": "quick"} and len(drawn) == 1, "one thread at a time"
    version = session.version
    gate.set()
    wait_for(lambda: session.version > version)
    assert drawer.state() == {"a": "slow", "b": "quick"} and len(drawn) == 1


def test_entries_of_a_part_are_parts_nothing_is_no_part_and_other_tabs_are_not_drawn() -> None:
    shown: list[dict[str, str]] = [{"b": "x", "c": ""}]
    parts = (
        Part("a:", lambda *_: shown[0]),
        Part("d.", lambda *_: {"e": 1}, tab="race"),
        Part("f", lambda *_: None),
        Part("g", lambda *_: ""),
        Part("h", lambda *_: 1, tab="system"),
    )
    drawer = drawer_of(*parts, tab="race")
    assert drawer.state() == {"a:b": "x", "a:c": "", "d.e": 1, "g": ""}
    shown[0] = {}
    assert drawer.state() == {"d.e": 1, "g": ""} and drawer_of(*parts, tab="none").state() == {"g": ""}


def test_a_part_that_fails_keeps_what_it_showed_is_tried_again_and_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fails = [True]

    def tried(*_: object) -> str:
        if fails[0]:
            raise RuntimeError("a bug")
        return "whole"

    parts = (
        Part("a", tried),
        Part("b:", lambda *_: {"x": tried()}),
        Part("c", lambda *_: "c", tried),  # its key fails
        Part("d", tried, lambda *_: "always the same"),
    )
    drawer, whole = drawer_of(*parts), {"a": "whole", "b:x": "whole", "c": "c", "d": "whole"}
    with caplog.at_level(logging.ERROR):
        assert drawer.state() == {"c": "c"}
    assert "the part a could not be drawn" in caplog.text and "the part b: could" in caplog.text
    for fails[0] in (False, True):
        assert drawer.state() == whole, "what it showed last"


# -------------------- what a stream sends of it


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


def as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


@given(st.lists(STATES, max_size=8), st.sets(st.integers(0, 8)))
@example([{"a": one} for one in (*FALSY, *reversed(FALSY))], set())
@example([{"a": "x"}, {}, {"a": "xy"}], {1})
@example([{"a": ""}, {"a": "long"}, {"a": "longer"}, {"a": [1]}, {"a": [1, 2]}, {"a": [2, 1]}], set())
@example([{"a": True}, {"a": 1}, {"a": [1]}, {"a": [1, [2]]}, {"a": "1"}], set())
def test_a_page_that_gets_all_changes_shows_the_state_however_often_it_connects_again(
    states: list[dict[str, Any]], cuts: set[int]
) -> None:
    sent, shown = dict[str, Any](), dict[str, Any]()
    for number, state in enumerate(states):
        if number in cuts:  # the server begins anew, the page keeps nothing
            sent, shown = {}, {}
        told = json.loads(json.dumps(changes(sent, state)))
        differ = {name for name in {*sent, *state} if as_json(sent.get(name)) != as_json(state.get(name))}
        assert {*told} == differ and changes(state, state) == {}, "only that is told"
        for name in differ & {*sent} & {*state}:
            before, after = sent[name], state[name]
            grew = type(before) is type(after) and isinstance(after, str | list) and before == after[: len(before)]
            assert told[name] == ({GROWN: after[len(before) :]} if grew and before else after), "what grew is added to"
        shown, sent = applied(shown, told), state
        assert as_json(shown) == as_json(state)
