"""The journey of a saved book: kept on disk, opened instead of read again, removed. On a real engine."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from app.runtime.saved_books import SavedBooks
from app.runtime.worker import EngineWorker
from tests.app.fakes import worker_of, write_book
from tests.browser.journeys.page import JOURNEY, Page, expect
from tests.core.toys import tiny_engine, with_words

pytestmark = JOURNEY


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineWorker]:
    """A tiny model for which every book is worth saving, however quickly it was read."""
    monkeypatch.setattr("core.kv_store.engine_store.WORTH_SECONDS", 0.0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    engine = with_words(tiny_engine(context=2048, prefill_chunk=128))
    worker = worker_of(engine, saved_books=SavedBooks(tmp_path / "data" / "shelf"))
    yield worker
    worker.close()
    torch.set_num_threads(before)


def test_a_saved_book_is_opened_instead_of_read_again(
    visit: Callable[..., Page], worker: EngineWorker, tmp_path: Path
) -> None:
    page = visit()
    night = write_book(tmp_path, "It was a dark and stormy night. " * 60, "night.txt")
    page.reads(night)
    expect(page.book).to_contain_text("Save what was read?")
    page.presses("Save it")
    expect(page.book).to_contain_text("Saved on disk: ")
    while len(worker.jobs):
        time.sleep(0.01)
    worker._engine.close()  # type: ignore[union-attr]  # as after a restart: nothing is in memory
    page = visit()
    page.reads(night)
    expect(page.book).to_contain_text("Opened from disk in")
    page.goes_to("Library")
    page.tab.get_by_role("button", name="Saved books").click()
    saved = page.place("region", "Saved books")
    expect(saved).to_contain_text("night")
    room = page.tab.get_by_role("spinbutton", name="Room, GiB")
    expect(room).to_have_value("40")
    room.fill("7")
    room.press("Enter")
    expect(saved).to_contain_text("of 7.00 GiB")
    saved.get_by_role("button", name="Remove").click()
    expect(saved).to_contain_text("No saved books yet")
