"""The library and the strip of pages in a real browser: folders, a thousand pages, drags, images; on a phone."""

from collections.abc import Callable
from pathlib import Path

import pytest

from app.runtime.worker import EngineWorker
from tests.app.documents.conftest import MakePdf, make_pdf, writer  # noqa: F401
from tests.app.fakes import GRADIO_WARNINGS, FakeEngine, write_book
from tests.browser.test_page import EVIL, Reader, browser, playwright, visit  # noqa: F401
from tests.browser.test_race import goes_to, too_wide
from tests.browser.test_waiting import Held

pytestmark = [pytest.mark.browser, *GRADIO_WARNINGS]
STORY = "The carved teapot was lost in the great spring tide, and nobody in the harbour ever asked for it. "

FOLDER_DROPPED = """story => {
  const file = (name) => ({ name, isDirectory: false, file: (done) => done(new File([name + story], name)) });
  const folder = (name, ...inside) => ({
    name, isDirectory: true,
    createReader: () => ({ readEntries: (done) => done(inside.splice(0, 1)) }),
  });
  const whole = folder("books",
    folder("Part 10", file("b.txt"), file(".hidden")), folder(".git", file("x.txt")),
    folder("Part 2", file("a 10.txt"), file("a 9.txt")));
  const event = new Event("drop", { bubbles: true, cancelable: true });
  Object.defineProperty(event, "dataTransfer", { value: { items: [{ webkitGetAsEntry: () => whole }], files: [] } });
  document.querySelector("#drop button").dispatchEvent(event);
}"""


def test_a_dropped_folder_opens_as_its_files_in_natural_order(
    visit: Callable[[], Reader],  # noqa: F811
) -> None:
    reader = visit()
    reader.page.wait_for_selector("#drop button")
    reader.page.evaluate(FOLDER_DROPPED, STORY)
    reader.sees("#book", "3 documents, read in this order")
    goes_to(reader, "Library")
    titles = ["books - Part 2 - a 9", "books - Part 2 - a 10", "books - Part 10 - b"]
    playwright.expect(reader.page.locator("#library-list h4")).to_have_text(titles)


def test_a_thousand_pages_stay_out_of_the_page(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    worker: EngineWorker,
    tmp_path: Path,
) -> None:
    engine.context = 10_000_000
    engine.weights = [0.5, 0.0, 0.0, 0.5]
    reader, received = visit(), []
    network = reader.page.context.new_cdp_session(reader.page)
    network.on("Network.dataReceived", lambda event: received.append(event["dataLength"]))  # streams too
    network.send("Network.enable")
    lines = [f"Line {number} of the long book tells of nothing. " for number in range(60_000)]
    book = write_book(tmp_path, "".join(lines), "long.txt")
    reader.drops(book)
    reader.sees("#book", "Read once")
    shelved = worker.sessions.get(reader.page.evaluate("window.triforceSession()")).book
    assert shelved is not None and len(shelved.library.pages) > 1000
    reader.page.wait_for_timeout(500)
    engine.enqueue("Of nothing.")
    reader.asks("Of what?")
    reader.sees("#strip", "Answer complete")
    goes_to(reader, "Library")
    reader.page.get_by_role("button", name="Preview long").click()
    reader.sees("#library-preview .page-text", "Line 0 of the long book")
    goes_to(reader, "Read")
    held = reader.page.evaluate("[document.documentElement.outerHTML.length, document.querySelectorAll('*').length]")
    shown = reader.page.locator("body").inner_text()
    assert "Line 30000 of" not in shown and held[0] < book.stat().st_size / 2 and held[1] < 4000, held
    assert 1000 < sum(received) < book.stat().st_size / 2, "its text was sent"


