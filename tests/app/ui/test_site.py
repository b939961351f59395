"""The drawing of a page's parts: which are drawn, when, and that the last change is not left out."""

import threading
import time

from app.runtime.worker import EngineWorker
from app.ui.site import Drawer, Part, Site
from tests.app.fakes import SECONDS


def test_a_part_that_rests_is_late_as_long_as_it_has_not_shown_the_last_change(worker: EngineWorker) -> None:
    session = worker.sessions.enter("")
    told = ["one"]
    part = Part("one", lambda _, __: told[-1], lambda _, __: told[-1], rest=0.05)
    drawer = Drawer(Site(worker), session, "read", (part,))
    assert drawer.state() == {"one": "one"} and not drawer.is_late
    told.append("two")
    session.changed()
    assert drawer.state() == {"one": "one"} and drawer.is_late
    time.sleep(part.rest)
    assert drawer.state() == {"one": "two"} and not drawer.is_late
    session.changed()
    assert drawer.state() == {"one": "two"} and not drawer.is_late, "the change was another part’s"


def test_a_part_that_cannot_be_drawn_leaves_the_others(worker: EngineWorker) -> None:
    parts = (Part("lane:", lambda _, __: 1 / 0), Part("one", lambda _, __: 1 / 0), Part("two", lambda _, __: "2"))
    assert Drawer(Site(worker), worker.sessions.enter(""), "read", parts).state() == {"two": "2"}


def test_what_takes_long_is_drawn_aside_and_the_others_do_not_wait(worker: EngineWorker) -> None:
    session, held, drawings = worker.sessions.enter(""), threading.Event(), list[str]()

    def slow(*_: object) -> str:
        drawings.append("slow")
        held.wait(SECONDS)
        return "it"

    parts = Part("slow", slow, lambda _, __: "", aside=True), Part("two", lambda _, __: "2")
    drawer = Drawer(Site(worker), session, "read", parts)
    assert drawer.state() == drawer.state() == {"two": "2"} and drawings == ["slow"], "one thread draws it"
    version = session.version
    held.set()
    end = time.monotonic() + SECONDS
    while session.version == version and time.monotonic() < end:
        time.sleep(0.01)
    assert drawer.state() == {"slow": "it", "two": "2"} and drawings == ["slow"]
