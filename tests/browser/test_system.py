"""The tab System in a real browser, and a race of many lanes on a projector."""

import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from core.config import EngineConfig
from core.planning.hardware import Machine
from tests.app.fakes import GRADIO_WARNINGS, MACHINE, FakeEngine, write_book
from tests.app.ui.models.test_tab import gate, toys  # noqa: F401
from tests.browser.test_page import Reader, browser, playwright, visit  # noqa: F401
from tests.browser.test_race import WORDS, goes_to, racer, too_wide
from tests.core.models.hub.test_download import hub  # noqa: F401
from tests.core.models.hub.toy_hub import ToyHub

pytestmark = [pytest.mark.browser, *GRADIO_WARNINGS]
SECRET = "Zanzibar"


def test_the_system_is_shown_and_its_report_is_copied(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = visit()
    reader.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    reader.drops(write_book(tmp_path, f"{SECRET} was dark. " * 9, f"{SECRET}.txt"))
    reader.sees("#book", "Read once")
    engine.enqueue(f"{SECRET} night.")
    reader.asks(f"Why {SECRET}?")
    reader.sees("#strip", "Answer complete")
    goes_to(reader, "System")
    reader.sees("#system-view", "The model is loaded")
    reader.sees("#system-view .memory", "target weights")
    place = reader.page.locator("#system-view .parts .key").first.evaluate("key => getComputedStyle(key).position")
    assert place == "static", "the marks on images of pages have their own rules"
    parts = reader.page.locator("#system-view .memory svg .fill")
    boxes = [parts.nth(number).bounding_box() for number in range(parts.count())]
    assert (
        len(boxes) == 4
        and boxes[0]
        and boxes[2]
        and boxes[2]["width"] == pytest.approx(2 * boxes[0]["width"], rel=0.05)
    )
    reader.page.locator("#copy-report").click()
    reader.sees("#system-copied", "Copied")
    copied = reader.page.evaluate("navigator.clipboard.readText()")
    assert copied == reader.page.locator("#system-report textarea").input_value()
    assert "Memory" in copied and "2 tokens, 20.0 ms per token" in copied and SECRET not in copied
    reader.page.set_viewport_size({"width": 360, "height": 740})
    reader.page.emulate_media(color_scheme="dark")
    assert too_wide(reader) <= 0 and reader.outside == []


def test_a_model_is_downloaded_cancelled_and_changed_to(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    toys: ToyHub,  # noqa: F811
    gate: threading.Event,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def load(config: EngineConfig) -> tuple[FakeEngine, Machine]:
        other = FakeEngine(has_draft=False)
        other.info.model, other.info.limits = config.model, "Short texts only"
        return other, MACHINE

    monkeypatch.setattr("app.server.serve_page.load", load)
    reader = visit()
    reader.drops(write_book(tmp_path))
    reader.sees("#book", "Read once")
    reader.asks("How was it?")
    reader.sees("#strip", "Answer complete")
    goes_to(reader, "System")
    reader.sees("#models", "tiny")
    assert toys.tokens == [], "the hub was asked before Download was pressed"
    reader.page.locator('[data-act="get:tiny"]').click()
    reader.sees("#models-doing", "of 3.17 MB")
    reader.page.reload()
    goes_to(reader, "System")
    reader.sees("#models-doing", "Downloading tiny")
    reader.page.get_by_role("button", name="Cancel").click()
    reader.sees("#models-doing", "ending")
    gate.set()
    reader.sees("#models-doing", "cancelled")
    reader.page.locator("#models-doing .close").click()
    playwright.expect(reader.page.locator("#models-doing")).not_to_contain_text("cancelled")
    reader.page.locator('[data-act="get:tiny"]', has_text="Go on").click()
    reader.sees("#models-doing", "tiny is on this disk")
    other = visit()
    other.drops(write_book(tmp_path, "Then came the day. " * 9, "day.txt"))
    other.sees("#book", "Read once")
    reader.page.locator('[data-act="use:tiny"]').click()
    reader.sees("#masthead .chip.model", "tiny")
    before = other.page.locator("#masthead .chip.model").text_content()
    other.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # its reader comes back to it
    other.sees("#masthead .chip.model", "tiny")
    assert before != "tiny", "nothing had changed on the other page before"
    other.sees("#method", "Lookup")
    other.sees("#book", "Read once")
    reader.sees("#models .used", "tiny")
    reader.sees("#system-view", "The model is loaded")
    reader.page.set_viewport_size({"width": 360, "height": 740})
    assert too_wide(reader) <= 0
    goes_to(reader, "Read")
    reader.sees("#note", "Short texts only")
    reader.sees("#book", "Another model runs now")
    reader.sees("#book", "Read once")
    reader.sees("#method", "Lookup")
    reader.sees("#chat", "How was it?")
    reader.asks("And now?")
    reader.sees("#strip", "Answer complete")
    assert reader.outside == []


LOWEST_TEXT = """() => {
  window.lowestText = Infinity;
  const look = () => {
    for (const text of document.querySelectorAll(".board.many .lane-text"))
      window.lowestText = Math.min(window.lowestText, text.clientHeight);
    requestAnimationFrame(look);
  };
  look();
}"""  # the smallest height of a lane's text in any frame drawn from now on
LANES = """() => [...document.querySelectorAll("#race-board .lane")].map((lane) => [
  lane.querySelector(".lane-text").getBoundingClientRect().height, lane.scrollHeight - lane.clientHeight])"""


@pytest.mark.parametrize("more", [3, 6])
def test_many_lanes_fit_on_a_projector(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
    more: int,
) -> None:
    reader = racer(visit, tmp_path)
    reader.page.set_viewport_size({"width": 1280, "height": 720})
    others = reader.page.locator("#race-lanes label:not(.selected)")
    for _ in range(more):
        others.first.click()
    engine_words = [WORDS * 6 + ("" if number else "| ") for number in range(2 + more)]
    for words in engine_words:
        engine.enqueue(words)
    reader.page.locator("#race-question textarea").fill("Who?")
    reader.page.locator("#race-present").click()
    reader.page.evaluate(LOWEST_TEXT)
    reader.page.locator("#race-start").click()
    for _ in ("while it runs", "at the end"):
        reader.sees(".lane >> nth=-1", "The night was dark")
        tab = "document.querySelector('#race-tab')"
        high = reader.page.evaluate(f"{tab}.scrollHeight - window.innerHeight")
        assert high <= 0 and too_wide(reader) <= 0, f"{high} pixels too high for {2 + more} lanes on 1280 x 720"
        lanes = reader.page.evaluate(LANES)  # at once: the board is drawn anew meanwhile
        assert len(lanes) == 2 + more
        for number, (high, cut) in enumerate(lanes):
            assert high > 24, f"room for a line of text: {high}"
            assert cut <= 1, f"lane {number} is cut by {cut} pixels"
        engine.writing.set()
        playwright.expect(reader.page.locator("#race-board .status")).to_contain_text(re.compile("Racing|Finished"))
    reader.sees("#race-board .status", "Finished")
    assert reader.page.evaluate(f"{tab}.scrollHeight - window.innerHeight") <= 0
    lowest = reader.page.evaluate("window.lowestText")
    assert 24 < lowest < 720, f"a lane's text had {lowest} pixels in one frame: it must not grow into its place"
