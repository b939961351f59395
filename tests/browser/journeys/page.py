"""The page in a reader's words: its places by role and name, and what a reader does there by click and key.

Nothing here knows how the page is made. A journey waits for what is seen, never for a time.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.app.fakes import GRADIO_WARNINGS, SECONDS, FakeEngine

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect
expect.set_options(timeout=SECONDS * 1000)

JOURNEY = [pytest.mark.browser, pytest.mark.journey, *GRADIO_WARNINGS]
PHONE = {"width": 360, "height": 740}
STORY = "The carved teapot was lost in the great spring tide, and nobody in the harbour ever asked for it. "
SAMPLE = "The Market of Seabright"  # the smallest
REBOUND = "rebound.example"  # a name that leads to this machine
QUIET = [  # options of a browser
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
    f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1",
]
EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
MOST_STOPS = 80  # of the Tab key, on the way to anything
SLOWED = float(os.environ.get("BROWSER_SLOWED", "1"))  # how many times slower the browser's processor is


class Page:
    """One tab of a browser. Its places are locators; its verbs are what a reader does, or waits to see."""

    def __init__(
        self, tab: "playwright.Page", address: str, width: int = 1280, height: int = 720, fingers: int = 0
    ) -> None:
        self.tab, self.outside = tab, list[str]()  # addresses on other machines that the page asked for
        tab.set_default_timeout(SECONDS * 1000)
        tab.on("request", lambda request: self._note(request.url))
        tab.set_viewport_size({"width": width, "height": height})
        self._devtools = tab.context.new_cdp_session(tab)
        if fingers:
            self._devtools.send("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": fingers})
        self.slows_down(SLOWED)
        tab.goto(address)
        self.facts = self.place("group", "Model and machine")
        self.book = self.place("region", "Book")  # the card of what is open
        self.question = self.place("textbox", "Question")  # of the conversation, or of the race where that is shown
        self.conversation = self.place("log", "Conversation")
        self.conversations = self.place("region", "Conversations")  # the list of all
        self.figures = self.place("region", "Live figures")
        self.silence = self.says("does not answer")  # the program
        self.alert = tab.get_by_role("alert")
        self.documents = self.place("region", "Open documents")
        self.text_of_page = tab.get_by_label("Text of the page", exact=True)
        self.choice = self.place("form", "Choose what is read")  # the list of chapters
        self.race = self.place("region", "Race")
        self.inside = self.place("region", "Inside the speculation")
        self.offer = self.place("region", "A full model")
        self.has_entered()

    def _note(self, url: str) -> None:
        if not url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            self.outside.append(url)

    def slows_down(self, times: float) -> None:
        self._devtools.send("Emulation.setCPUThrottlingRate", {"rate": times})

    # -------------------- places

    def place(self, role: Any, name: str) -> "playwright.Locator":
        """What has a role and exactly this name."""
        return self.tab.get_by_role(role, name=name, exact=True)

    def button(self, name: str, where: "playwright.Locator | None" = None) -> "playwright.Locator":
        return (where or self.tab).get_by_role("button", name=name, exact=True)

    def heading(self, text: str) -> "playwright.Locator":
        return self.place("heading", text)

    def says(self, text: str) -> "playwright.Locator":
        """A line that screen readers hear, with these words in it."""
        return self.tab.get_by_role("status").filter(has_text=text)

    def leaf(self, number: int) -> "playwright.Locator":
        """An opened page of the book, beside the conversation."""
        return self.place("region", f"Page {number}")

    def lane(self, name: str) -> "playwright.Locator":
        return self.place("article", name)

    # -------------------- what a reader does

    def presses(self, name: str, where: "playwright.Locator | None" = None) -> None:
        """Click a button; of several with the name the last, which belongs to the newest."""
        self.button(name, where).last.click()

    def goes_to(self, name: str) -> None:
        self.place("tab", name).click()

    def opens(self, *files: Path, by: str = "Open books") -> None:
        """Choose files in the dialog of the system."""
        with self.tab.expect_file_chooser() as chooser:
            self.presses(by)
        chooser.value.set_files([str(file) for file in files])

    def reads(self, *files: Path) -> None:
        self.opens(*files)
        self.has_read()

    def asks(self, question: str) -> None:
        self.question.fill(question)
        self.question.press("Enter")

    def reloads(self) -> None:
        self.tab.reload()
        self.has_entered()

    def types(self, *keys: str) -> None:
        for key in keys:
            self.tab.keyboard.press(key)

    def tabs_to(self, target: "playwright.Locator") -> None:
        expect(target).to_be_visible()
        for _ in range(MOST_STOPS):
            self.tab.keyboard.press("Tab")
            if target.evaluate("(element) => element === document.activeElement"):
                return
        expect(target).to_be_focused(timeout=1)

    # -------------------- what a reader waits to see

    def waits(self, holds: Callable[[], bool]) -> None:
        """Wait for what the program knows, while the browser goes on."""
        until = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < until, "it does not come"
            self.tab.wait_for_timeout(20)

    def has_entered(self) -> None:
        """The model is ready, and the page says what it is."""
        expect(self.facts).to_contain_text("tokens of context")

    def has_read(self) -> None:
        expect(self.book).to_contain_text("Answers begin at once")

    def answers(self, text: str, shown: int = 1) -> None:
        """An answer has ended; with it the conversation shows so many."""
        expect(self.conversation).to_contain_text(text)
        expect(self.figures).to_contain_text("Answer complete")
        expect(self.button("Regenerate", self.conversation)).to_have_count(shown)
        expect(self.button("Send the question")).to_be_visible()

    def hears(self, engine: FakeEngine, question: str, answer: str, shown: int = 1) -> None:
        """Ask, and get this answer; with it the conversation shows so many."""
        engine.enqueue(answer)
        self.asks(question)
        self.answers(answer, shown)

    def fits_its_width(self) -> None:
        """Nothing lies beside the screen."""
        wide = self.tab.evaluate("document.scrollingElement.scrollWidth - window.innerWidth")
        assert wide <= 0, f"the page is {wide} pixels wider than the screen"
