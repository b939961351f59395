"""`bench --suite page`: the same answers by the engine alone and through the whole page, in turns; medians of pairs.

Through the page includes its worker's queue, its handlers, Gradio's server and a headless browser that draws it. The
same thread and process compute both, from the same prompt and cache. The clock runs from the end of the first round to
the end of the answer, so it includes the time between rounds.
"""

import argparse
import os
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from app.runtime.events import WorkerEvent
from app.runtime.worker import EngineWorker
from app.server.serve_page import prepare_process, serve
from app.ui.models.rows import ModelSource
from assets.tools.bench.speed import Row, bench_prompt
from core.config import GenerationConfig, SamplingParams
from core.decoding.registry import PLAIN
from core.engine import Engine
from core.engine_api import TextEngine
from core.errors import CoreError
from core.generation.events import Event, Finished, RoundDone
from core.planning.hardware import Machine, this_machine

MOST_WAIT_SECONDS = 900.0  # enough for a long book on a slow machine
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]
LOOK_MILLISECONDS = 50
SETTLE_MILLISECONDS = 700
START_MILLISECONDS = 60_000


@dataclass(frozen=True, slots=True)
class Run:
    """One answer, timed."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    ms_per_token: float


class Stopwatch:
    """Wraps an engine and times all its answers; sets the config that page and bench must share."""

    def __init__(self, engine: Engine, max_new_tokens: int) -> None:
        self._engine, self._most = engine, max_new_tokens
        self.method = PLAIN
        self.runs: list[Run] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(
        self, prompt_ids: Sequence[int], config: GenerationConfig, *more: Any, **named: Any
    ) -> Iterator[Event]:
        """The engine's `generate`, greedy and with the measured method."""
        config = replace(
            config, method=self.method, max_new_tokens=self._most, sampling=SamplingParams(), stop_strings=()
        )
        first, started = 0, 0.0
        for event in self._engine.generate(prompt_ids, config, *more, **named):
            if isinstance(event, RoundDone) and not first:
                first, started = event.stats.new_tokens, time.perf_counter()
            if isinstance(event, Finished):
                counted = max(1, event.stats.new_tokens - first)
                milliseconds = 1e3 * (time.perf_counter() - started) / counted
                self.runs.append(Run(tuple(prompt_ids), event.token_ids, milliseconds))
            yield event


class PageSilent(CoreError):
    """The page could not be looked at, or did not respond."""

    def __init__(self, what: str) -> None:
        super().__init__(f"The page {what}.", hint="It needs Playwright, Chromium and a quiet machine.")


@contextmanager
def browser_on(address: str) -> Iterator[tuple[str, Any]]:
    """Chromium without a window, driven by Playwright: its name, and a tab with the page.

    Raises:
        PageSilent: there is no Playwright or no browser, or it does not start.
    """
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError as error:
        raise PageSilent("cannot be looked at: Playwright is not installed") from error
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise PageSilent("cannot be looked at: there is no Chromium on the PATH")
    with sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=program, args=OPTIONS)
            tab = browser.new_page(viewport={"width": 1360, "height": 860})
            tab.set_default_timeout(START_MILLISECONDS)
            tab.goto(address)
            tab.wait_for_function("document.querySelector('#masthead')?.innerText.includes('tokens of context')")
        except Error as error:
            raise PageSilent(f"cannot be looked at ({error.message.splitlines()[0]})") from error
        yield f"Chromium {browser.version}", tab
        browser.close()


@contextmanager
def served(watch: Stopwatch) -> Iterator["ServedPage"]:
    """The page on a Stopwatch, open in a browser; everything is closed behind it. Raises PageSilent."""

    def load() -> tuple[TextEngine, Machine]:
        return cast(TextEngine, watch), this_machine()

    with ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="triforce-page-")))
        ending.callback(os.environ.update, dict(os.environ))
        ending.callback(os.environ.clear)
        prepare_process(folder, "127.0.0.1")
        worker = EngineWorker(load)
        ending.callback(worker.close)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        options = argparse.Namespace(
            host="127.0.0.1", port=port, browser=False, share=False, auth=None, allow_host=None, remote=None
        )
        unavailable = "This model is being measured."
        source = ModelSource(config=lambda _: watch.config, load=lambda _: load, unavailable=unavailable)
        page = serve(options, worker, None, source=source)
        ending.callback(page.close, verbose=False)
        worker.start()
        worker.jobs.has_loaded(MOST_WAIT_SECONDS)
        client, tab = ending.enter_context(browser_on(f"http://127.0.0.1:{port}/"))
        yield ServedPage(watch, folder, worker, client, tab, tab.evaluate("window.triforcePage.session()"))


