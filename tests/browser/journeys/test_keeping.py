"""Journeys of what stays: conversations, deletions taken back, incognito, reloads, lost connections, settings."""

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.runtime.worker import EngineWorker
from app.ui.site import Drawer
from tests.app.conversations.on_disk import text_of
from tests.app.fakes import SECONDS, FakeEngine, write_book
from tests.browser.journeys.page import JOURNEY, Page, expect

pytestmark = JOURNEY


def menu(page: Page, title: str, entry: str) -> None:
    """An entry of the menu of a listed conversation."""
    page.conversations.get_by_label(f"More about {title}", exact=True).click()
    page.presses(entry, page.conversations)


def test_conversations_are_named_found_exported_deleted_and_deletion_is_undone(
    page: Page, engine: FakeEngine, tmp_path: Path
) -> None:
    listed = page.conversations.get_by_role("listitem")
    page.reads(write_book(tmp_path))
    page.hears(engine, "Where is the <b>teapot</b>?", "On the quay.")
    page.presses("New")
    expect(page.conversation).not_to_contain_text("On the quay.")
    page.hears(engine, "Who sang?", "The choir.")
    expect(listed).to_have_count(2)
    page.conversations.get_by_label("More about Where is the <b>teapot</b>?", exact=True).click()
    title = page.conversations.get_by_role("textbox", name="Title").filter(visible=True)
    title.fill("The <i>pot</i>")
    title.press("Enter")
    expect(page.conversations).to_contain_text("The <i>pot</i>")
    search = page.place("textbox", "Search conversations")
    search.fill("quay")
    expect(listed).to_have_count(1)
    expect(listed.get_by_role("mark")).to_have_text("quay")
    page.conversations.get_by_role("button", name="The <i>pot</i>").click()
    expect(page.conversation).to_contain_text("On the quay.")
    with page.tab.expect_download() as saved:
        menu(page, "The <i>pot</i>", "Export Markdown")
    assert saved.value.suggested_filename == "The-i-pot-i.md"
    assert "On the quay." in Path(saved.value.path()).read_text(encoding="utf-8")
    menu(page, "The <i>pot</i>", "Delete")
    expect(page.conversations).to_contain_text("Nothing found.")
    expect(page.conversation).not_to_contain_text("On the quay.")
    expect(page.says("Deleted The <i>pot</i>.")).to_be_visible()
    page.presses("Undo", page.conversations)
    expect(page.conversation).to_contain_text("On the quay.")
    search.fill("")
    expect(listed).to_have_count(2)


def test_incognito_writes_nothing_and_two_tabs_keep_their_own(
    visit: Callable[..., Page], engine: FakeEngine, worker: EngineWorker, tmp_path: Path
) -> None:
    first, second, kept = visit(), visit(), tmp_path / "conversations"
    for page in (first, second):
        page.reads(write_book(tmp_path))
    first.presses("Incognito")
    expect(first.button("Incognito")).to_have_attribute("aria-pressed", "true")
    expect(first.conversations).to_contain_text("nothing of this conversation is written to disk")
    first.hears(engine, "A secret?", "Yes, one.")
    assert worker.conversations.flush(SECONDS) and text_of(kept) == set()
    assert not any(b"secret" in file.read_bytes() for file in kept.iterdir())
    first.reloads()
    expect(first.conversation).to_contain_text("Yes, one.")
    expect(first.button("Incognito")).to_have_attribute("aria-pressed", "true")
    second.hears(engine, "Open?", "Quite open.")
    first.presses("Incognito")
    expect(first.conversation).not_to_contain_text("Yes, one.")
    expect(first.conversations).to_contain_text("Open?")
    expect(first.conversations).not_to_contain_text("A secret?")
    first.hears(engine, "Mine?", "Yours.")
    expect(second.conversation).not_to_contain_text("Yours.")
    assert worker.conversations.flush(SECONDS) and {"Open?", "Mine?"} <= text_of(kept)
    assert not any(b"secret" in file.read_bytes() for file in kept.iterdir())
    assert any(b"Mine?" in file.read_bytes() for file in kept.iterdir()), "the control"


def test_a_reload_loses_nothing_at_any_step(page: Page, engine: FakeEngine, tmp_path: Path) -> None:
    engine.reading.clear()
    page.opens(write_book(tmp_path))
    expect(page.book).to_contain_text("Reading")
    page.reloads()
    expect(page.book).to_contain_text("Reading")
    engine.enqueue("One two | three.")
    page.asks("Count to three!")
    expect(page.conversation).to_contain_text(re.compile("Waiting until the book is read|Reading the book"))
    page.reloads()
    expect(page.conversation).to_contain_text("Count to three!")
    engine.reading.set()
    expect(page.conversation).to_contain_text("One two")
    page.reloads()
    expect(page.conversation).to_contain_text("One two")
    expect(page.figures).to_contain_text("Writing")
    engine.writing.set()
    page.answers("three.")
    assert len(engine.configs) == 1, "it was written once"
    page.reloads()
    page.answers("three.")
    page.has_read()
    engine.enqueue("Four | five.")
    page.asks("And then?")
    expect(page.conversation).to_contain_text("Four")
    page.reloads()
    page.presses("Stop the answer")
    expect(page.figures).to_contain_text("Stopped · 1 token")
    page.reloads()
    expect(page.conversation).to_contain_text("Four")
    expect(page.button("Continue")).to_be_visible()
    engine.writing.set()
    engine.enqueue("five.")
    page.presses("Continue")
    page.answers("Four five.", shown=2)


# -------------------- a connection that breaks


