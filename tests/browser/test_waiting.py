"""Waiting for a reading, in a real browser: how long still, at every place where one looks, and a notice at its end."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.fakes import GRADIO_WARNINGS, FakeEngine, write_book
from tests.browser.test_page import Reader, browser, playwright, visit  # noqa: F401

pytestmark = [pytest.mark.browser, *GRADIO_WARNINGS]
NOTICES = """(permission) => {
  window.noticed = [];
  window.Notification = class {
    static permission = permission;
    static requestPermission() {
      Notification.permission = "granted";
      return Promise.resolve("granted");
    }
    constructor(title, { body }) { window.noticed.push(`${title}: ${body}`); }
  };
  Object.defineProperty(document, "hidden", { get: () => window.away ?? false });
}"""


def test_the_card_the_bubble_and_the_title_tell_how_long_it_still_takes(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = visit()
    playwright.expect(reader.page).to_have_title("TriForce Reader")
    engine.step = True  # every gate lets one chunk through
    reader.drops(write_book(tmp_path))
    reader.sees("#book .until", "25% · about 20 s left")
    playwright.expect(reader.page).to_have_title("25% · about 20 s left · TriForce Reader")
    engine.reading.set()  # the card keeps its nodes then, and changes their words: the title stayed at the first one
    reader.sees("#book .until", "50% · about 10 s left")
    playwright.expect(reader.page).to_have_title("50% · about 10 s left · TriForce Reader")
    engine.enqueue("At | last.")
    reader.asks("And then?")
    reader.sees("#chat .waits", "Waiting until the book is read")
    reader.sees("#chat .until", "50% · about 10 s left")
    engine.step = False
    engine.reading.set()
    reader.sees("#chat", "At")
    playwright.expect(reader.page).to_have_title("TriForce Reader")
    playwright.expect(reader.page.locator("#chat .waits")).to_have_count(0)
    engine.writing.set()
    reader.sees("#strip", "Answer complete")


@pytest.mark.parametrize(("away", "noticed"), [(True, ["The book is read: book"]), (False, [])])
def test_a_long_reading_that_ends_is_noticed_where_nobody_looks(
    away: bool,
    noticed: list[str],
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = visit()
    reader.page.add_init_script(f"({NOTICES})('default')")
    reader.page.reload()
    reader.sees("#masthead", "tokens of context")
    engine.step = True
    reader.drops(write_book(tmp_path))
    reader.sees("#book .until.long", "left")
    reader.page.get_by_text("Tell me when it is read").click()
    playwright.expect(reader.page.locator("[data-notify]")).to_be_hidden()
    reader.page.evaluate("(away) => (window.away = away)", away)
    engine.step = False
    engine.reading.set()
    reader.sees("#book", "Read once")
    playwright.expect(reader.page).to_have_title("TriForce Reader")
    assert reader.page.evaluate("window.noticed") == noticed
