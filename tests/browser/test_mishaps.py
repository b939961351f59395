"""What went wrong in a reader's hour, in a real browser: each is told where the reader looks, and nothing jumps."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.fakes import GRADIO_WARNINGS, FakeEngine, write_book
from tests.browser.test_page import Reader, browser, playwright, visit  # noqa: F401
from tests.browser.test_race import WORDS, goes_to, racer, starts

pytestmark = [pytest.mark.browser, *GRADIO_WARNINGS]
DROP = """([selector, name, text]) => {
  const files = new DataTransfer();
  files.items.add(new File([text], name, { type: "text/plain" }));
  const on = document.querySelector(selector);
  for (const kind of ["dragenter", "dragover", "drop"]) {
    on.dispatchEvent(new DragEvent(kind, { dataTransfer: files, bubbles: true, cancelable: true }));
  }
}"""


def top_of(reader: Reader, where: str) -> float:
    bounds = reader.page.locator(where).bounding_box()
    assert bounds is not None
    return float(bounds["y"])


def test_stop_reading_stops_a_question_that_waits_too(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = visit()
    engine.reading.clear()
    reader.drops(write_book(tmp_path))
    reader.sees("#book", "Reading")
    reader.asks("And how does it end?")
    reader.sees("#chat", "And how does it end?")
    reader.sees("#strip", "Waiting until the book is read")
    reader.page.locator("#stop-reading").click()
    playwright.expect(reader.page.locator("#question textarea")).to_have_value("And how does it end?")
    reader.sees("#book", "Asking reads the rest first")
    playwright.expect(reader.page.locator("#read-on")).to_be_visible()
    assert engine.configs == []
    reader.page.locator("#question textarea").fill("")
    engine.reading.set()
    reader.page.reload()
    reader.sees("#book", "Read once")
    playwright.expect(reader.page.locator("#question textarea")).to_have_value("")  # what was taken back stays away


def test_the_empty_chat_says_what_the_book_is_at(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = visit()
    engine.reading.clear()
    reader.drops(write_book(tmp_path))
    reader.sees("#chat", "The book is being read")
    engine.reading.set()
    reader.sees("#chat", "The book is open")
    reader.drops(write_book(tmp_path, "Far too much. " * 900, "long.txt"))
    reader.sees("#book", "Too long")
    reader.sees("#chat", "Too long to read at once")


def test_a_question_without_a_book_moves_nothing_and_is_told_at_the_box(
    visit: Callable[[], Reader],  # noqa: F811
) -> None:
    reader = visit()
    before = [top_of(reader, one) for one in ("#chat", "#question", "#strip")]
    reader.asks("Who are you?")
    reader.sees("#told", "There is no book yet")
    playwright.expect(reader.page.locator("#question textarea")).to_have_value("Who are you?")
    assert [top_of(reader, one) for one in ("#chat", "#question", "#strip")] == before
    bounds = reader.page.locator("#told .problem").bounding_box()
    assert bounds and abs(bounds["y"] + bounds["height"] - top_of(reader, "#question")) < 60
    reader.page.locator("#told .close").click()
    playwright.expect(reader.page.locator("#told .problem")).to_be_hidden()


def test_a_reload_leaves_no_error_in_the_console(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = visit()
    said: list[str] = []
    reader.page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    reader.page.on("pageerror", lambda error: said.append(str(error)))
    engine.reading.clear()
    reader.drops(write_book(tmp_path))
    reader.sees("#book", "Reading")
    reader.page.reload()
    reader.sees("#book", "Reading")
    engine.reading.set()
    reader.sees("#book", "Read once")
    engine.enqueue("One | two.")
    reader.asks("Count!")
    reader.sees("#chat", "One")
    reader.page.reload()
    engine.writing.set()
    reader.sees("#chat", "One")
    print("SAID", said)
    assert [one for one in said if "abort" in one.casefold()] == []


@pytest.mark.parametrize("where", ["#chat", "#question", "#masthead"])
def test_a_file_dropped_anywhere_is_opened(
    where: str,
    visit: Callable[[], Reader],  # noqa: F811
) -> None:
    reader = visit()
    for there in (where, "#drop input[type=file]"):
        playwright.expect(reader.page.locator(there)).to_be_attached()
    reader.page.evaluate(DROP, [where, "dropped.txt", "It was a dark night. " * 20])
    reader.sees("#book", "dropped")
    reader.sees("#book", "Read once")


def test_the_bug_report_knows_that_a_race_has_decoded_plainly(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = racer(visit, tmp_path)
    report = reader.page.locator("#system-report textarea")
    goes_to(reader, "System")
    playwright.expect(report).to_have_value(re.compile("plain decoding was not done here yet"))
    goes_to(reader, "Race")
    for _ in range(2):
        engine.enqueue(WORDS)
    starts(reader)
    reader.sees(".verdict.good", "All 12 tokens")
    goes_to(reader, "System")
    playwright.expect(report).to_have_value(re.compile("Last race"))
    assert "not done here" not in report.input_value(), report.input_value()
