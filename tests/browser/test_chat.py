"""Conversations in a real browser: code and mathematics, and questions that are sent in haste or not at all."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.context.kept_documents import KeptDocuments
from app.conversations.store import Conversations
from app.runtime.worker import EngineWorker
from tests.app.fakes import GRADIO_WARNINGS, FakeEngine, worker_of, write_book
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


def presses(reader: Reader, label: str) -> None:
    """A small button in the chat, of the last answer."""
    reader.page.locator("#chat button.act").get_by_text(label, exact=True).last.click()


def asks(reader: Reader, engine: FakeEngine, question: str, answer: str) -> None:
    engine.enqueue(answer)
    reader.asks(question)
    reader.sees("#chat", answer)
    reader.sees("#strip", "Answer complete")
    reader.page.wait_for_function(FINISHED)  # the last update of the answer is drawn


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


def test_code_and_mathematics_are_shown_and_no_button_of_a_model_is(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = reads(visit, tmp_path)
    engine._scripts.append([RICH])
    reader.asks("Show\u2028code!")
    reader.sees("#strip", "Answer complete")
    reader.sees("#chat pre", 'if a < b and "<b>":')
    reader.sees("#chat pre", 'print("&amp;")')
    reader.sees("#chat .katex", "x")
    reader.sees("#chat", '<button class="act" value="delete:all">Harmless?</button>')
    assert reader.page.locator("#chat button.act", has_text="Harmless").count() == 0
    reader.page.reload()
    reader.sees("#chat pre", "if a < b")


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


def test_a_removed_book_comes_back_with_its_conversation_in_a_slow_browser(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = reads(visit, tmp_path)
    asks(reader, engine, "Dark?", "Quite dark.")
    reader.slows(6)
    reader.page.locator("#book").get_by_text("Start over").click()
    reader.sees("#book", "Removed book. Undo")
    playwright.expect(reader.page.locator("#chat")).not_to_contain_text("Quite dark.")
    reader.page.locator("#book").get_by_text("Undo").click()
    reader.sees("#chat", "Quite dark.")
    reader.sees("#book", "Answers begin at once")
    playwright.expect(reader.page.locator("#book .undo")).to_have_count(0)
