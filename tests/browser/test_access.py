"""The page for everybody: the keyboard reaches everything, little is said aloud, nothing moves unasked."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from app.runtime.worker import EngineWorker
from tests.app.fakes import GRADIO_WARNINGS, FakeEngine, write_book
from tests.browser.test_page import Reader, browser, playwright, visit  # noqa: F401
from tests.browser.test_race import goes_to

pytestmark = [pytest.mark.browser, *GRADIO_WARNINGS]
FOCUS = """() => {
  const element = document.activeElement;
  if (!element || element === document.body) return null;
  const style = (node) => getComputedStyle(node);
  const ring = (node) => node && style(node).outlineStyle !== "none" && style(node).outlineWidth !== "0px";
  const frames = ["label", "#main > .form", "#drop, #library-drop"].map((frame) => element.closest(frame));
  const inside = Boolean(element.closest("dialog, #race-tab"));
  return [element.outerHTML.slice(0, 120), [element, ...frames].some(ring), inside];
}"""
LISTEN = """() => {
  window.heard = [];
  const announcer = document.querySelector("#announcer");
  new MutationObserver(() => window.heard.push(announcer.textContent)).observe(announcer, { childList: true });
}"""


def asked(visit: Callable[[], Reader], engine: FakeEngine, tmp_path: Path) -> Reader:  # noqa: F811
    reader = visit()
    reader.drops(write_book(tmp_path))
    reader.sees("#book", "Read once")
    engine.enqueue("It was a “dark and stormy night” and nothing else. " * 3)
    reader.asks("How was it?")
    reader.sees("#strip", "Answer complete")
    return reader


def test_the_keyboard_skips_the_header_and_shows_where_it_is(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = asked(visit, engine, tmp_path)
    reader.page.mouse.click(2, 2)  # out of the question box
    reader.page.evaluate("document.activeElement?.blur()")
    for name in ("Read", "Library", "Race", "System"):
        goes_to(reader, name)
        unseen = []
        for _ in range(45):
            reader.page.keyboard.press("Tab")
            at = reader.page.evaluate(FOCUS)
            if at and not at[1]:
                unseen.append(at[0])
        assert not unseen, f"{name}: " + "\n".join(unseen)
    goes_to(reader, "Read")
    playwright.expect(reader.page.locator(".skip")).not_to_be_in_viewport()
    reader.page.locator(".skip").focus()
    playwright.expect(reader.page.locator(".skip")).to_be_in_viewport()
    reader.page.keyboard.press("Enter")
    playwright.expect(reader.page.locator("#question textarea")).to_be_focused()
    goes_to(reader, "System")
    reader.page.locator(".skip").focus()
    reader.page.keyboard.press("Enter")
    playwright.expect(reader.page.locator("#system-tab")).to_be_focused()


def test_a_dialog_and_the_presenter_keep_the_focus(
    visit: Callable[[], Reader],  # noqa: F811
) -> None:
    reader = visit()
    playwright.expect(reader.page.locator("#note .note")).to_have_count(0)  # the line has been drawn anew
    reader.page.locator("[data-keys]").focus()
    reader.page.keyboard.press("Enter")
    reader.sees("#keys-help", "send the question")
    places = []
    for _ in range(8):
        reader.page.keyboard.press("Tab")
        places.append(reader.page.evaluate(FOCUS))
    assert any(places) and all(at is None or at[2] for at in places), places
    reader.page.keyboard.press("Escape")
    playwright.expect(reader.page.locator("[data-keys]")).to_be_focused()
    goes_to(reader, "Race")
    reader.page.locator("#race-present").click()
    playwright.expect(reader.page.locator("html")).to_have_class(re.compile("presenting"))
    playwright.expect(reader.page.locator("#masthead")).to_have_attribute("inert", "")
    places = []
    for _ in range(20):
        reader.page.keyboard.press("Tab")
        places.append(reader.page.evaluate(FOCUS))
    assert all(at is None or at[2] for at in places), places
    reader.page.evaluate("window.triforceRace.present(false)")
    playwright.expect(reader.page.locator("#masthead")).not_to_have_attribute("inert", "")


def test_an_answer_is_told_in_a_few_lines_and_not_word_by_word(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = visit()
    reader.page.wait_for_selector("#announcer", state="attached")
    reader.page.evaluate(LISTEN)
    reader.drops(write_book(tmp_path))
    reader.sees("#book", "Read once")
    reader.sees("#announcer", "Read")
    engine.enqueue("word " * 40 + "| " + "word " * 40)
    reader.asks("How was it?")
    reader.sees("#announcer", "Writing")
    engine.writing.set()
    reader.sees("#announcer", "Answer complete")
    heard = reader.page.evaluate("window.heard")
    assert len(heard) <= 16, heard  # the answer has 80 words
    playwright.expect(reader.page.locator("#chat [role=log]")).to_have_attribute("aria-live", "off")
    playwright.expect(reader.page.get_by_role("button", name="Send the question")).to_be_visible()
    noisy = reader.page.locator(":is(#strip, #book .step) [role=status]")
    playwright.expect(noisy).to_have_count(0)


def test_nothing_moves_where_the_reader_asked_for_no_motion(
    browser: "playwright.Browser",  # noqa: F811
    serve: Callable[[EngineWorker], str],
    worker: EngineWorker,
) -> None:
    address = serve(worker)
    for wish in ("no-preference", "reduce"):
        page = browser.new_page(reduced_motion=wish)
        Reader(page, address)
        took = page.evaluate(
            """() => {
              const bar = document.createElement("div");
              bar.className = "bar busy";
              bar.append(document.createElement("span"));
              document.body.append(bar);
              return parseFloat(getComputedStyle(bar.firstChild).animationDuration);
            }"""
        )
        assert (took < 0.01) == (wish == "reduce"), took
        page.close()
