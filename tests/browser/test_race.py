"""The race in a real browser: refused, presented, reported; on a phone, in the dark."""

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app import fakes
from tests.app.fakes import GRADIO_WARNINGS, SECONDS, FakeEngine, write_book
from tests.browser.test_page import EVIL, Reader, browser, playwright, visit  # noqa: F401

pytestmark = [pytest.mark.browser, *GRADIO_WARNINGS]
HOLD_CLOCK = "(() => { const now = performance.now(); performance.now = () => now; })()"  # a replay stands still
LET_CLOCK_GO = "() => { delete performance.now; }"
WORDS = "The night was dark and stormy, and the harbour lay in it. "


def racer(visit: Callable[[], Reader], tmp_path: Path) -> Reader:  # noqa: F811
    """A reader with a book, at the race."""
    reader = visit()
    reader.drops(write_book(tmp_path))
    reader.sees("#book", "Read once")
    goes_to(reader, "Race")
    leaves_out_the_fastest(reader)
    return reader  # the tab may still be asking for what it shows: words of the reader's own must survive that


def leaves_out_the_fastest(reader: Reader) -> None:
    """Plain decoding and TriForce race, without the third lane."""
    third = reader.page.locator("#race-lanes label", has_text="TriForce + lookup").locator("input")
    playwright.expect(third).to_be_checked()
    third.uncheck()


def goes_to(reader: Reader, name: str) -> None:
    reader.page.get_by_role("tab", name=name).click()


def starts(reader: Reader, question: str = "How was it?") -> None:
    reader.page.locator("#race-question textarea").fill(question)
    reader.page.locator("#race-start").click()


