"""Conversations in a real browser: stopped, continued, changed, kept; the list; keys; code and mathematics; a phone."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.context.kept_documents import KeptDocuments
from app.conversations.store import Conversations
from app.runtime.worker import EngineWorker
from tests.app.fakes import GRADIO_WARNINGS, SECONDS, FakeEngine, worker_of, write_book
from tests.browser.test_page import Reader, browser, playwright, visit  # noqa: F401

pytestmark = [pytest.mark.browser, *GRADIO_WARNINGS]
RICH = """Here is `a < b`:

```python
if a < b and "<b>":
    print("&amp;")
```

and \\(x < y\\) too. <button class="act" value="delete:all">Harmless?</button>"""

# Every answer has its line of figures
FINISHED = """() => document.querySelectorAll("#chat .foot").length >=
  document.querySelectorAll("#chat .message.user:not(:has(.asked))").length"""


@pytest.fixture
def worker(engine: FakeEngine, tmp_path: Path) -> Iterator[EngineWorker]:
    """A worker whose conversations are kept in the test's own folder."""
    stored = Conversations(tmp_path / "conversations")
    kept = worker_of(engine, conversations=stored, kept=KeptDocuments(tmp_path / "texts"))
    yield kept
    kept.close()


def reads(visit: Callable[[], Reader], tmp_path: Path) -> Reader:  # noqa: F811
    """A reader with a book that was read."""
    reader = visit()
    reader.drops(write_book(tmp_path))
    reader.sees("#book", "Answers begin at once")
    return reader


# What opens for the first time gets its first values once more in the next frame.
TWO_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def presses(reader: Reader, label: str, *, last: bool = True) -> None:
    """A small button in the chat."""
    buttons = reader.page.locator("#chat button.act").get_by_text(label, exact=True)
    (buttons.last if last else buttons.first).click()


def asked_are(reader: Reader, wanted: list[str]) -> None:
    """The chat shows these questions, at once or as soon as it is drawn."""
    for _ in range(int(SECONDS * 10)):
        if questions(reader) == wanted:
            return
        reader.page.wait_for_timeout(100)
    assert questions(reader) == wanted


def questions(reader: Reader) -> list[str]:
    shown = reader.page.locator("#chat .message.user:not(:has(.asked))").all_inner_texts()
    return [text.strip() for text in shown]


def asks(reader: Reader, engine: FakeEngine, question: str, answer: str) -> None:
    engine.enqueue(answer)
    reader.asks(question)
    reader.sees("#chat", answer)
    reader.sees("#strip", "Answer complete")
    reader.page.wait_for_function(FINISHED)  # the last update of the answer is drawn


