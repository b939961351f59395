"""Clicks in a real browser on what is drawn anew meanwhile, and pages of a book that are opened and closed in haste."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.fakes import GRADIO_WARNINGS, SECONDS, FakeEngine, write_book
from tests.browser.test_page import Reader, browser, playwright, visit  # noqa: F401
from tests.browser.test_race import goes_to
from tests.browser.test_waiting import Held

pytestmark = [pytest.mark.browser, *GRADIO_WARNINGS]
STORY = "The carved teapot was lost in the great spring tide, and nobody in the harbour ever asked for it. "
DRAWN_ANEW = "(button) => button.replaceWith(button.cloneNode(true))"
DRAWN_TWICE = "(button) => button.replaceWith(button.cloneNode(true), button.cloneNode(true))"
SWAPPED = """(bar) => {
  const other = bar.nextElementSibling;
  [bar.dataset.act, other.dataset.act] = [other.dataset.act, bar.dataset.act];
}"""
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


def nothing_opens(reader: Reader, held: Held, words: str) -> None:
    """The requests are let go, and the page that comes is not shown."""
    with reader.page.expect_response(lambda response: words in (response.request.post_data or "")):
        held.let_go()
    reader.page.wait_for_timeout(SETTLES_MS)
    playwright.expect(reader.page.locator("#where-page .card")).to_have_count(0)


@pytest.mark.parametrize(
    ("selector", "act"), [("#chat .quote.found", "quote:"), ("#where .bar-page >> nth=0", "page:0")]
)
def test_a_button_drawn_anew_between_press_and_release_is_clicked_once(reader: Reader, selector: str, act: str) -> None:
    sent: list[str] = []
    reader.page.on("request", lambda request: sent.append(request.post_data or ""))
    presses(reader, selector)
    reader.page.locator(selector).evaluate(DRAWN_ANEW)
    reader.page.mouse.up()
    reader.sees("#where-page h3", "Page 1")
    reader.page.wait_for_timeout(SETTLES_MS)
    assert sum(act in one for one in sent) == 1


def test_what_is_not_certainly_the_pressed_button_is_not_clicked(reader: Reader) -> None:
    chip = "#chat .quote.found"
    presses(reader, chip)
    reader.page.locator(chip).evaluate(DRAWN_ANEW)
    reader.page.mouse.move(5, 5)
    reader.page.mouse.up()
    touch = "new PointerEvent('{}', {{ bubbles: true, pointerType: 'touch' }})"  # whose click the browser gives itself
    reader.page.locator(chip).evaluate(
        f"(chip) => {{ chip.dispatchEvent({touch.format('pointerdown')}); ({DRAWN_ANEW})(chip);"
        f" document.body.dispatchEvent({touch.format('pointerup')}); }}"
    )
    presses(reader, chip)
    reader.page.locator(chip).evaluate(DRAWN_TWICE)
    reader.page.mouse.up()
    reader.page.wait_for_timeout(SETTLES_MS)
    playwright.expect(reader.page.locator("#where-page .card")).to_have_count(0)


def test_a_button_that_stands_for_something_else_at_release_is_not_clicked(reader: Reader) -> None:
    sent: list[str] = []
    reader.page.on("request", lambda request: sent.append(request.post_data or ""))
    bar = "#where .bar-page >> nth=0"
    presses(reader, bar)
    reader.page.locator(bar).evaluate(SWAPPED)
    reader.page.mouse.up()
    reader.sees("#where-page h3", "Page 1")
    reader.page.wait_for_timeout(SETTLES_MS)
    assert [one for one in sent if "page:1" in one] == []
    opens(reader, 1)  # the browser's next click is its own
    reader.sees("#where-page h3", "Page 2")


def test_a_quoted_page_stays_and_a_loaded_one_closes_when_the_next_answer_begins(
    reader: Reader, engine: FakeEngine
) -> None:
    reader.page.locator("#chat .quote.found").click()
    reader.sees("#where-page mark.quoted", "The carved teapot was lost in the great")
    engine.enqueue("It says no more.")
    reader.asks("And then?")
    reader.sees("#chat", "no more")
    reader.sees("#strip", "Answer complete")
    reader.sees("#where-page mark.quoted", "The carved teapot was lost in the great")
    opens(reader, 2)
    reader.sees("#where-page h3", "Page 2")
    engine.enqueue("Nothing else.")
    reader.asks("And then?")
    playwright.expect(reader.page.locator("#where-page .card")).to_have_count(0)
    reader.sees("#chat", "Nothing else")
    drawing = Held(reader, "**/run/predict", "page:0")  # a page of the answer before, drawn slowly
    opens(reader, 1)
    engine.enqueue("Not a word.")
    reader.asks("And then?")
    reader.sees("#chat", "Not a word")
    nothing_opens(reader, drawing, "page:0")


def test_a_chip_clicked_when_an_answer_has_closed_a_page_opens_its_own(reader: Reader, engine: FakeEngine) -> None:
    opens(reader, 2)
    reader.sees("#where-page h3", "Page 2")
    closing = Held(reader, "**/run/predict", '"close"')  # if the server closed it, this could come late
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
    reader.page.locator("#book [data-find-open]").click()
    reader.page.locator("#find input[type=search]").fill("teapot")
    reader.page.keyboard.press("Enter")  # a click somewhere else
    reader.sees("#found [role=status]", "30 hits")
    goes_to(reader, "Read")
    nothing_opens(reader, drawing, "page:0")
    opens(reader, 2)  # the page of before is drawn again
    reader.sees("#where-page h3", "Page 2")
    reader.page.keyboard.press("Escape")
    playwright.expect(reader.page.locator("#where-page .card")).to_have_count(0)


def test_many_chips_clicked_at_once_open_the_page_of_the_last(reader: Reader, engine: FakeEngine) -> None:
    engine.enqueue('And: "nobody in the harbour ever asked for it".')
    reader.asks("Who?")
    chips = reader.page.locator("#chat .quote.found")
    playwright.expect(chips).to_have_count(2)
    reader.sees("#strip", "Answer complete")
    drawing = Held(reader, "**/run/predict", "quote:")
    chips.nth(0).click()
    reader.page.wait_for_timeout(SETTLES_MS)
    chips.nth(1).click()
    reader.page.wait_for_timeout(SETTLES_MS)
    drawing.let_go(0)
    drawing.let_go()
    reader.sees("#where-page mark.quoted", "nobody in the harbour ever asked for it")
    reader.page.wait_for_timeout(SETTLES_MS)
    reader.sees("#where-page mark.quoted", "nobody in the harbour ever asked for it")


def test_a_double_click_deletes_nothing_for_good(reader: Reader) -> None:
    delete = reader.page.locator("#chat button.act", has_text="Delete").last
    delete.dblclick()
    playwright.expect(delete).to_have_text("Delete?")
    reader.page.wait_for_timeout(SETTLES_MS)
    reader.sees("#chat", "When?")


def test_a_file_dropped_before_the_first_state_of_the_page_has_come_is_not_drawn_over(
    visit: Callable[[], Reader],  # noqa: F811
    tmp_path: Path,
) -> None:
    reader, late = visit(), list[tuple[playwright.Route, playwright.APIResponse]]()
    address = reader.page.url
    reader.page.goto("about:blank")

    def answers_late(route: "playwright.Route") -> None:
        late.append((route, route.fetch()))

    reader.page.route("**/run/predict", answers_late, times=1)
    reader.page.goto(address)
    reader.page.wait_for_selector("#drop input[type=file]", state="attached")
    reader.drops(write_book(tmp_path, STORY * 30))
    reader.page.wait_for_timeout(4 * SETTLES_MS)  # an event that does not wait would have opened it
    for _ in range(int(SECONDS * 10)):
        reader.page.wait_for_timeout(0 if late else 100)
    ((route, response),) = late
    route.fulfill(response=response)
    reader.sees("#book", "Read once")
    reader.page.wait_for_timeout(SETTLES_MS)
    reader.sees("#where", "Ask a question")