def too_wide(reader: Reader) -> int:
    return int(reader.page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth"))


def test_the_board_has_the_lanes_of_a_first_race_before_it(visit: Callable[[], Reader]) -> None:  # noqa: F811
    reader = visit()
    goes_to(reader, "Race")
    ghosts = reader.page.locator("#race-board .lane.ghost h3")
    playwright.expect(ghosts).to_have_text(["Plain decoding", "TriForce", "TriForce with lookup"])
    playwright.expect(reader.page.locator("#race-lanes input:checked")).to_have_count(3)


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
    leaves_out_the_fastest(reader)
    reader.page.locator("#race-lanes label", has_text=re.compile(r"^\s*TriForce\s*$")).click()
    starts(reader)
    reader.sees("#race-board .problem", "A race needs two lanes.")


def presents(reader: Reader, size: tuple[int, int] = (1920, 1080)) -> None:
    """Present the smallest sample, read."""
    reader.page.set_viewport_size({"width": size[0], "height": size[1]})
    reader.page.locator("#samples button").first.click()
    reader.sees("#book", "Read once")
    goes_to(reader, "Race")
    reader.page.locator("#race-present").click()


def at_scene(reader: Reader, name: str) -> None:
    playwright.expect(reader.page.locator("html")).to_have_attribute("data-scene", name)


def too_high(reader: Reader) -> int:
    return int(reader.page.evaluate("document.querySelector('#race-tab').scrollHeight - window.innerHeight"))


SMALL_WORDS = """() => {
    const found = [];
    const walker = document.createTreeWalker(document.querySelector('#race-tab'), NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const node = walker.currentNode, element = node.parentElement;
        const read = element.checkVisibility() && element.getClientRects().length && element.clientWidth !== 1;
        if (!node.data.trim() || !read) continue;
        const size = parseFloat(getComputedStyle(element).fontSize);
        if (size < 28) found.push(`${size} ${node.data.slice(0, 30)}`);
    }
    for (const box of document.querySelectorAll('#race-tab textarea')) {
        const size = parseFloat(getComputedStyle(box).fontSize);
        if (box.checkVisibility() && size < 28) found.push(`${size} textarea`);
    }
    return found;
}"""


def readable(reader: Reader) -> None:
    """Nothing is smaller than 28 px, and nothing lies beside the screen."""
    assert reader.page.evaluate(SMALL_WORDS) == []
    assert too_high(reader) <= 0 and too_wide(reader) <= 0


def test_the_show_from_the_book_to_the_closing_card(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.ui.race.stage.READ_SECONDS", 600)  # the round's scene ends by the key
    engine.context = 200_000
    reader = visit()
    presents(reader)
    at_scene(reader, "opening")
    reader.sees("#race-opening .opening", "pages")
    prompts = reader.page.locator("#race-prompts button")
    playwright.expect(prompts.first).to_be_visible()
    readable(reader)
    for end in ("| End", "End", "End"):  # the third lane is what was fastest about this sample
        engine.enqueue(WORDS * 6 + end)
    reader.page.keyboard.press("Space")
    at_scene(reader, "count")
    playwright.expect(reader.page.locator("#race-opening .count")).to_contain_text(re.compile("[123]"))
    at_scene(reader, "race")
    reader.sees(".lane[data-lane='1']", "The night was dark")
    readable(reader)
    engine.enqueue(WORDS * 6)
    engine.writing.set()
    reader.sees("#race-board .status", "Finished")
    reader.sees("#race-board .result", "earlier")
    readable(reader)
    at_scene(reader, "round")  # by itself, after the finish was seen
    reader.sees(".scene.round", "One round in slow motion")
    playwright.expect(reader.page.locator(".scene.round .outcome")).to_have_css("opacity", "1")
    readable(reader)
    reader.page.keyboard.press("Space")
    at_scene(reader, "closing")
    reader.sees(".scene.closing", "s")
    readable(reader)
    reader.page.keyboard.press("Space")
    at_scene(reader, "opening")
    assert reader.outside == []


def test_a_recorded_race_is_presented_without_the_engine(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = racer(visit, tmp_path)
    for _ in range(2):
        engine.enqueue(WORDS)
    starts(reader)
    reader.sees(".verdict.good", "All 12 tokens")
    asked = len(engine.race_boundaries)
    reader.page.set_viewport_size({"width": 1920, "height": 1080})
    reader.page.locator("#race-present").click()
    at_scene(reader, "opening")
    reader.sees("#race-expected", "by the speeds of the race before")
    readable(reader)
    reader.page.evaluate(HOLD_CLOCK)
    reader.page.keyboard.press("r")
    at_scene(reader, "count")
    playwright.expect(reader.page.locator(".race.replaying")).to_have_count(1)
    reader.page.evaluate(LET_CLOCK_GO)
    playwright.expect(reader.page.locator(".race.replaying")).to_have_count(0)
    at_scene(reader, "round")
    at_scene(reader, "closing")
    reader.sees(".scene.closing .equal.good", "identical, token for token")
    assert len(engine.race_boundaries) == asked
    reader.page.keyboard.press("Escape")
    playwright.expect(reader.page.locator(".scene.closing")).to_be_hidden()


def test_a_tab_opened_before_the_book_is_counted_gets_its_questions(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
) -> None:
    engine.context = 200_000
    counted = threading.Event()
    encode = engine.text.encode

    def held(text: str) -> list[int]:
        assert counted.wait(SECONDS)
        return encode(text)

    engine.text.encode = held  # type: ignore[method-assign]
    reader = visit()
    reader.page.locator("#samples button").first.click()
    goes_to(reader, "Race")
    reader.page.locator("#race-present").click()
    playwright.expect(reader.page.locator("#race-prompts button")).to_have_count(0)
    counted.set()
    prompts = reader.page.locator("#race-prompts button")
    for number in (0, 1):  # a button may be drawn before its words
        playwright.expect(prompts.nth(number)).to_have_text(re.compile(r"\w"))
    playwright.expect(reader.page.locator("#race-question textarea")).to_have_value(prompts.first.inner_text())
    reader.page.keyboard.press("2")
    playwright.expect(reader.page.locator("#race-question textarea")).to_have_value(prompts.nth(1).inner_text())


def test_the_tab_has_its_question_as_soon_as_it_is_opened(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Start was refused with "The question is empty" for two seconds: the question came when all waiting had ended."""
    monkeypatch.setattr("app.ui.race.tab.LEAST_COUNTING_SECONDS", 600)
    engine.context = 200_000
    reader = visit()
    reader.page.locator("#samples button").first.click()
    reader.sees("#book", "Read once")
    goes_to(reader, "Race")
    box = reader.page.locator("#race-question textarea")
    playwright.expect(box).to_have_value(reader.page.locator("#race-prompts button").first.inner_text())


def test_the_options_stand_in_two_rows(visit: Callable[[], Reader], engine: FakeEngine) -> None:  # noqa: F811
    reader = visit()
    reader.page.set_viewport_size({"width": 1360, "height": 860})
    goes_to(reader, "Race")
    names = ("lanes", "length", "limit", "temperature")
    tops = []
    for name in names:
        box = reader.page.locator(f"#race-{name}").bounding_box()
        assert box is not None
        tops.append(box["y"] + box["height"])
    assert tops[0] < tops[1] - 20, "the lanes have a row of their own"
    assert max(tops[1:]) - min(tops[1:]) < 20, (
        f"the rest stands beside each other: {dict(zip(names, tops, strict=True))}"
    )
    reader.page.locator("#race-length label", has_text="10 s each").click()
    reader.sees("#race-expected", "lanes take turns: about")


def test_a_lost_race_says_so_in_amber(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lane_stats = fakes.lane_stats
    other = {"autoregressive": "triforce", "triforce": "autoregressive"}
    monkeypatch.setattr(fakes, "lane_stats", lambda tokens, method: lane_stats(tokens, other[method]))
    reader = racer(visit, tmp_path)
    for _ in range(2):
        engine.enqueue(WORDS * 2)
    starts(reader)
    reader.sees(
        "#race-board .result.amber", "Plain was faster here, because one pass over the book confirmed 1.00 tokens"
    )
    reader.sees("#race-board .gap", "0.25×")
    reader.sees("#race-board .gap", "behind")


def test_a_proof_card_replays_and_asks_nobody(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = racer(visit, tmp_path)
    for _ in range(2):
        engine.enqueue(f"It was a dark and stormy night. {EVIL} " * 3)
    starts(reader, EVIL)
    reader.sees("#race-board .result.good", "same words")
    with reader.page.expect_download() as download:
        reader.page.locator("#save-card").click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert file.stat().st_size < 300_000
    asked: list[str] = []
    problems: list[str] = []
    page = reader.page.context.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: problems.append(message.text))
    page.set_viewport_size({"width": 1360, "height": 860})
    page.goto(file.as_uri())
    playwright.expect(page.locator("h1")).to_have_text(EVIL)
    playwright.expect(page.locator("blockquote")).to_contain_text("It was a dark and stormy night.")
    assert page.evaluate("document.scrollingElement.scrollHeight") <= 2 * 860, "two screens"
    text = page.locator(".lane.fast .text").inner_text()
    page.evaluate(HOLD_CLOCK)
    page.get_by_role("button", name="Replay").click()
    playwright.expect(page.locator(".lane.plain .clock")).not_to_have_text("2.88 s")
    page.evaluate(LET_CLOCK_GO)
    playwright.expect(page.locator(".lane.plain .clock")).to_have_text(re.compile(r"2\.\d\d s"))
    playwright.expect(page.locator(".lane.fast .text")).to_have_text(text)
    assert page.evaluate("window.hacked") is None and asked == [file.as_uri()] and problems == []


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
    leaves_out_the_fastest(reader)
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
