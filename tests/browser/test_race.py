"""The race in a real browser: to the verdict, stopped, replayed, presented; on a phone, in the dark."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.fakes import GRADIO_WARNINGS, FakeEngine, write_book
from tests.browser.test_page import EVIL, Reader, browser, playwright, visit  # noqa: F401

pytestmark = [pytest.mark.browser, *GRADIO_WARNINGS]
WORDS = "The night was dark and stormy, and the harbour lay in it. "


def racer(visit: Callable[[], Reader], tmp_path: Path) -> Reader:  # noqa: F811
    """A reader with a book, at the race."""
    reader = visit()
    reader.drops(write_book(tmp_path))
    reader.sees("#book", "Read once")
    goes_to(reader, "Race")
    return reader  # the tab may still be asking for what it shows: words of the reader's own must survive that


def goes_to(reader: Reader, name: str) -> None:
    reader.page.get_by_role("tab", name=name).click()


def starts(reader: Reader, question: str = "How was it?") -> None:
    reader.page.locator("#race-question textarea").fill(question)
    reader.page.locator("#race-start").click()


def too_wide(reader: Reader) -> int:
    return int(reader.page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth"))


def test_a_race_to_the_verdict_and_its_replay(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = racer(visit, tmp_path)
    reader.sees("#race-board", "Plain decoding")
    for hold in ("| ", ""):
        engine.enqueue(WORDS * 6 + hold + "End")
    starts(reader)
    reader.sees("#race-board .lane.fast", "The night was dark")
    reader.sees("#race-board", "Racing, in fair turns")
    engine.writing.set()
    reader.sees("#race-board", "Finished · one reading for all, 0 book tokens re-read")
    reader.sees("#race-board .verdict", "mismatch")
    for _ in range(2):
        engine.enqueue(WORDS * 6)
    starts(reader)
    reader.sees("#race-board .verdict.good", "All 72 tokens are the same as plain decoding’s.")
    reader.sees("#race-board .speedup", "4.00×")
    before = reader.page.locator(".board").inner_html()
    reader.page.get_by_role("button", name="4×").click()
    playwright.expect(reader.page.locator(".race.replaying")).to_have_count(1)
    reader.sees(".lane.plain .ending", "Replay")
    playwright.expect(reader.page.locator(".race.replaying")).to_have_count(0)
    assert reader.page.locator(".board").inner_html() == before
    reader.page.reload()
    reader.sees("#masthead", "tokens of context")
    goes_to(reader, "Race")
    reader.sees("#race-board .verdict.good", "All 72 tokens")
    assert reader.outside == []


def test_stop_and_start_again(visit: Callable[[], Reader], engine: FakeEngine, tmp_path: Path) -> None:  # noqa: F811
    reader = racer(visit, tmp_path)
    engine.enqueue("One | two")
    engine.enqueue("One two")
    starts(reader)
    reader.sees(".lane.fast", "One")
    reader.page.locator("#race-stop").click()
    reader.sees("#race-board .status", "Stopped")
    playwright.expect(reader.page.locator("#race-start")).to_be_visible()
    engine.writing.set()
    for _ in range(2):
        engine.enqueue("Once more.")
    starts(reader)
    reader.sees(".verdict.good", "All 2 tokens")


def test_a_race_without_a_book_or_a_second_lane_is_explained(
    visit: Callable[[], Reader],  # noqa: F811
    tmp_path: Path,
) -> None:
    reader = visit()
    goes_to(reader, "Race")
    starts(reader)
    reader.sees("#race-board .problem", "There is no book yet.")
    goes_to(reader, "Read")
    reader.drops(write_book(tmp_path))
    reader.sees("#book", "Read once")
    goes_to(reader, "Race")
    reader.page.locator("#race-lanes label", has_text=re.compile(r"^\s*TriForce\s*$")).click()
    starts(reader)
    reader.sees("#race-board .problem", "A race needs two lanes.")


def test_presenter_mode_is_driven_by_keys(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
) -> None:
    engine.context = 200_000
    reader = visit()
    reader.page.set_viewport_size({"width": 1280, "height": 720})
    reader.page.locator("#samples button").first.click()
    reader.sees("#book", "Read once")
    goes_to(reader, "Race")
    reader.page.locator("#race-present").click()
    root = reader.page.locator("html")
    playwright.expect(root).to_have_class(re.compile("presenting"))
    prompts = reader.page.locator("#race-prompts button")
    playwright.expect(prompts.nth(1)).to_be_visible()
    playwright.expect(reader.page.locator("#race-question textarea")).to_have_value(prompts.first.inner_text())
    reader.page.keyboard.press("2")
    playwright.expect(reader.page.locator("#race-question textarea")).to_have_value(prompts.nth(1).inner_text())
    engine.enqueue(WORDS * 6 + "| End")
    engine.enqueue(WORDS * 6)
    reader.page.keyboard.press("Space")
    reader.sees(".lane.fast", "The night was dark")
    high = reader.page.evaluate("document.querySelector('#race-tab').scrollHeight - window.innerHeight")
    assert high <= 0 and too_wide(reader) <= 0, f"{high} pixels too high for 1280 x 720"
    reader.page.keyboard.press("Space")
    reader.sees("#race-board .status", "Stopped")
    reader.page.keyboard.press("r")
    playwright.expect(reader.page.locator(".race.replaying")).to_have_count(1)
    reader.page.keyboard.press("Escape")
    playwright.expect(root).not_to_have_class(re.compile("presenting"))
    reader.page.keyboard.press("Space")
    playwright.expect(reader.page.locator("#race-stop")).to_have_count(0)
    assert reader.outside == []


def test_inside_follows_an_answer_and_explains_every_token(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = racer(visit, tmp_path)
    goes_to(reader, "Inside")
    reader.sees("#inside-view", "Ask a question or run a race")
    for hold in ("| ", ""):
        engine.enqueue(WORDS + hold + "End")
    goes_to(reader, "Race")
    starts(reader)
    reader.sees(".lane.fast", "The night was dark")
    goes_to(reader, "Inside")
    reader.sees("#inside-view .status", "Writing · 12 tokens")
    engine.writing.set()
    reader.sees("#inside-view .status", "Complete · 13 tokens")
    reader.sees("#inside-view .tile.level2", "75%")
    first = reader.page.locator(".written .t").first
    first.hover()
    reader.sees("#token-note", "Draft, acceptedround 1 · p 0.90 · q 0.80")
    reader.page.mouse.move(5, 5)
    playwright.expect(reader.page.locator("#token-note")).to_be_hidden()
    reader.page.locator(".written").focus()
    for _ in range(3):
        reader.page.keyboard.press("ArrowRight")
    reader.sees("#token-note", "Corrected by the retrieval cache")
    reader.page.get_by_text("Race: Plain decoding").click()
    reader.sees("#inside-view .badges", "Plain decoding")
    goes_to(reader, "Read")
    engine.enqueue("A later answer.")
    reader.asks("And then?")
    reader.sees("#strip", "Answer complete")
    goes_to(reader, "Inside")
    reader.sees("#inside-view .question", "And then?")
    reader.page.set_viewport_size({"width": 360, "height": 740})
    assert too_wide(reader) <= 0 and reader.outside == []


def test_four_lanes_fit_a_projector_and_a_reload_ends_the_race(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = racer(visit, tmp_path)
    reader.page.set_viewport_size({"width": 1280, "height": 720})
    for name in ("Retrieval", "H2O"):
        reader.page.locator("#race-lanes label", has_text=name).click()
    reader.page.locator("#race-present").click()
    for hold in ("", "", "", "| "):
        engine.enqueue(WORDS * 6 + hold)
    reader.page.locator("#race-question textarea").fill("Who?")
    reader.page.locator("#race-start").click()
    reader.sees(".lane.lossy", "The night was dark")
    high = reader.page.evaluate("document.querySelector('#race-tab').scrollHeight - window.innerHeight")
    assert high <= 0 and too_wide(reader) <= 0, f"{high} pixels too high for 1280 x 720"
    gap = reader.page.locator(".gap").bounding_box()
    assert gap and gap["width"] > 1000, "what lies between the lanes stands above all of them"
    reader.page.reload()
    reader.sees("#masthead", "tokens of context")
    goes_to(reader, "Race")
    reader.sees("#race-board .status", "Stopped")
    playwright.expect(reader.page.locator("#race-start")).to_be_visible()


def test_a_hostile_race_on_a_phone_in_the_dark(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = visit()
    reader.page.set_viewport_size({"width": 360, "height": 740})
    reader.page.emulate_media(color_scheme="dark")
    reader.page.reload()
    reader.drops(write_book(tmp_path, f"{EVIL}\n" * 20))
    reader.sees("#book", "Read once")
    goes_to(reader, "Race")
    for _ in range(2):
        engine.enqueue(f"{EVIL} {'x' * 300}")
    starts(reader, EVIL)
    reader.sees(".verdict.good", "identical")
    reader.sees(".lane.fast .lane-text", "<script>window.hacked=1</script>")
    assert reader.page.evaluate("window.hacked") is None and reader.page.locator("#race-board img").count() == 0
    boxes = [reader.page.locator(f".lane.{name}").bounding_box() for name in ("plain", "fast")]
    assert all(box and box["width"] > 280 for box in boxes), f"the lanes stand under each other: {boxes}"
    assert too_wide(reader) <= 0 and reader.outside == []
    goes_to(reader, "Inside")
    reader.sees(".written", "<script>window.hacked=1</script>")
    assert reader.page.evaluate("window.hacked") is None and too_wide(reader) <= 0
    assert "dark" in (reader.page.locator("body").get_attribute("class") or "")


def test_a_report_is_saved_and_stands_alone(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = racer(visit, tmp_path)
    playwright.expect(reader.page.locator("#save-html")).to_have_count(0)
    for _ in range(2):
        engine.enqueue(f"{EVIL} {WORDS}")
    starts(reader, EVIL)
    reader.sees(".verdict.good", "identical")
    files = []
    for name in ("html", "json"):
        with reader.page.expect_download() as download:
            reader.page.locator(f"#save-{name}").click()
        files.append(tmp_path / download.value.suggested_filename)
        download.value.save_as(files[-1])
    assert json.loads(files[1].read_text(encoding="utf-8"))["equality"]["verdict"] == "identical"
    asked: list[str] = []
    page = reader.page.context.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(files[0].as_uri())
    playwright.expect(page.locator("h1")).to_have_text(EVIL)
    playwright.expect(page.locator("svg")).to_have_count(7)
    assert page.evaluate("window.hacked") is None and asked == [files[0].as_uri()]
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth") <= 0
    assert [str(file) for file in (tmp_path / "data").rglob("*race*")] == [], "the server keeps no copy"
    assert reader.outside == []
