"""Books on disk in a real browser: offered in the card, kept, listed, removed; opened at once after a restart."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from app.runtime.saved_books import SavedBooks
from app.runtime.worker import EngineWorker
from tests.app.fakes import GRADIO_WARNINGS, worker_of, write_book
from tests.app.ui.test_page import with_words
from tests.browser.test_page import Reader, browser, playwright, visit  # noqa: F401
from tests.browser.test_race import goes_to, too_wide
from tests.core.toys import tiny_engine

pytestmark = [pytest.mark.browser, *GRADIO_WARNINGS]
TEXT = "It was a dark and stormy night. " * 60


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineWorker]:
    monkeypatch.setattr("core.kv_store.engine_store.WORTH_SECONDS", 0.0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    worker = worker_of(
        with_words(tiny_engine(context=2048, prefill_chunk=128)), saved_books=SavedBooks(tmp_path / "data" / "shelf")
    )
    yield worker
    worker.close()
    torch.set_num_threads(before)


def test_a_book_is_kept_listed_opened_and_removed(
    visit: Callable[[], Reader],  # noqa: F811
    worker: EngineWorker,
    tmp_path: Path,
) -> None:
    reader = visit()
    book = write_book(tmp_path, TEXT, "night.txt")
    reader.drops(book)
    reader.sees("#book", "Keep it on disk?")
    reader.page.locator("#book [data-act=keep]").click()
    reader.sees("#book", "Kept on disk: ")
    goes_to(reader, "Library")
    reader.page.locator("#kept >> text=Saved books").first.click()
    reader.sees("#kept-list", "night")
    room = reader.page.locator("#kept-room input")
    for _ in range(10):  # what opens gets its first value once more
        room.fill("7")
        reader.page.wait_for_timeout(300)
        if room.input_value() == "7":
            break
    room.press("Enter")
    reader.sees("#kept-list", "of 7.00 GiB")
    goes_to(reader, "Read")
    for _ in range(300):
        reader.page.wait_for_timeout(100 if worker._jobs else 0)
    worker._engine.close()  # type: ignore[union-attr]  # as after a restart: nothing is in memory
    other = visit()
    other.drops(book)
    other.sees("#book", "Opened from disk in")
    goes_to(other, "Library")
    other.page.locator("#kept >> text=Saved books").first.click()
    playwright.expect(other.page.locator("#kept-room input")).to_have_value("7")
    other.page.screenshot(path=tmp_path / "kept.png")
    other.page.locator("#kept-list [data-act^=unkeep]").click()
    other.sees("#kept-list", "No saved books yet")
    other.page.set_viewport_size({"width": 360, "height": 740})
    assert too_wide(other) <= 0 and other.outside == [] and other.page.evaluate("window.hacked") is None