def test_the_strip_opens_pages_and_chips_tell_real_quotations_from_invented_ones(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = visit()
    reader.drops(write_book(tmp_path, STORY * 30))
    reader.sees("#book", "Read once")
    reader.sees("#where", "Ask a question")
    engine.weights = [0.4, 0, 0, 0, 0.1, *[0] * 280, 0.3]
    engine.enqueue('So: "the carved teapot was lost in the great" | and "somebody found it under the pier".')
    reader.asks("When?")
    reader.sees("#where", "Guessed mostly from")
    bars = reader.page.locator("#where .bar-page")
    playwright.expect(bars).to_have_count(2)
    reader.page.locator("[data-fold=figures]").click()
    bars.nth(1).focus()
    engine.weights = [0.4, 0, 0, 0, 0.3, *[0] * 280, 0.1]
    engine.writing.set()
    reader.sees("#chat .quote.found", "page 1")
    reader.sees("#chat .quote.not-found", "not in the book")
    playwright.expect(bars.nth(1)).to_be_focused()  # though it was drawn anew
    for _ in range(10):  # what is drawn anew between focus and key takes the key
        bars.nth(1).press("Enter")
        reader.page.wait_for_timeout(500)
        if reader.page.locator("#where-page h3").count():
            break
    reader.sees("#where-page h3", "Page 2")
    reader.page.keyboard.press("ArrowLeft")
    playwright.expect(bars.nth(0)).to_be_focused()
    bars.nth(0).click()
    reader.sees("#where-page mark", "the great")
    engine.enqueue("It says no more.")
    reader.asks("And then?")
    reader.sees("#chat", "no more")
    reader.page.locator("#chat .quote.found").click()  # of an earlier answer
    reader.sees("#where-page mark.quoted", "The carved teapot was lost in the great")
    reader.page.set_viewport_size({"width": 360, "height": 740})
    assert too_wide(reader) <= 0
    goes_to(reader, "Library")
    reader.page.get_by_role("button", name="Preview book").click()
    reader.sees("#library-preview .page-text", "The carved teapot")
    assert too_wide(reader) <= 0


def test_a_search_during_another_is_not_lost(
    visit: Callable[[], Reader],  # noqa: F811
    tmp_path: Path,
) -> None:
    reader = visit()
    reader.drops(write_book(tmp_path, STORY * 4))
    reader.sees("#book", "Read once")
    goes_to(reader, "Library")
    field = reader.page.locator("#find input[type=search]")
    first = Held(reader, "**/run/predict")
    for words in ("spring", "quay", "teapot"):
        field.fill(words)
        field.press("Enter")
    reader.page.locator("#library-list [data-act^=preview]").first.click()  # the button for another component
    first.let_go()
    playwright.expect(reader.page.locator("#found mark").first).to_have_text("teapot")
    reader.sees("#library-preview", "spring tide")


def test_a_chip_opens_the_page_as_an_image_with_its_mark(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    make_pdf: MakePdf,  # noqa: F811
) -> None:
    lines = [f"This is line {number}, of which nobody ever said anything." for number in range(20)]
    book = make_pdf(lines, [*lines, STORY.strip(), *lines], lines)
    reader = visit()
    page = reader.page
    page.set_viewport_size({"width": 1400, "height": 900})
    reader.drops(book)
    reader.sees("#book", "Read once")
    engine.enqueue('So: "the carved teapot was lost in the great spring tide".')
    reader.asks("When?")
    page.locator("#chat .quote.found").click()
    sheet, mark = page.locator("#where-page .sheet"), page.locator("#where-page .sheet i.quoted")
    playwright.expect(mark).to_have_count(1)
    assert page.evaluate("document.querySelector('#where-page img').decode().then(() => true)")
    beside, chat = page.locator("#where-page .card").bounding_box(), page.locator("#chat").bounding_box()
    assert beside and chat and beside["x"] >= chat["x"] + chat["width"], "beside the chat, not above it"
    box, whole = mark.bounding_box(), sheet.bounding_box()
    assert box and whole and abs((box["y"] - whole["y"]) / whole["height"] - (42 + 14 * 20 - 9) / 842) < 0.01
    reader.sees("#where-page", "The marked words stand in the answer.")
    page.locator("#where-page [data-side]").click()
    reader.sees("#where-page mark.quoted", "The carved teapot was lost in the great")
    playwright.expect(sheet).not_to_be_visible()
    page.locator("#where-page [data-side]").click()
    narrow = whole["width"]
    page.locator("#where-page [data-zoom='1']").dblclick()
    playwright.expect(page.locator("#where-page .zoomed")).to_have_text("150%")
    page.wait_for_function(  # a sharper image has come
        "(width) => Number(document.querySelector('#where-page .sheet')?.dataset.asked) > 1.4 * width", arg=narrow
    )
    assert round(sheet.bounding_box()["width"] / narrow, 1) == 1.5  # type: ignore[index]
    playwright.expect(mark).to_be_in_viewport()
    following = page.locator("#where-page [aria-label='Next page']")
    following.click()
    reader.sees("#where-page h3", "Page 3")
    playwright.expect(mark).to_have_count(0)
    playwright.expect(following).to_be_disabled()
    page.locator("#where-page [aria-label='Previous page']").click()
    playwright.expect(mark).to_have_count(1)
    page.keyboard.press("Escape")
    playwright.expect(page.locator("#where-page .card")).to_have_count(0)
    assert reader.outside == []


def test_a_preview_shows_the_page_beside_its_text_and_keys_turn_it(
    visit: Callable[[], Reader],  # noqa: F811
    make_pdf: MakePdf,  # noqa: F811
) -> None:
    reader = visit()
    page = reader.page
    page.set_viewport_size({"width": 1400, "height": 900})
    reader.drops(make_pdf(*([f"Words of page {number}, {EVIL}"] for number in (1, 2, 3))))
    reader.sees("#book", "Read once")
    goes_to(reader, "Library")
    page.get_by_role("button", name="Preview book").click()
    paper, text = page.locator("#library-preview .paper"), page.locator("#library-preview .page-text")
    playwright.expect(paper).to_be_visible()
    playwright.expect(text).to_contain_text("Words of page 1")
    left, right = paper.bounding_box(), text.bounding_box()
    assert left and right and left["x"] + left["width"] <= right["x"]
    for key, number in (("ArrowRight", 2), ("ArrowRight", 3), ("ArrowLeft", 2)):
        paper.press(key)
        playwright.expect(text).to_contain_text(f"Words of page {number}")
        playwright.expect(paper).to_be_focused()
    page.set_viewport_size({"width": 390, "height": 840})
    assert too_wide(reader) <= 0
    playwright.expect(text).not_to_be_visible()
    page.locator("#library-preview [data-side]").click()
    playwright.expect(text).to_be_visible()
    assert page.evaluate("window.hacked") is None and reader.outside == []


def test_documents_are_ordered_by_dragging(visit: Callable[[], Reader], tmp_path: Path) -> None:  # noqa: F811
    reader = visit()
    files = [str(write_book(tmp_path, f"The book {name}. " * 20, f"{name}.txt")) for name in "ab"]
    reader.page.set_input_files("#drop input[type=file]", files)
    reader.sees("#book", "2 documents, read in this order")
    reader.page.get_by_role("tab", name="Library").click()
    rows = reader.page.locator("#library-list [data-row]")
    playwright.expect(rows.first.locator("h4")).to_have_text("a")
    rows.last.locator("[data-drag]").drag_to(rows.first)
    playwright.expect(rows.first.locator("h4")).to_have_text("b")
    playwright.expect(rows.last.locator("h4")).to_have_text("a")
