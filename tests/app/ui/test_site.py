"""The drawing of a page: parts by their keys, at most as often as they may, and one that fails alone."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from app.runtime.sessions import Session
from app.ui import site
from app.ui.page import PARTS
from app.ui.site import Drawer, Is, Part
from tests.app.fakes import wait_for

ANY: Any = None  # these parts draw nothing of the program


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(site, "time", clock)
    return clock


def counted(value: Callable[[], Any]) -> tuple[list[Any], Callable[..., Any]]:
    """What was drawn, and how it is drawn."""
    drawn: list[Any] = []

    def draw(*_: object) -> Any:
        drawn.append(value())
        return drawn[-1]

    return drawn, draw


def test_a_part_is_drawn_again_only_when_its_key_changes() -> None:
    key: list[object] = [1]
    drawn, draw = counted(lambda: f"drawn {len(drawn)}")
    drawer = Drawer(ANY, Session("x"), "read", (Part("a", draw, lambda *_: key[0]), Part("b", lambda *_: len(drawn))))
    assert drawer.state() == {"a": "drawn 0", "b": 1} == drawer.state()
    key[0] = None
    assert drawer.state() == {"a": "drawn 1", "b": 2} == drawer.state(), "None is a key as any other"
    key[0] = 1
    assert drawer.state()["a"] == "drawn 2", "only the newest is kept"
    assert Drawer(ANY, Session("x"), "read", (Part("a", draw, lambda *_: None),)).state() == {"a": "drawn 3"}


def test_a_part_rests_between_two_drawings_and_then_shows_the_newest(clock: Clock) -> None:
    now = ["first"]
    drawn, draw = counted(lambda: now[0])
    drawer = Drawer(ANY, Session("x"), "read", (Part("a", draw, rest=0.5), Part("b", lambda *_: clock.now)))
    assert drawer.state()["a"] == "first"
    now[0], clock.now = "second", clock.now + 0.49
    assert drawer.state() == {"a": "first", "b": clock.now}, "the others do not wait for it"
    clock.now += 0.01
    assert drawer.state()["a"] == "second" and drawn == ["first", "second"]


def test_a_part_that_rests_is_late_as_long_as_it_has_not_shown_the_last_change(clock: Clock) -> None:
    told, session = ["one"], Session("x")
    drawer = Drawer(ANY, session, "read", (Part("one", lambda *_: told[-1], lambda *_: told[-1], rest=0.5),))
    assert drawer.state() == {"one": "one"} and not drawer.is_late
    told.append("two")
    session.changed()
    assert drawer.state() == {"one": "one"} and drawer.is_late
    clock.now += 0.5
    assert drawer.state() == {"one": "two"} and not drawer.is_late
    session.changed()
    clock.now += 0.5
    assert drawer.state() == {"one": "two"} and not drawer.is_late, "the change was another part’s"


def test_a_key_of_an_object_is_that_object_alone() -> None:
    class Equal:
        def __eq__(self, other: object) -> bool:
            return True

    one, other = Equal(), Equal()
    assert Is(one) == Is(one) != Is(other) and Is(None) == Is(None) and Is(one) != one


def test_what_takes_long_is_there_later_and_the_others_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "ASIDE_SECONDS", 0.02)
    session, gate, drawn = Session("x"), threading.Event(), []

    def slow(*_: object) -> str:
        drawn.append(1)
        assert gate.wait(30)
        return "slow"

    drawer = Drawer(ANY, session, "read", (Part("a", slow, lambda *_: 1, aside=True), Part("b", lambda *_: "quick")))
    assert drawer.state() == drawer.state() == {"b": "quick"} and len(drawn) == 1, "one thread at a time"
    version = session.version
    gate.set()
    wait_for(lambda: session.version > version)
    assert drawer.state() == {"a": "slow", "b": "quick"} and len(drawn) == 1


def test_entries_of_a_part_are_parts_and_nothing_is_no_part() -> None:
    shown: list[dict[str, str]] = [{"b": "x", "c": ""}]
    parts = (Part("a:", lambda *_: shown[0]), Part("d.", lambda *_: {"e": 1}), Part("f", lambda *_: None))
    drawer = Drawer(ANY, Session("x"), "read", (*parts, Part("g", lambda *_: "")))
    assert drawer.state() == {"a:b": "x", "a:c": "", "d.e": 1, "g": ""}
    shown[0] = {}
    assert drawer.state() == {"d.e": 1, "g": ""}


def test_only_the_parts_of_the_tab_are_drawn() -> None:
    parts = (Part("a", lambda *_: 1), Part("b", lambda *_: 2, tab="race"), Part("c", lambda *_: 3, tab="system"))
    assert Drawer(ANY, Session("x"), "race", parts).state() == {"a": 1, "b": 2}
    assert Drawer(ANY, Session("x"), "no such tab", parts).state() == {"a": 1}


def test_a_part_that_fails_keeps_what_it_showed_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    broken: list[bool] = [True]

    def draw(*_: object) -> str:
        if broken[0]:
            raise RuntimeError("a bug")
        return "whole"

    parts = (Part("a", draw), Part("b:", lambda *_: {"x": draw()}), Part("c", lambda *_: "c"))
    drawer = Drawer(ANY, Session("x"), "read", parts)
    with caplog.at_level(logging.ERROR):
        assert drawer.state() == {"c": "c"}
    assert "the part a could not be drawn" in caplog.text and "the part b: could" in caplog.text
    broken[0] = False
    whole = {"a": "whole", "b:x": "whole", "c": "c"}
    assert drawer.state() == whole
    broken[0] = True
    assert drawer.state() == whole, "what it showed last"


def test_a_key_that_fails_ends_nothing_and_what_failed_is_tried_again() -> None:
    fails = [True]

    def tried(*_: object) -> object:
        if fails[0]:
            raise RuntimeError("a bug")
        return 1

    parts = (Part("a", tried, tried), Part("b", lambda *_: 2), Part("c", tried, lambda *_: "always the same"))
    drawer = Drawer(ANY, Session("x"), "read", parts)
    assert drawer.state() == {"b": 2}
    fails[0] = False
    assert drawer.state() == {"a": 1, "b": 2, "c": 1}


def test_no_two_parts_of_the_page_have_one_name() -> None:
    names = [part.name for part in PARTS]
    assert len(names) == len({*names}) and {part.tab for part in PARTS} == {"", "library", "race", "inside", "system"}