def test_ask_stop_continue_regenerate_edit_and_reload(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = reads(visit, tmp_path)
    engine.enqueue("One two | three.")
    reader.asks("Count to four!")
    reader.sees("#chat", "One two")
    reader.page.keyboard.press("Escape")
    reader.sees("#strip", "Stopped · 2 tokens")
    reader.sees("#chat .foot", "2 tokens")
    engine.writing.set()
    engine.enqueue("three four.")
    presses(reader, "Continue")
    reader.sees("#chat", "One two three four.")
    reader.sees("#chat .foot", "4 tokens")
    reader.sees("#chat .foot", "exact")
    asks(reader, engine, "And then?", "Five.")
    engine.enqueue("Six.")
    presses(reader, "Regenerate")
    reader.sees("#chat", "Six.")
    reader.sees("#chat .versions", "2/2")
    reader.page.locator("#chat .message-row:has(.asked)").first.hover()
    presses(reader, "Edit", last=False)
    reader.sees("#editing", "Changing question 1")
    box = reader.page.locator("#question textarea")
    playwright.expect(box).to_have_value("Count to four!")
    playwright.expect(box).to_be_focused()
    asks(reader, engine, "Count to two!", "One two, once more.")
    asked_are(reader, ["Count to two!"])
    playwright.expect(reader.page.locator("#editing .editing")).to_have_count(0)
    reader.page.reload()
    reader.sees("#chat", "One two, once more.")
    reader.sees("#chat .foot", "4 tokens")
    reader.page.locator("#chat .versions button").first.click()
    reader.sees("#chat", "Six.")
    asked_are(reader, ["Count to four!", "And then?"])
    presses(reader, "Delete")
    presses(reader, "Delete?")
    reader.sees("#chat", "Five.")
    assert reader.outside == []


def test_the_list_names_finds_exports_and_deletes(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = reads(visit, tmp_path)
    page, rows = reader.page, reader.page.locator("#conv-list li[data-id]")
    asks(reader, engine, "Where is the <b>teapot</b>?", "On the quay.")
    page.keyboard.press("Alt+n")
    reader.sees("#chat", "The book is open")
    asks(reader, engine, "Who sang?", "The choir.")
    playwright.expect(rows).to_have_count(2, timeout=SECONDS * 1000)
    reader.sees("#conv-list li.current", "Who sang?")
    rows.last.locator("summary").click()
    page.get_by_role("button", name="Rename").click()
    page.locator("#conv-list input").fill("The <i>pot</i>")
    page.keyboard.press("Enter")
    reader.sees("#conv-list", "The <i>pot</i>")
    page.locator("#conv-search input, #conv-search textarea").fill("quay")
    playwright.expect(rows).to_have_count(1, timeout=SECONDS * 1000)
    rows.first.locator(".open").click()
    reader.sees("#chat", "On the quay.")
    rows.first.locator("summary").click()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Export Markdown").click()
    assert saved.value.suggested_filename == "The-i-pot-i.md"
    assert "On the quay." in Path(saved.value.path()).read_text(encoding="utf-8")
    rows.first.locator("summary").click()
    rows.first.locator(".danger").click()
    reader.sees("#conv-list", "Nothing found.")
    reader.sees("#conv-list .list-note", "Deleted The <i>pot</i>. Undo")
    page.locator('[data-list="undelete"]').click()
    reader.sees("#chat", "On the quay.")
    reader.sees("#conv-list q mark", "quay")
    rows.first.locator("summary").click()
    rows.first.locator(".danger").click()
    reader.sees("#conv-list", "Nothing found.")
    page.locator("#conv-search input, #conv-search textarea").fill("")
    playwright.expect(rows).to_have_count(1, timeout=SECONDS * 1000)
    assert reader.outside == []


def test_a_new_conversation_takes_no_room_in_the_card(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    """The card went on counting the conversation that was left."""
    reader = reads(visit, tmp_path)
    asks(reader, engine, "Open?", "Quite open.")
    reader.sees("#book .budget", "Conversation")
    for button in ("new", "incognito"):
        reader.page.locator(f'[data-list="{button}"]').click()
        playwright.expect(reader.page.locator("#book .budget")).not_to_contain_text("Conversation")
        asks(reader, engine, "More?", "A little.")
        reader.sees("#book .budget", "Conversation")


def test_incognito_writes_nothing_and_two_tabs_keep_their_own(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    worker: EngineWorker,
    tmp_path: Path,
) -> None:
    first, second = reads(visit, tmp_path), reads(visit, tmp_path)
    first.page.locator('[data-list="incognito"]').click()
    first.sees("#conv-list", "nothing of this conversation is written to disk")
    asks(first, engine, "A secret?", "Yes, one.")
    assert worker.conversations.flush(SECONDS) and list((tmp_path / "conversations").iterdir()) == []
    said = first.page.evaluate("getComputedStyle(document.querySelector('#chat'), '::before').content")
    assert "Incognito" in said, "the chat itself says so"
    first.page.reload()
    first.sees("#chat", "Yes, one.")
    first.sees("#conv-list .incognito", "nothing of this conversation")
    asks(second, engine, "Open?", "Quite open.")
    first.page.locator('[data-list="incognito"]').click()
    first.sees("#conv-list", "Open?")
    asks(first, engine, "Mine?", "Yours.")
    playwright.expect(second.page.locator("#chat")).not_to_contain_text("Yours.")
    assert worker.conversations.flush(SECONDS) and len(list((tmp_path / "conversations").iterdir())) == 2


def test_code_mathematics_keys_and_settings(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = reads(visit, tmp_path)
    page, box = reader.page, reader.page.locator("#question textarea")
    engine._scripts.append([RICH])
    reader.asks("Show\u2028code!")
    reader.sees("#strip", "Answer complete")
    reader.sees("#chat pre", 'if a < b and "<b>":')
    reader.sees("#chat pre", 'print("&amp;")')
    reader.sees("#chat .katex", "x")
    reader.sees("#chat", '<button class="act" value="delete:all">Harmless?</button>')
    assert page.locator("#chat button.act", has_text="Harmless").count() == 0
    page.locator("#masthead").click()
    page.keyboard.press("?")
    playwright.expect(page.locator("#keys-help")).to_be_visible()
    page.keyboard.press("Escape")
    playwright.expect(page.locator("#keys-help")).to_be_hidden()
    page.keyboard.press("/")
    playwright.expect(box).to_be_focused()
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two?")
    playwright.expect(box).to_have_value("one\ntwo?")
    page.locator("#masthead").click()
    page.keyboard.press("Control+k")
    playwright.expect(box).to_be_focused()
    page.locator("#settings > button, #settings > .label-wrap").first.click()
    page.locator("#preset label", has_text="Balanced").click()
    page.locator("#advanced > button, #advanced > .label-wrap").first.click()
    temperature = page.locator("#advanced input[type=number]").first
    playwright.expect(temperature).to_have_value("0.6", timeout=SECONDS * 1000)
    page.evaluate(TWO_FRAMES)
    page.get_by_label("Seed").fill("11")
    page.get_by_label("Seed").press("Tab")
    page.wait_for_function("(localStorage.getItem('triforce-settings-1') ?? '').includes('\"11\"')")
    page.reload()
    reader.sees("#chat pre", "if a < b")
    asks(reader, engine, "And now?", "Drawn.")
    config = engine.configs[-1]
    assert (config.sampling.temperature, config.sampling.top_p, config.seed) == (0.6, 0.9, 11)


@pytest.mark.parametrize("width", [390])
def test_a_phone_shows_figures_and_list_without_sideways_scrolling(
    width: int,
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = visit()
    reader.page.set_viewport_size({"width": width, "height": 844})
    reader.drops(write_book(tmp_path))
    reader.sees("#book", "Read once")
    asks(reader, engine, "x" * 200, "A word " + "y" * 120)
    asks(reader, engine, "Once more?", "Another.")
    reader.page.locator("[data-fold=side]").click()
    reader.page.locator("#conv-list summary").first.click()
    wide = reader.page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth")
    assert wide <= 0, f"the page is {wide} pixels wider than the screen"
    inside(reader, "#conv-list .menu", width)
    reader.page.locator("[data-fold=side]").click()
    inside(reader, "#chat .foot", width)


def inside(reader: Reader, parts: str, width: int) -> None:
    """These parts are not cut at the sides."""
    for part in reader.page.locator(parts).all():
        bounds = part.bounding_box()
        assert bounds and bounds["x"] >= 0 and bounds["x"] + bounds["width"] <= width


def test_the_box_is_empty_at_once_and_what_is_typed_next_stays(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = reads(visit, tmp_path)
    box = reader.page.locator("#question textarea")
    for number in range(4):
        engine.enqueue(f"Answer {number}.")
        box.fill(f"Question {number}?")
        box.press("Enter")
        playwright.expect(box).to_have_value("")
        box.fill("typed while the answer comes")
        reader.sees("#chat", f"Answer {number}.")
        reader.sees("#strip", "Answer complete")
        reader.page.wait_for_timeout(400)
        assert box.input_value() == "typed while the answer comes"


def test_a_question_that_never_reached_the_server_comes_back(
    visit: Callable[[], Reader],  # noqa: F811
    tmp_path: Path,
) -> None:
    reader = reads(visit, tmp_path)
    reader.page.route("**/queue/join*", lambda route: route.abort(), times=1)
    reader.asks("Is anyone there?")
    box = reader.page.locator("#question textarea")
    playwright.expect(box).to_have_value("Is anyone there?")
    reader.page.wait_for_timeout(2500)  # meanwhile Gradio draws the page anew
    playwright.expect(box).to_have_value("Is anyone there?")
    box.fill("")
    reader.page.wait_for_timeout(500)
    assert box.input_value() == "", "what the reader takes out does not come back"


def test_enter_during_an_answer_takes_nothing_from_the_box_and_asks_nothing(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = reads(visit, tmp_path)
    box = reader.page.locator("#question textarea")
    engine.enqueue("One two | three.")
    reader.asks("Count!")
    for number, begins in enumerate(("One two", "Four five")):
        if number:
            engine.enqueue("Four five | six.")
            presses(reader, "Regenerate")
        reader.sees("#chat", begins)
        reader.sees("#strip", "Writing")
        reader.asks("And then?")
        reader.page.wait_for_timeout(500)
        engine.writing.set()
        reader.sees("#chat", ("three.", "six.")[number])
        reader.sees("#strip", "Answer complete")
        playwright.expect(reader.page.locator("#question .submit-button")).to_be_visible()
        reader.page.wait_for_timeout(1000)
        assert box.input_value() == "And then?" and len(engine.configs) == number + 1
    engine.enqueue("Nothing.")
    box.press("Enter")
    reader.sees("#chat", "Nothing.")


@pytest.mark.parametrize("slowdown", [1, 6])
def test_a_removed_book_comes_back_with_its_conversation(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
    slowdown: int,
) -> None:
    reader = reads(visit, tmp_path)
    asks(reader, engine, "Dark?", "Quite dark.")
    reader.slows(slowdown)
    reader.page.locator("#book").get_by_text("Start over").click()
    reader.sees("#book", "Removed book. Undo")
    playwright.expect(reader.page.locator("#chat")).not_to_contain_text("Quite dark.")
    reader.page.locator("#book").get_by_text("Undo").click()
    reader.sees("#chat", "Quite dark.")
    reader.sees("#book", "Answers begin at once")
    playwright.expect(reader.page.locator("#book .undo")).to_have_count(0)


def test_an_old_conversation_opens_its_book_again_with_one_click(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = reads(visit, tmp_path)
    reader.page.get_by_text("Keep for its conversations").click()
    reader.sees("#book", "Kept: its conversations open it again")
    asks(reader, engine, "Dark?", "Quite dark.")
    reader.page.locator("#book").get_by_text("Start over").click()
    reader.sees("#book", "Removed book")
    reader.page.locator("#conv-list li .open").click()
    reader.sees("#about-book", "This conversation is about book (book.txt)")
    reader.page.get_by_role("button", name="Open it again").click()
    playwright.expect(reader.page.locator("#about-book .about-book")).to_have_count(0)
    asks(reader, engine, "Still dark?", "Still.")
    reader.sees("#chat", "Quite dark.")
