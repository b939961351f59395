"""The page for everybody: axe finds nothing serious, the keyboard reaches everything, little is said aloud."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.runtime.worker import EngineWorker
from tests.app.fakes import GRADIO_WARNINGS, FakeEngine, write_book
from tests.browser.test_checklist import write_chapters
from tests.browser.test_page import Reader, browser, playwright, visit  # noqa: F401
from tests.browser.test_race import goes_to, starts

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
pytestmark = [pytest.mark.browser, *GRADIO_WARNINGS]
RULES = {
    "resultTypes": ["violations"],
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
}
# What cannot be mended from outside of Gradio, by rule and selector: none.
KNOWN: set[tuple[str, str]] = set()
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


def faults(reader: Reader) -> list[str]:
    """What axe finds on the shown page that is serious or critical, or a heading out of order."""
    reader.page.emulate_media(reduced_motion="reduce")  # no colour is on its way to another
    reader.page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    response: dict[str, Any] = axe.Axe().run(reader.page, options=RULES).response
    found = []
    for violation in response["violations"]:
        if violation["impact"] not in ("serious", "critical") and violation["id"] != "heading-order":
            continue
        for node in violation["nodes"]:
            target = " ".join(map(str, node["target"]))
            if (violation["id"], target) not in KNOWN:
                why = (node["any"] + node["all"] + node["none"] or [{"message": ""}])[0]["message"]
                found.append(f"{violation['id']}: {target}: {node['html'][:160]}: {why}")
    return found


def colours(reader: Reader, name: str) -> None:
    reader.page.locator(f".colours [data-colours={name}]").click()
    dark = "true" if name == "dark" else "false"
    reader.page.wait_for_function(f"document.body.classList.contains('dark') === {dark}")


def in_both(reader: Reader, where: str) -> list[str]:
    found = []
    for name in ("light", "dark"):
        colours(reader, name)
        found += [f"{where}, {name}: {fault}" for fault in faults(reader)]
    return found


def asked(visit: Callable[[], Reader], engine: FakeEngine, tmp_path: Path) -> Reader:  # noqa: F811
    reader = visit()
    reader.drops(write_book(tmp_path))
    reader.sees("#book", "Read once")
    engine.enqueue("It was a “dark and stormy night” and nothing else. " * 3)
    reader.asks("How was it?")
    reader.sees("#strip", "Answer complete")
    return reader


def test_axe_finds_nothing_serious_on_any_tab(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = visit()
    found = in_both(reader, "empty page")
    for name in ("Library", "Race", "Inside", "System"):
        goes_to(reader, name)
        found += in_both(reader, f"{name}, empty")
    goes_to(reader, "Read")
    reader.drops(write_book(tmp_path))
    reader.sees("#book", "Read once")
    engine.enqueue("It was a “dark and stormy night” and nothing else. " * 3)
    reader.asks("How was it?")
    reader.sees("#strip", "Answer complete")
    found += in_both(reader, "Read")
    reader.page.locator("#settings > .label-wrap").click()
    found += in_both(reader, "Settings")
    goes_to(reader, "Library")
    reader.page.get_by_role("button", name="Preview book").click()
    reader.sees("#library-preview .page-text", "stormy")
    found += in_both(reader, "Library")
    goes_to(reader, "Race")
    for _ in range(2):
        engine.enqueue("The night was dark. " * 6)
    starts(reader)
    reader.sees("#race-board .verdict.good", "are the same as plain")
    found += in_both(reader, "Race")
    goes_to(reader, "Inside")
    reader.sees("#inside-view", "Complete")
    found += in_both(reader, "Inside")
    goes_to(reader, "System")
    reader.sees("#system-view", "Model and memory")
    found += in_both(reader, "System")
    assert not found, "\n".join(found)


def test_axe_finds_nothing_serious_while_something_waits_for_the_reader(
    visit: Callable[[], Reader],  # noqa: F811
    tmp_path: Path,
) -> None:
    reader = visit()
    reader.page.set_input_files(
        "#drop input[type=file]", [str(write_chapters(tmp_path)), str(write_book(tmp_path, "", "0"))]
    )
    reader.sees("#choosing", "Choose what is read")
    reader.sees("#book .problem:not(.too-long)", "0 is empty.")
    found = in_both(reader, "too long")
    goes_to(reader, "Library")
    found += in_both(reader, "too long, Library")
    goes_to(reader, "Read")
    reader.page.locator("[data-keys]").click()
    found += in_both_of_dialog(reader)
    assert not found, "\n".join(found)


def in_both_of_dialog(reader: Reader) -> list[str]:
    """The switch lies under the dialog."""
    found = []
    for dark in (False, True):
        reader.page.evaluate(f"document.querySelector('.colours [data-colours={'dark' if dark else 'light'}]').click()")
        found += [f"keys, dark {dark}: {fault}" for fault in faults(reader)]
    return found


def test_colours_are_remembered_and_follow_the_system_when_asked(
    browser: "playwright.Browser",  # noqa: F811
    serve: Callable[[EngineWorker], str],
    worker: EngineWorker,
) -> None:
    address = serve(worker)
    page = browser.new_page(color_scheme="light")
    reader, body = Reader(page, address), page.locator("body")
    dark = re.compile(r"\bdark\b")
    playwright.expect(page.get_by_role("button", name="As the system")).to_have_attribute("aria-pressed", "true")
    page.emulate_media(color_scheme="dark")
    playwright.expect(body).to_have_class(dark)
    page.get_by_role("button", name="Light", exact=True).click()
    playwright.expect(body).not_to_have_class(dark)
    page.reload()
    reader.sees("#masthead", "tokens of context")
    playwright.expect(page.get_by_role("button", name="Light", exact=True)).to_have_attribute("aria-pressed", "true")
    playwright.expect(body).not_to_have_class(dark)
    page.get_by_role("button", name="As the system").click()
    playwright.expect(body).to_have_class(dark)
    page.emulate_media(color_scheme="light")
    playwright.expect(body).not_to_have_class(dark)
    page.close()


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