def test_a_page_without_its_program_says_so_and_goes_on_where_it_was(
    page: Page, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, state = threading.Event(), Drawer.state

    def held(drawer: Drawer) -> dict[str, Any]:
        answers.wait(SECONDS)
        return state(drawer)

    page.reads(write_book(tmp_path))
    engine.enqueue("One two | three four.")
    page.asks("Count to four!")
    expect(page.conversation).to_contain_text("One two")
    monkeypatch.setattr(Drawer, "state", held)
    expect(page.silence).to_be_visible()
    engine.writing.set()
    page.question.fill("And then?")
    answers.set()
    page.answers("three four.")
    expect(page.silence).to_be_hidden()
    expect(page.question).to_have_value("And then?")
    assert len(engine.configs) == 1, "it was written once"


def test_a_page_that_nobody_sees_connects_again_for_what_it_began(
    page: Page, engine: FakeEngine, worker: EngineWorker, tmp_path: Path
) -> None:
    page.reads(write_book(tmp_path))
    (session,) = worker.sessions.all()

    def is_hidden(hidden: bool) -> None:
        page.tab.evaluate(
            """(hidden) => {
                Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
                document.dispatchEvent(new Event("visibilitychange"));
            }""",
            hidden,
        )

    is_hidden(True)
    page.waits(lambda: session.num_streams == 0)
    engine.enqueue("One two | three.")
    page.asks("Count!")
    expect(page.conversation).to_contain_text("One two")
    engine.writing.set()
    page.waits(lambda: session.num_streams == 0)
    is_hidden(False)
    page.answers("three.")


def test_a_page_whose_login_has_ended_asks_for_it_again(page: Page) -> None:
    """The program has begun anew: it knows no login of before."""
    refused = list[str]()

    def refuse(route: Any) -> None:
        refused.append(route.request.url)
        route.fulfill(status=401) if len(refused) <= 2 else route.continue_()

    page.tab.route("**/page/*", refuse)
    with page.tab.expect_navigation():
        page.goes_to("Library")
    page.has_entered()


def test_a_question_whose_receipt_is_lost_is_asked_once(page: Page, engine: FakeEngine, tmp_path: Path) -> None:
    page.reads(write_book(tmp_path))
    engine.enqueue("Quite dark.")
    lost = list[Any]()

    def lose(route: Any) -> None:
        lost.append(route.request)
        if len(lost) > 3:
            return route.continue_()
        if len(lost) > 1:
            route.fetch(max_retries=3)  # it arrives, and nobody hears of it
        return route.abort()

    page.tab.route("**/page/act", lose)
    with page.tab.expect_response(lambda response: response.url.endswith("/page/act")):
        page.asks("Dark?")
    page.answers("Quite dark.")
    assert len(lost) == 4 and len(engine.configs) == 1, "it was sent until it was heard of, and asked once"


# -------------------- what this browser keeps


def test_settings_are_used_and_kept_by_this_browser(page: Page, engine: FakeEngine, tmp_path: Path) -> None:
    def config() -> tuple[float, float, int]:
        sampling = engine.configs[-1].sampling
        return sampling.temperature, sampling.top_p, engine.configs[-1].seed

    page.reads(write_book(tmp_path))
    page.tab.get_by_role("button", name="Settings").click()
    page.place("radio", "Balanced").check()
    page.tab.get_by_role("button", name="Advanced").click()
    expect(page.tab.get_by_role("spinbutton", name="Temperature")).to_have_value("0.6")
    page.hears(engine, "How was it?", "Drawn.")
    assert config()[:2] == (0.6, 0.9)
    page.tab.get_by_role("textbox", name="Seed").fill("11")
    page.types("Tab")
    page.hears(engine, "And now?", "Repeatable.", shown=2)
    assert config() == (0.6, 0.9, 11)
    page.reloads()
    page.tab.get_by_role("button", name="Settings").click()
    expect(page.place("radio", "Balanced")).to_be_checked()  # filled in after the question box
    page.hears(engine, "Still?", "Still so.", shown=3)
    assert config() == (0.6, 0.9, 11)


def test_colours_are_remembered_and_follow_the_system_when_asked(page: Page) -> None:
    whole = page.tab.get_by_role("document")
    for system in ("light", "dark"):
        page.tab.emulate_media(color_scheme=system)
        expect(whole).to_have_css("color-scheme", system)
    expect(page.button("As the system")).to_have_attribute("aria-pressed", "true")
    page.presses("Light")
    expect(whole).to_have_css("color-scheme", "light")
    page.reloads()
    expect(page.button("Light")).to_have_attribute("aria-pressed", "true")
    expect(whole).to_have_css("color-scheme", "light")
    page.presses("Dark")
    expect(whole).to_have_css("color-scheme", "dark")
    page.presses("As the system")
    page.tab.emulate_media(color_scheme="light")
    expect(whole).to_have_css("color-scheme", "light")


def test_a_report_of_the_system_is_copied_without_a_word_of_the_reader(
    page: Page, engine: FakeEngine, tmp_path: Path
) -> None:
    secret = "Zanzibar"
    page.tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.reads(write_book(tmp_path, f"{secret} was dark. " * 9, f"{secret}.txt"))
    page.hears(engine, f"Why {secret}?", f"{secret} night.")
    page.goes_to("System")
    expect(page.place("region", "Model and memory")).to_contain_text("target weights")
    expect(page.place("region", "Exactness and speculation")).to_contain_text("Last race")
    report = page.place("textbox", "Report")
    expect(report).to_have_value(re.compile("2 tokens, 20.0 ms per token"))
    page.presses("Copy report")
    expect(page.says("Copied.")).to_be_visible()
    copied = page.tab.evaluate("navigator.clipboard.readText()")
    assert copied == report.input_value() and "Memory" in copied and secret not in copied
