"""Waiting for a reading, in a real browser: how long still, at every place where one looks, and a notice at its end."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.context.uploads import Upload
from app.documents.document import Extracting
from app.runtime import reading_job
from app.runtime.extracting import extract_one
from app.runtime.worker import EngineWorker
from tests.app.fakes import GRADIO_WARNINGS, FakeEngine, write_book
from tests.browser.test_page import Reader, browser, playwright, visit  # noqa: F401

pytestmark = [pytest.mark.browser, *GRADIO_WARNINGS]
NOTICES = """(permission) => {
  window.noticed = [];
  window.Notification = class {
    static permission = permission;
    static requestPermission() {
      Notification.permission = "granted";
      return Promise.resolve("granted");
    }
    constructor(title, { body }) { window.noticed.push(`${title}: ${body}`); }
  };
  Object.defineProperty(document, "hidden", { get: () => window.away ?? false });
}"""


def test_the_card_the_bubble_and_the_title_tell_how_long_it_still_takes(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = visit()
    playwright.expect(reader.page).to_have_title("TriForce Reader")
    engine.step = True  # every gate lets one chunk through
    reader.drops(write_book(tmp_path))
    reader.sees("#book .until", "25% · about 20 s left")
    playwright.expect(reader.page).to_have_title("25% · about 20 s left · TriForce Reader")
    engine.reading.set()  # the card keeps its nodes then, and changes their words: the title stayed at the first one
    reader.sees("#book .until", "50% · about 10 s left")
    playwright.expect(reader.page).to_have_title("50% · about 10 s left · TriForce Reader")
    engine.enqueue("At | last.")
    reader.asks("And then?")
    reader.sees("#chat .waits", "Waiting until the book is read")
    reader.sees("#chat .until", "50% · about 10 s left")
    engine.step = False
    engine.reading.set()
    reader.sees("#chat", "At")
    playwright.expect(reader.page).to_have_title("TriForce Reader")
    playwright.expect(reader.page.locator("#chat .waits")).to_have_count(0)
    engine.writing.set()
    reader.sees("#strip", "Answer complete")


@pytest.mark.parametrize(("away", "noticed"), [(True, ["The book is read: book"]), (False, [])])
def test_a_long_reading_that_ends_is_noticed_where_nobody_looks(
    away: bool,
    noticed: list[str],
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = visit()
    reader.page.add_init_script(f"({NOTICES})('default')")
    reader.page.reload()
    reader.sees("#masthead", "tokens of context")
    engine.step = True
    reader.drops(write_book(tmp_path))
    reader.sees("#book .until.long", "left")
    reader.page.get_by_text("Tell me when it is read").click()
    playwright.expect(reader.page.locator("[data-notify]")).to_be_hidden()
    reader.page.evaluate("(away) => (window.away = away)", away)
    engine.step = False
    engine.reading.set()
    reader.sees("#book", "Read once")
    playwright.expect(reader.page).to_have_title("TriForce Reader")
    assert reader.page.evaluate("window.noticed") == noticed


@pytest.fixture
def extraction(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Files are not extracted before this is set."""
    held = threading.Event()

    def slowly(upload: Upload, *rest: Any) -> Iterator[Extracting]:
        upload.stage = "extracting"
        while not held.wait(0.05) and not upload.stop.is_set():
            yield Extracting(num_done=0, num_pages=None)
        yield from extract_one(upload, *rest)

    monkeypatch.setattr(reading_job, "extract_one", slowly)
    yield held
    held.set()


def test_a_question_during_the_extraction_waits_and_is_answered(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
    extraction: threading.Event,
) -> None:
    reader = visit()
    reader.asks("Too early?")
    reader.sees("#told", "There is no book yet")
    reader.drops(write_book(tmp_path))
    reader.sees("#book", "Extracting text")
    reader.sees("#chat", "You can ask now")
    engine.enqueue("The whole book.")
    reader.asks("And now?")
    reader.sees("#chat .waits", "Waiting until the book is open")
    extraction.set()
    reader.sees("#chat", "The whole book.")
    reader.sees("#strip", "Answer complete")
    reader.sees("#book", "Read once")
    playwright.expect(reader.page.locator("#chat .waits")).to_have_count(0)
    playwright.expect(reader.page.locator("#question textarea")).to_have_value("")