@dataclass(frozen=True, slots=True)
class ServedPage:
    """A page that a reader has open."""

    watch: Stopwatch
    folder: Path
    worker: EngineWorker
    client: str  # the browser's name
    tab: Any  # of Playwright
    session_id: str

    def open_book(self, text: str, name: str) -> None:
        """Drop a book on the page, and wait until the model has read it."""
        file = self.folder / name
        file.write_text(text, encoding="utf-8")
        self.tab.set_input_files("#drop input[type=file]", str(file))
        self._wait(lambda: self.worker.sessions.get(self.session_id).is_read, "did not read the book")

    def through_page(self, question: str) -> Run:
        """Ask on the page, as the first question of a conversation."""
        self.worker.clear(self.session_id)
        before = len(self.watch.runs)
        box = self.tab.locator("#question textarea")
        box.fill(question)
        box.press("Enter")
        self._wait(lambda: len(self.watch.runs) > before, "did not answer")
        return self.watch.runs[-1]

    def alone(self, prompt_ids: Sequence[int]) -> Run:
        """Write the same answer on the engine's thread, without a reader."""

        def work(engine: TextEngine, cancel: Any) -> Iterator[WorkerEvent]:
            for _ in engine.generate(prompt_ids, GenerationConfig(), cancel):
                pass
            return iter(())

        list(self.worker.borrow(self.session_id, work))
        return self.watch.runs[-1]

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        """Look for it without requests to the page, then let it draw its last updates."""
        deadline = time.monotonic() + MOST_WAIT_SECONDS
        while not done():
            if time.monotonic() > deadline:
                raise PageSilent(f"{what} in {MOST_WAIT_SECONDS:.0f} s")
            self.tab.wait_for_timeout(LOOK_MILLISECONDS)
        self.tab.wait_for_timeout(SETTLE_MILLISECONDS)


def run_page(
    engine: Engine, contexts: Sequence[int], methods: Sequence[str], *, repeats: int, max_new_tokens: int, seed: int
) -> Iterator[Row]:
    """Measure. Yields each row as soon as it is complete.

    Raises:
        PageSilent: the page does not answer.
    """
    for context in contexts:
        conversation, question = bench_prompt(engine.text, context, seed)
        with served(Stopwatch(engine, max_new_tokens)) as page:
            page.open_book(engine.text.decode(conversation.book_ids), f"book-{context}.txt")
            for method in methods:
                yield measure(page, context, method, question.question, repeats)


def measure(page: ServedPage, context: int, method: str, question: str, repeats: int) -> Row:
    """Time pairs of answers about the open book; the order alternates."""
    page.watch.method = method
    warm = page.through_page(question)
    page.alone(warm.prompt_ids)
    pairs = []
    for number in range(repeats):
        before = page.alone(warm.prompt_ids) if number % 2 else None
        through = page.through_page(question)
        pairs.append((before or page.alone(warm.prompt_ids), through))
    ratios = [through.ms_per_token / alone.ms_per_token for alone, through in pairs]
    return {
        "context": context,  # prompt tokens asked for
        "method": method,
        "client": page.client,
        "prompt_tokens": len(warm.prompt_ids),
        "new_tokens": len(warm.token_ids),
        "alone_ms_per_token": statistics.median(alone.ms_per_token for alone, _ in pairs),
        "page_ms_per_token": statistics.median(through.ms_per_token for _, through in pairs),
        "page_over_alone": statistics.median(ratios),
        "page_over_alone_range": (min(ratios), max(ratios)),
        "same_tokens": all(run.token_ids == warm.token_ids for pair in pairs for run in pair),
    }
