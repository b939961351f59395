"""Journeys of a connection that breaks: the page says so, goes on where it was, and asks no question twice."""

import threading
from pathlib import Path
from typing import Any

import pytest

from app.ui.site import Drawer
from tests.app.fakes import SECONDS, FakeEngine, write_book
from tests.browser.journeys.page import JOURNEY, Page, expect

pytestmark = JOURNEY


def test_a_page_without_its_program_says_so_and_goes_on_where_it_was(
    page: Page, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, state = threading.Event(), Drawer.state

    def held(drawer: Drawer) -> dict[str, Any]:
        answers.wait(SECONDS)
        return state(drawer)

    page.reads(write_book(tmp_path))
    engine.enqueue("One two | three four.")
    page.asks("Count to four!")
    expect(page.conversation).to_contain_text("One two")
    monkeypatch.setattr(Drawer, "state", held)
    expect(page.silence).to_be_visible()
    engine.writing.set()
    page.question.fill("And then?")
    answers.set()
    page.answers("three four.")
    expect(page.silence).to_be_hidden()
    expect(page.question).to_have_value("And then?")
    assert len(engine.configs) == 1, "it was written once"


def test_a_question_whose_receipt_is_lost_is_asked_once(page: Page, engine: FakeEngine, tmp_path: Path) -> None:
    page.reads(write_book(tmp_path))
    engine.enqueue("Quite dark.")
    lost = list[Any]()

    def lose(route: Any) -> None:
        lost.append(route.request)
        if len(lost) == 1:
            route.abort()  # it never arrives
        else:
            route.fetch()  # it arrives, and nobody hears of it
            route.abort()

    page.tab.route("**/page/act", lose, times=3)
    with page.tab.expect_response(lambda response: response.url.endswith("/page/act")):
        page.asks("Dark?")
    page.answers("Quite dark.")
    assert len(lost) == 3 and len(engine.configs) == 1, "it was sent until it was heard of, and asked once"