def test_that_there_is_no_book_is_not_said_any_more_when_one_opens(
    visit: Callable[[], Reader],  # noqa: F811
    tmp_path: Path,
) -> None:
    reader = visit()
    reader.asks("Too early?")
    reader.sees("#told .problem", "There is no book yet")
    reader.drops(write_book(tmp_path))
    reader.sees("#chat", "The book is open")
    playwright.expect(reader.page.locator("#told .problem")).to_have_count(0)
    playwright.expect(reader.page.locator("#question textarea")).to_have_value("Too early?")


def test_a_question_that_waits_for_a_text_comes_back_where_it_cannot_be_read(
    visit: Callable[[], Reader],  # noqa: F811
    tmp_path: Path,
    extraction: threading.Event,
) -> None:
    reader = visit()
    reader.drops(write_book(tmp_path, "", "empty.txt"))
    reader.sees("#book", "Extracting text")
    reader.asks("Anything in it?")
    reader.sees("#chat .waits", "Waiting until the book is open")
    extraction.set()
    reader.sees("#told .problem", "There is no book yet")
    reader.sees("#book .problem", "empty.txt")
    playwright.expect(reader.page.locator("#question textarea")).to_have_value("Anything in it?")


def test_a_reload_during_the_extraction_leaves_the_question_in_the_box(
    visit: Callable[[], Reader],  # noqa: F811
    tmp_path: Path,
    extraction: threading.Event,
) -> None:
    reader = visit()
    reader.drops(write_book(tmp_path))
    reader.sees("#book", "Extracting text")
    reader.asks("What is it about?")
    reader.sees("#chat .waits", "Waiting until the book is open")
    reader.page.reload()
    reader.sees("#book .problem", "it was stopped on the way")
    playwright.expect(reader.page.locator("#question textarea")).to_have_value("What is it about?")


def test_a_question_that_was_taken_back_does_not_return_with_a_reload(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = visit()
    engine.reading.clear()
    reader.drops(write_book(tmp_path))
    reader.sees("#book", "Reading")
    reader.asks("Never mind this.")
    reader.sees("#chat .waits", "Waiting until the book is read")
    reader.page.locator("#stop-reading").click()
    box = reader.page.locator("#question textarea")
    playwright.expect(box).to_have_value("Never mind this.")
    box.fill("")
    engine.reading.set()
    reader.page.reload()
    reader.sees("#book", "book")
    reader.page.wait_for_timeout(1500)
    playwright.expect(box).to_have_value("")


def test_beside_an_old_conversation_the_chat_begins_anew_with_the_book_that_comes(
    visit: Callable[[], Reader],  # noqa: F811
    worker: EngineWorker,
    engine: FakeEngine,
    tmp_path: Path,
    extraction: threading.Event,
) -> None:
    extraction.set()
    reader = visit()
    reader.drops(write_book(tmp_path))
    reader.sees("#book", "Read once")
    engine.enqueue("An old answer.")
    reader.asks("An old question?")
    reader.sees("#chat", "An old answer.")
    (session,) = worker.sessions.all()
    old = session.dialogue
    list(worker.arrange(session.id, lambda library: library.remove(0)))
    with session.lock:
        session.dialogue = old
    extraction.clear()
    reader.drops(write_book(tmp_path, "Quite another book. " * 9, "new.txt"))
    reader.sees("#book", "Extracting text")
    engine.enqueue("A new | answer.")
    reader.asks("A new question?")
    reader.sees("#chat .waits", "Waiting until the book is open")
    extraction.set()
    reader.sees("#chat", "A new")
    playwright.expect(reader.page.locator("#chat")).not_to_contain_text("An old question?")
    engine.writing.set()
    reader.sees("#strip", "Answer complete")
