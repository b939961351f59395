"""Clicks in a real browser on what is drawn anew meanwhile, and pages of a book that are opened and closed in haste."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.fakes import GRADIO_WARNINGS, FakeEngine, write_book
from tests.browser.test_page import Reader, browser, playwright, visit  # noqa: F401
from tests.browser.test_waiting import Held

pytestmark = [pytest.mark.browser, *GRADIO_WARNINGS]
STORY = "The carved teapot was lost in the great spring tide, and nobody in the harbour ever asked for it. "
DRAWN_ANEW = "(button) => button.replaceWith(button.cloneNode(true))"
DRAWN_TWICE = "(button) => button.replaceWith(button.cloneNode(true), button.cloneNode(true))"
SETTLES_MS = 700  # what must not come would have come


@pytest.fixture
def reader(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> Reader:
    """A page with a book and an answer that quotes it."""
    reader = visit()
    reader.drops(write_book(tmp_path, STORY * 30))
    reader.sees("#book", "Read once")
    engine.weights = [0.4, 0, 0, 0, 0.1, *[0] * 280, 0.3]
    engine.enqueue('So: "the carved teapot was lost in the great".')
    reader.asks("When?")
    reader.sees("#strip", "Answer complete")
    reader.sees("#where", "Guessed mostly from")
    reader.page.locator("[data-fold=figures]").click()
    playwright.expect(reader.page.locator("#where .bar-page")).to_have_count(2)
    return reader


def presses(reader: Reader, selector: str) -> None:
    """The pointer goes down on a button."""
    reader.page.locator(selector).scroll_into_view_if_needed()
    bounds = reader.page.locator(selector).bounding_box()
    assert bounds is not None
    reader.page.mouse.move(bounds["x"] + bounds["width"] / 2, bounds["y"] + bounds["height"] / 2)
    reader.page.mouse.down()


def opens(reader: Reader, number: int) -> None:
    """A page by its bar."""
    reader.page.locator("#where .bar-page").nth(number - 1).click()


@pytest.mark.parametrize("selector", ["#chat .quote.found", "#where .bar-page >> nth=0"])
def test_a_button_drawn_anew_between_press_and_release_is_clicked(reader: Reader, selector: str) -> None:
    presses(reader, selector)
    reader.page.locator(selector).evaluate(DRAWN_ANEW)
    reader.page.mouse.up()
    reader.sees("#where-page", "The carved teapot")


def test_what_is_not_certainly_the_pressed_button_is_not_clicked(reader: Reader) -> None:
    chip = "#chat .quote.found"
    presses(reader, chip)
    reader.page.locator(chip).evaluate(DRAWN_ANEW)
    reader.page.mouse.move(5, 5)
    reader.page.mouse.up()
    presses(reader, chip)
    reader.page.locator(chip).evaluate(DRAWN_TWICE)
    reader.page.mouse.up()
    reader.page.wait_for_timeout(SETTLES_MS)
    playwright.expect(reader.page.locator("#where-page .card")).to_have_count(0)


def test_a_chip_clicked_as_the_next_answer_begins_opens_its_page(reader: Reader, engine: FakeEngine) -> None:
    opens(reader, 2)
    reader.sees("#where-page h3", "Page 2")
    closing = Held(reader, "**/run/predict", '"close"')  # as if what closes the old page were overtaken
    engine.enqueue("It says no more.")
    reader.asks("And then?")
    reader.sees("#chat", "no more")
    reader.page.locator("#chat .quote.found").click()
    reader.sees("#where-page mark.quoted", "The carved teapot was lost in the great")
    closing.let_go()
    reader.page.wait_for_timeout(SETTLES_MS)
    reader.sees("#where-page mark.quoted", "The carved teapot was lost in the great")


def test_a_page_closed_while_another_is_drawn_stays_closed(reader: Reader) -> None:
    opens(reader, 2)
    reader.sees("#where-page h3", "Page 2")
    drawing = Held(reader, "**/run/predict", "page:0")
    opens(reader, 1)
    reader.page.wait_for_timeout(SETTLES_MS)
    reader.page.locator("#where-page [data-act=close]").click()
    playwright.expect(reader.page.locator("#where-page .card")).to_have_count(0)
    drawing.let_go()
    reader.page.wait_for_timeout(SETTLES_MS)
    playwright.expect(reader.page.locator("#where-page .card")).to_have_count(0)
    opens(reader, 2)  # the page of before is drawn again
    reader.sees("#where-page h3", "Page 2")
    reader.page.keyboard.press("Escape")
    playwright.expect(reader.page.locator("#where-page .card")).to_have_count(0)
