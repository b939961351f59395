"""A model that thinks before it answers, in a real browser: the fold, the switch, the next question, a reload."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.conversations.store import Conversations
from app.runtime.worker import EngineWorker
from tests.app.fakes import GRADIO_WARNINGS, THOUGHT_IDS, FakeEngine, worker_of
from tests.browser.test_page import Reader, browser, playwright, visit  # noqa: F401

pytestmark = [pytest.mark.browser, *GRADIO_WARNINGS]
BOOK = "Chapter 1\n\nCaptain Reed keeps the old lighthouse at Sealport.\n"
QUOTED = "“Captain Reed keeps the old lighthouse at Sealport”"
INVENTED = "“nobody ever wrote these words down anywhere”"


@pytest.fixture
def worker(engine: FakeEngine, tmp_path: Path) -> Iterator[EngineWorker]:
    engine.info.thinking, engine.info.thinks = ("on", "off"), "on"
    kept = worker_of(engine, conversations=Conversations(tmp_path / "conversations"))
    yield kept
    kept.close()


def reads(visit: Callable[[], Reader], tmp_path: Path) -> Reader:  # noqa: F811
    reader, book = visit(), tmp_path / "harbour.txt"
    book.write_text(BOOK)
    reader.drops(book)
    reader.sees("#book", "Answers begin at once")
    return reader


def is_open(reader: Reader) -> bool:
    return reader.page.locator("#chat .thought-group .thought").last.is_visible()


def test_a_thought_is_folded_live_and_left_out_of_quotations(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = reads(visit, tmp_path)
    engine.enqueue(f"<think> Hm, <b>I</b> recall {INVENTED} | but </think> It says {QUOTED} .")
    reader.asks("Who keeps it?")
    reader.sees("#chat .thought-group", "Thinking · ")
    reader.sees("#strip", "Thinking")
    engine.writing.set()
    reader.sees("#strip", "Answer complete")
    reader.sees("#strip", "of them thought")
    reader.sees("#chat .thought-group", "Thought for 14 tokens, 7.0 s")
    reader.sees("#chat .foot", "14 of thought")
    fold = reader.page.locator("#chat .thought-group")
    playwright.expect(fold.get_by_text("Hm, <b>I</b> recall")).to_be_hidden()
    playwright.expect(reader.page.locator("#chat .chip.quote")).to_have_count(1)  # none for the thought's invention
    fold.locator(".title").click()
    playwright.expect(fold.get_by_text("Hm, <b>I</b> recall")).to_be_visible()
    engine.enqueue("Yes.")
    reader.asks("Sure?")
    reader.sees("#chat", "Yes.")
    assert not any(token >= THOUGHT_IDS for token in engine.prompts[-1])
    reader.page.reload()
    reader.sees("#chat .thought-group", "Thought for 14 tokens, 7.0 s")
    assert reader.outside == []


def test_a_thought_that_never_ends_says_so_and_goes_on(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = reads(visit, tmp_path)
    engine.enqueue("<think> Hm, | hm, hm")
    reader.asks("Who keeps it?")
    reader.sees("#chat .thought-group", "Hm,")
    reader.stops()
    reader.sees("#chat", "Stopped while it was thinking.")
    engine.writing.set()
    engine.enqueue("hm. </think> Reed.")
    reader.page.locator("#chat button.act", has_text="Continue").last.click()
    reader.sees("#strip", "Answer complete")
    assert any(token >= THOUGHT_IDS for token in engine.written[-1])


def test_the_switch_is_in_settings_and_kept(
    visit: Callable[[], Reader],  # noqa: F811
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    reader = reads(visit, tmp_path)
    reader.page.locator("#settings > button").click()
    switch = reader.page.locator("#thinking")
    playwright.expect(switch).to_contain_text("As set up (on)")
    switch.get_by_label("Off", exact=True).check()
    reader.page.reload()
    reader.sees("#book", "Answers begin at once")
    engine.enqueue("Reed.")
    reader.asks("Who keeps it?")
    reader.sees("#chat", "Reed.")
    assert engine.configs[-1].thinking == "off"


def test_a_model_without_the_switch_offers_none(visit: Callable[[], Reader], engine: FakeEngine) -> None:  # noqa: F811
    engine.info.thinking, engine.info.thinks = (), ""
    reader = visit()
    reader.page.locator("#settings > button").click()
    playwright.expect(reader.page.locator("#preset")).to_be_visible()
    playwright.expect(reader.page.locator("#thinking")).to_be_hidden()
