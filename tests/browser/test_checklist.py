"""What is too long, in a real browser: chapters are ticked, the total is true, one button reads them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from app.runtime.context_loader import room
from app.runtime.worker import EngineWorker
from app.ui.reading.budget_view import num_pages
from app.ui.reading.checklist_view import chosen
from tests.app.fakes import GRADIO_WARNINGS, write_book
from tests.browser.test_page import EVIL, Reader, browser, playwright, visit  # noqa: F401
from tests.browser.test_race import goes_to, too_wide

pytestmark = [pytest.mark.browser, *GRADIO_WARNINGS]
LENGTHS = (600, 800, 5000, 900, 700, 1000)  # characters of chapters; the fake model has 4,096 tokens of one character


def write_chapters(folder: Path, name: str = "long.md") -> Path:
    """A book of chapters that does not fit; its third chapter does not fit alone."""
    lines = [
        f"# The {number}th part {EVIL}\n\n" + f"Line {number} of the harbour. " * (length // 25) + "\n\n"
        for number, length in enumerate(LENGTHS, 1)
    ]
    return write_book(folder, "".join(lines), name)


def total(worker: EngineWorker, parts: str) -> tuple[int, int, int]:
    """Tokens of a choice, the room that there is, and pages of the choice, as the server counts them.

    `parts` names the first and the second book.
    """
    (session,) = worker.sessions.all()
    uploads = session.uploads
    assert uploads.meter and uploads.fit
    for number, book in enumerate(uploads.library.books):
        parts = parts.replace(f"{number}=", f"{book.key}=")
    library = chosen(uploads.library, parts)
    return uploads.meter.library(library), room(uploads.fit), num_pages(library)


def shows(output: "playwright.Locator", tokens: int, free: int, pages: int, more: str = "") -> None:
    """The total below the list: pages and their share of the room in words, tokens in the tooltip."""
    share = f"fits, {tokens * 100 // free}%" if tokens <= free else f"does not fit, {-(-tokens * 100 // free)}%"
    playwright.expect(output).to_have_attribute("title", f"{tokens:,} of {free:,} tokens")
    ticked = "1 page" if pages == 1 else f"{pages} pages"
    playwright.expect(output).to_have_text(f"{ticked} ticked: {share} of the room{more}")


def test_chapters_are_ticked_by_keyboard_and_read_with_one_button(
    visit: Callable[[], Reader],  # noqa: F811
    worker: EngineWorker,
    tmp_path: Path,
) -> None:
    reader = visit()
    reader.drops(write_chapters(tmp_path))
    reader.sees("#book .too-long", "Nothing is cut by itself")
    page, output = reader.page, reader.page.locator("#choosing output")
    boxes = page.locator("#choosing [name=chapter]")
    playwright.expect(boxes).to_have_count(6)
    playwright.expect(boxes.nth(2)).to_be_disabled()
    shows(output, *total(worker, "0=c1-2"))
    page.locator("#book [data-choosing]").focus()
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#choosing-title")).to_be_focused()
    page.keyboard.press("Tab")  # the scrolled list, or the whole book
    boxes.nth(1).focus()
    page.keyboard.press("Space")
    page.keyboard.press("Tab")  # passes by what is too long alone
    playwright.expect(boxes.nth(3)).to_be_focused()
    page.keyboard.press("Space")
    shows(output, *total(worker, "0=c1,4"))
    for number in (1, 4, 5):
        boxes.nth(number).check()
    shows(output, *total(worker, "0=c1-2,4-6"))
    playwright.expect(page.locator("#choosing .go")).to_be_disabled()
    boxes.nth(0).uncheck()
    boxes.nth(5).uncheck()
    page.locator("#choosing .go").focus()
    page.keyboard.press("Enter")
    reader.sees("#book", "Read once")
    playwright.expect(page.locator("#choosing form")).to_have_count(0)
    reader.sees("#book .facts", "chapters 2, 4–5")
    assert page.evaluate("window.hacked") is None


def test_of_several_documents_those_with_a_tick_are_read(
    visit: Callable[[], Reader],  # noqa: F811
    worker: EngineWorker,
    tmp_path: Path,
) -> None:
    reader = visit()
    small = write_book(tmp_path, "A small book of the harbour. " * 18, "small.txt")
    paged = write_book(tmp_path, "A line of the pages. " * 600, "paged.txt")
    reader.page.set_input_files("#drop input[type=file]", [str(write_chapters(tmp_path)), str(paged), str(small)])
    reader.sees("#choosing", "Choose what is read")
    page, output = reader.page, reader.page.locator("#choosing output")
    long, pages, last = (page.locator("#choosing fieldset").nth(number) for number in range(3))
    long.locator("[name=book]").click()  # all that can be ticked, then nothing
    playwright.expect(long.locator("[name=chapter]:checked")).to_have_count(5)
    long.locator("[name=book]").click()
    playwright.expect(long.locator("[name=chapter]:checked")).to_have_count(0)
    pages.locator("[name=book]").check()
    last.locator("[name=book]").check()
    pages.locator("[name=first]").fill("2")
    pages.locator("[name=last]").fill("2")
    shows(output, *total(worker, "1=#2-#2;2=all"), more=" · closes 1 document")
    pages.locator("[name=last]").fill("99")
    playwright.expect(output).to_have_text("These pages are not in the document.")
    playwright.expect(page.locator("#choosing .go")).to_be_disabled()
    pages.locator("[name=last]").fill("2")
    page.set_viewport_size({"width": 390, "height": 844})
    assert too_wide(reader) <= 0
    page.locator("#choosing .go").click()
    reader.sees("#book", "Read once")
    reader.sees("#book", "2 documents, read in this order")


def test_a_small_document_beside_a_long_one_is_not_said_to_be_too_long(
    visit: Callable[[], Reader],  # noqa: F811
    tmp_path: Path,
) -> None:
    reader = visit()
    small = write_book(tmp_path, "".join(f"# Part {n}\n\n" + "A line. " * 15 + "\n\n" for n in range(4)), "small.md")
    reader.page.set_input_files("#drop input[type=file]", [str(write_chapters(tmp_path)), str(small)])
    reader.sees("#choosing", "Choose what is read")
    row = reader.page.locator("#choosing fieldset").nth(1)
    playwright.expect(row.locator("[name=chapter]:disabled, em")).to_have_count(0)
    goes_to(reader, "Library")
    listed = reader.page.locator("#library-list .document-row").nth(1)
    playwright.expect(listed).to_contain_text("The other documents leave no room")
    playwright.expect(listed.locator(".offer")).to_have_count(0)


def test_a_chapter_too_long_alone_opens_into_its_sub_chapters(
    visit: Callable[[], Reader],  # noqa: F811
    worker: EngineWorker,
    tmp_path: Path,
) -> None:
    parts = "".join(f"## Part {number} {EVIL}\n\n" + "A line of it. " * 60 + "\n\n" for number in range(5))
    parts += "## The whole harbour\n\n" + "A line of it. " * 400 + "\n\n"
    reader = visit()
    reader.drops(write_book(tmp_path, f"# First\n\nShort.\n\n# Second\n\n{parts}# Third\n\nShort.\n", "deep.md"))
    reader.sees("#choosing", "Choose what is read")
    page, output = reader.page, reader.page.locator("#choosing output")
    inside = page.locator("#choosing details")
    playwright.expect(inside.locator("[name=chapter]")).to_have_count(6)
    playwright.expect(inside.locator("summary em")).to_have_text("3 of 6 parts")
    playwright.expect(inside.locator("[name=chapter]").nth(0)).to_be_visible()  # open where something is ticked
    playwright.expect(inside.locator("[name=chapter]").nth(5)).to_be_disabled()  # even this part is too long
    inside.locator("[name=chapter]").nth(1).uncheck()
    page.locator("#choosing [name=chapter]").last.check()
    shows(output, *total(worker, "0=c1,2.1,2.3,3"))
    page.set_viewport_size({"width": 390, "height": 844})
    assert too_wide(reader) <= 0
    page.set_viewport_size({"width": 1360, "height": 860})
    page.locator("#choosing .go").click()
    reader.sees("#book", "Read once")
    reader.sees("#book .facts", "chapters 1, 2.1, 2.3, 3")
    (session,) = worker.sessions.all()
    assert session.book is not None and session.book.library.text.count("## Part") == 2
    assert page.evaluate("window.hacked") is None
