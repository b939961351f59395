"""Waiting for a reading, in a real browser: how long still, at every place where one looks, and a notice at its end."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from app.ui.reading.answers import Answers

from app.runtime.worker import EngineWorker
from tests.app.fakes import GRADIO_WARNINGS, FakeEngine, close_book, hold_extraction, write_book
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
    yield from hold_extraction(monkeypatch)


def asks_early(reader: Reader, file: Path, question: str) -> None:
    """Drop a file and ask while its text is being extracted."""
    reader.drops(file)
    reader.sees("#book", "Extracting text")
    reader.asks(question)
    reader.sees("#chat .waits", "Waiting until the book is open")


def test_a_question_during_the_extraction_waits_and_is_answered(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
    extraction: threading.Event,
) -> None:
    reader = visit()
    reader.asks("Too early?")
    reader.sees("#told", "There is no book yet")
    engine.enqueue("The whole book.")
    asks_early(reader, write_book(tmp_path), "And now?")
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


class Held:
    """Requests that reach the server only when they are let go."""

    def __init__(self, reader: Reader, address: str, words: str = "") -> None:
        """`words`: only requests in which these stand."""
        self._routes: list[playwright.Route] = []
        self._holds, self._words, self._page = True, words, reader.page
        reader.page.route(address, self._take)

    def _take(self, route: "playwright.Route") -> None:
        if self._holds and self._words in (route.request.post_data or ""):
            self._routes.append(route)
        else:
            route.continue_()

    def let_go(self, number: int | None = None) -> None:
        """All of them, or only one; its answer has come then."""
        if number is not None:
            with self._page.expect_response(self._routes[number].request.url):
                self._routes.pop(number).continue_()
            return
        self._holds = False
        for route in self._routes:
            route.continue_()

    def fail(self) -> None:
        self._holds = False
        for route in self._routes:
            route.abort()


def drops_slowly(reader: Reader, tmp_path: Path, address: str) -> Held:
    """A file of which the server knows nothing yet."""
    reader.page.wait_for_timeout(1500)  # what the page asks when it has loaded goes through
    held = Held(reader, address)
    reader.drops(write_book(tmp_path))
    playwright.expect(reader.page.locator("#drop :is(.uploading, .file-preview)").first).to_be_visible()
    return held


UPLOAD, OPENING = "**/upload?*", "**/queue/join*"


def test_a_question_asked_before_the_server_knows_the_page_is_not_one_of_an_old_page(
    visit: Callable[[], Reader],  # noqa: F811
) -> None:
    reader = visit()
    reader.page.evaluate("sessionStorage.clear()")
    entry = Held(reader, "**/run/predict")
    reader.page.reload()
    reader.sees("#masthead", "tokens of context")
    reader.asks("Too early?")
    reader.page.wait_for_timeout(1000)
    playwright.expect(reader.page.locator("#told .problem")).to_have_count(0)
    entry.let_go()
    reader.sees("#told .problem", "There is no book yet")
    playwright.expect(reader.page.locator("#question textarea")).to_have_value("Too early?")


@pytest.mark.parametrize("address", [UPLOAD, OPENING], ids=["on its way", "not yet opened"])
def test_a_question_waits_for_a_file_that_is_still_uploaded(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
    address: str,
) -> None:
    reader = visit()
    engine.enqueue("It was dark.")
    upload = drops_slowly(reader, tmp_path, address)
    reader.asks("How was it?")
    reader.sees("#told .sending", "as soon as the file is uploaded")
    box = reader.page.locator("#question textarea")
    playwright.expect(box).to_have_value("How was it?")
    box.press("Enter")
    reader.page.locator("#question .submit-button").click()
    upload.let_go()
    reader.sees("#chat", "It was dark.")
    reader.sees("#strip", "Answer complete")
    playwright.expect(reader.page.locator("#told :is(.sending, .problem)")).to_have_count(0)
    playwright.expect(reader.page.locator("#chat").get_by_text("How was it?")).to_have_count(1)
    playwright.expect(box).to_have_value("")
    assert reader.page.evaluate("sessionStorage.getItem('triforce-sent')") is None


@pytest.mark.parametrize("address", [UPLOAD, OPENING], ids=["on its way", "not yet opened"])
def test_a_question_about_a_file_that_does_not_arrive_stays_in_the_box(
    visit: Callable[[], Reader],  # noqa: F811
    tmp_path: Path,
    address: str,
) -> None:
    reader = visit()
    upload = drops_slowly(reader, tmp_path, address)
    reader.asks("How was it?")
    reader.sees("#told .sending", "as soon as the file is uploaded")
    upload.fail()
    playwright.expect(reader.page.locator("#told .sending")).to_have_count(0)
    reader.page.wait_for_timeout(1000)
    playwright.expect(reader.page.locator("#told .problem")).to_have_count(0)
    playwright.expect(reader.page.locator("#question textarea")).to_have_value("How was it?")
    reader.drops(write_book(tmp_path, name="again.txt"))
    reader.sees("#book", "Read once")


def test_a_question_asked_before_the_page_s_own_event_does_not_come_back(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = visit()
    reader.drops(write_book(tmp_path))
    reader.sees("#book", "Read once")
    engine.enqueue("It was dark.")
    asked = Held(reader, OPENING)
    reader.asks("How was it?")
    reader.page.evaluate("window.triforceChat.kept()")  # as that event does
    reader.page.wait_for_timeout(1000)
    playwright.expect(reader.page.locator("#question textarea")).to_have_value("")
    asked.let_go()
    reader.sees("#chat", "It was dark.")


def test_a_question_asked_between_the_end_of_an_answer_and_of_its_event_is_not_lost(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = Answers._watch_answer

    def ends_late(*args: Any) -> Iterator[Any]:
        yield from shown(*args)
        time.sleep(3)

    monkeypatch.setattr(Answers, "_watch_answer", ends_late)
    reader = visit()
    reader.drops(write_book(tmp_path))
    reader.sees("#book", "Read once")
    for answer in ("It was | dark.", "And stormy."):
        engine.enqueue(answer)
    reader.asks("How was it?")
    reader.sees("#chat", "It was")
    box = reader.page.locator("#question textarea")
    box.fill("And then?")
    box.press("Enter")  # an answer is being written: it stays
    reader.page.wait_for_timeout(500)
    engine.writing.set()
    reader.sees("#chat", "dark.")
    playwright.expect(reader.page.locator("#question .submit-button")).to_be_visible()
    playwright.expect(box).to_have_value("And then?")
    box.press("Enter")
    reader.sees("#chat", "And stormy.")
    playwright.expect(reader.page.locator("#chat").get_by_text("And then?")).to_have_count(1)
    playwright.expect(box).to_have_value("")


def test_a_question_that_did_not_arrive_is_put_back_however_late_the_page_is_drawn_anew(
    visit: Callable[[], Reader],  # noqa: F811
) -> None:
    reader = visit()
    reader.page.evaluate("sessionStorage.setItem('triforce-sent', 'How was it?')")
    reader.page.clock.install()
    reader.page.reload()
    box = reader.page.locator("#question textarea")
    playwright.expect(box).to_have_value("How was it?")
    reader.page.clock.fast_forward(60_000)
    empty = "(box) => { box.value = ''; box.dispatchEvent(new Event('input', { bubbles: true })); }"
    box.evaluate(empty)  # whatever draws it anew
    playwright.expect(box).to_have_value("How was it?")
    box.fill("Something new")
    box.evaluate(empty)
    reader.page.clock.fast_forward(1_000)
    playwright.expect(box).to_have_value("")


def test_a_question_that_waits_for_a_text_comes_back_where_it_cannot_be_read(
    visit: Callable[[], Reader],  # noqa: F811
    tmp_path: Path,
    extraction: threading.Event,
) -> None:
    reader = visit()
    asks_early(reader, write_book(tmp_path, "", "empty.txt"), "Anything in it?")
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
    asks_early(reader, write_book(tmp_path), "What is it about?")
    reader.page.reload()
    reader.sees("#book .problem", "it was stopped on the way")
    playwright.expect(reader.page.locator("#question textarea")).to_have_value("What is it about?")


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
    close_book(worker, worker.sessions.all()[0])
    reader.drops(write_book(tmp_path, "Far too much. " * 900, "long.txt"))
    reader.sees("#book", "Too long")
    reader.sees("#about-book", "This conversation is about book")
    playwright.expect(reader.page.locator("#about-book")).not_to_contain_text("being opened")
    reader.page.locator("#book").get_by_text("Start over").click()
    reader.sees("#book", "Removed long")
    extraction.clear()
    engine.enqueue("A new | answer.")
    asks_early(reader, write_book(tmp_path, "Quite another book. " * 9, "new.txt"), "A new question?")
    extraction.set()
    reader.sees("#chat", "A new")
    playwright.expect(reader.page.locator("#chat")).not_to_contain_text("An old question?")
    engine.writing.set()
    reader.sees("#strip", "Answer complete")
