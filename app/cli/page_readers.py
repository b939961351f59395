"""Headless readers of a served page, in processes of their own so that they share no interpreter with the engine."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from core.errors import CoreError
from core.models.hub.catalog import ROOT

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]
LOOK_MILLISECONDS = 50
SETTLE_MILLISECONDS = 700  # for the page to draw its last updates
START_MILLISECONDS = 60_000


class PageSilent(CoreError):
    """The page did not respond to a reader."""

    def __init__(self, what: str) -> None:
        super().__init__(f"The page {what}.", hint="Try again on a quiet machine.")


class Reader(Protocol):
    """A reader of the page."""

    name: str
    session_id: str

    def open_book(self, file: Path) -> None:
        """Drop a file; may return before it is read."""

    def ask(self, question: str) -> None:
        """Ask; may return before the answer has ended."""

    def wait(self, done: Callable[[], bool]) -> None:
        """Let the page run until a condition holds, and a little longer."""

    def close(self) -> None:
        """Close the reader."""


class BrowserReader:
    """Chromium without a window, driven by Playwright.

    Raises:
        ImportError: Playwright is missing.
        PageSilent: no browser, or the browser does not start.
    """

    def __init__(self, address: str) -> None:
        from playwright.sync_api import Error, sync_playwright

        program = next(filter(None, map(shutil.which, BROWSERS)), None)
        if program is None:
            raise PageSilent("cannot be looked at: there is no Chromium on the PATH")
        self._driver = sync_playwright().start()
        try:
            self._browser = self._driver.chromium.launch(executable_path=program, args=OPTIONS)
            self.name = f"Chromium {self._browser.version}"
            self._page = self._browser.new_page(viewport={"width": 1360, "height": 860})
            self._page.set_default_timeout(START_MILLISECONDS)
            self._page.goto(address)
            self._page.wait_for_function("document.querySelector('#masthead')?.innerText.includes('tokens of context')")
            self.session_id: str = self._page.evaluate("window.triforceSession()")
        except Error as error:
            self._driver.stop()
            raise PageSilent(f"cannot be looked at ({error.message.splitlines()[0]})") from error

    def open_book(self, file: Path) -> None:
        """Drop a file on the page."""
        self._page.set_input_files("#drop input[type=file]", str(file))

    def ask(self, question: str) -> None:
        """Type the question and press Enter."""
        box = self._page.locator("#question textarea")
        box.fill(question)
        box.press("Enter")

    def wait(self, done: Callable[[], bool]) -> None:
        """Poll the condition, without requests to the page."""
        while not done():
            self._page.wait_for_timeout(LOOK_MILLISECONDS)
        self._page.wait_for_timeout(SETTLE_MILLISECONDS)

    def close(self) -> None:
        """Close the browser."""
        self._browser.close()
        self._driver.stop()


class ProtocolReader:
    """Uses `page_client`: every update is received and decoded, but not drawn."""

    name = "gradio_client"

    def __init__(self, address: str) -> None:
        command = [sys.executable, "-m", "app.cli.page_client", address]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        self.session_id = str(self._answer()["session"])

    def open_book(self, file: Path) -> None:
        """Upload a file, and wait for the last update."""
        self._order({"open": str(file)})

    def ask(self, question: str) -> None:
        """Ask, and wait for the last update."""
        self._order({"ask": question})

    def wait(self, done: Callable[[], bool]) -> None:
        """Do nothing: each command has already waited."""
        if not done():
            raise PageSilent("ended an event without doing what it is for")

    def _order(self, order: dict[str, str]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PageSilent("did not answer its client")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def find_reader(address: str) -> Reader:
    """A browser if there is one, else the protocol alone."""
    try:
        return BrowserReader(address)
    except (ImportError, PageSilent):
        return ProtocolReader(address)
