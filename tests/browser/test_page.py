"""The page in a real browser: hostile books, two tabs, and no word to anyone outside."""

import argparse
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.runtime.worker import EngineWorker
from tests.app.fakes import GRADIO_WARNINGS, SECONDS, FakeEngine, write_book

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

playwright.expect.set_options(timeout=SECONDS * 1000)
pytestmark = [pytest.mark.browser, *GRADIO_WARNINGS]

QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
]
EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


@pytest.fixture(scope="module")
def browser() -> Iterator["playwright.Browser"]:
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)
        yield chromium
        chromium.close()


class Reader:
    """A person at the page."""

    def __init__(self, page: "playwright.Page", address: str) -> None:
        self.page, self.outside = page, []
        page.set_default_timeout(SECONDS * 1000)
        page.on("request", lambda request: self._note(request.url))
        page.goto(address)
        self.sees("#masthead", "tokens of context")

    def _note(self, url: str) -> None:
        if not url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            self.outside.append(url)

    def sees(self, where: str, text: str) -> None:
        playwright.expect(self.page.locator(where)).to_contain_text(text, timeout=SECONDS * 1000)

    def drops(self, file: Path) -> None:
        self.page.set_input_files("#drop input[type=file]", str(file))

    def asks(self, question: str) -> None:
        box = self.page.locator("#question textarea")
        box.fill(question)
        box.press("Enter")

    def stops(self) -> None:
        self.page.locator("#question .stop-button").click()

    def slows(self, factor: int) -> None:
        """From now on the browser has a fraction of its processor: several messages wait when it looks."""
        browser = self.page.context.new_cdp_session(self.page)
        browser.send("Emulation.setCPUThrottlingRate", {"rate": factor})


@pytest.fixture
def visit(
    browser: "playwright.Browser", serve: Callable[[EngineWorker], str], worker: EngineWorker
) -> Iterator[Callable[[], Reader]]:
    address = serve(worker)
    contexts: list[playwright.BrowserContext] = []

    def open_tab() -> Reader:
        contexts.append(browser.new_context())
        return Reader(contexts[-1].new_page(), address)

    yield open_tab
    for context in contexts:
        context.close()


def test_a_reader_who_comes_back_finds_everything_as_it_was(visit: Callable[[], Reader], tmp_path: Path) -> None:
    reader = visit()
    reader.drops(write_book(tmp_path))
    reader.sees("#book", "Read once")
    reader.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    reader.page.wait_for_timeout(2000)  # what follows the event is shown
    reader.sees("#masthead", "tokens of context")
    reader.sees("#book", "Read once")
    reader.sees("#method", "TriForce")


def test_an_idle_page_draws_nothing(
    browser: "playwright.Browser", serve: Callable[[EngineWorker], str], worker: EngineWorker
) -> None:
    page = browser.new_page()
    page.add_init_script(
        "window.frames_asked = 0; const request = window.requestAnimationFrame.bind(window);"
        "window.requestAnimationFrame = (call) => { window.frames_asked += 1; return request(call); };"
    )
    Reader(page, serve(worker))
    for _ in range(30):  # a leftover loop is slowed down after five seconds, or later on a machine that is busy
        page.wait_for_timeout(4000)
        before = page.evaluate("window.frames_asked")
        page.wait_for_timeout(2000)
        if (asked := page.evaluate("window.frames_asked") - before) < 10:
            break
    assert before > 0 and asked < 10, f"{asked} frames in two seconds"
    page.close()


def test_nothing_of_a_book_is_run_or_fetched(visit: Callable[[], Reader], engine: FakeEngine, tmp_path: Path) -> None:
    reader = visit()
    reader.drops(write_book(tmp_path, f"{EVIL} # {EVIL}\n" * 20, f"a{EVIL.replace('/', '')}.md"))
    reader.sees("#book", "Read once")
    engine.enqueue(
        f"{EVIL} ![pixel](https://example.com/pixel.png) `{EVIL}` [link](javascript:window.hacked=1)"
        " [page 12](https://example.com/leak) [page 13][1]\n\n[1]: https://example.com/leaks"
    )
    reader.asks(EVIL)
    reader.sees("#strip", "Answer complete")
    reader.sees("#chat", "<script>window.hacked=1</script>")
    reader.sees("#chat", "[page 12](https://example.com/leak)")
    links = reader.page.locator("#chat .message a")
    assert links.all_inner_texts() == [link.get_attribute("href") for link in links.all()], "words are the address"
    reader.page.wait_for_timeout(300)
    assert reader.page.evaluate("window.hacked") is None
    assert reader.page.locator("#chat .message img").count() == 0
    assert reader.outside == []


def test_the_policy_stops_a_picture_that_got_through(visit: Callable[[], Reader]) -> None:
    reader = visit()
    blocked = reader.page.evaluate(
        """() => new Promise(done => {
            document.addEventListener('securitypolicyviolation', event => done(event.blockedURI));
            new Image().src = 'https://example.com/pixel.png';
        })"""
    )
    assert blocked == "https://example.com/pixel.png"


BREACHES = {  # what a book would do that got through the escaping
    "a script": "<script>window.hacked=1</script>",
    "a handler": "<img src=x onerror='window.hacked=1'>",
    "an SVG's handler": "<svg onload='window.hacked=1'></svg>",
    "a way to another machine": "<img src=x onerror='location=\"https://example.com/\"'>",
    "an iframe": "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "a form": "<form action='https://example.com/'><input></form>",
    "a link": "<a href='javascript:window.hacked=1'>click</a>",
}


def test_the_policy_stops_a_script_that_got_through(visit: Callable[[], Reader]) -> None:
    reader = visit()
    for name, breach in BREACHES.items():
        told = reader.page.evaluate(
            """breach => new Promise(done => {
                setTimeout(() => done(null), 2000);  // a page inside tells its own document
                document.addEventListener('securitypolicyviolation', event => done(event.effectiveDirective));
                const place = document.body.appendChild(document.createElement('div'));
                place.innerHTML = breach;
                place.querySelector('form')?.submit();
                place.querySelector('a')?.click();
                if (breach.startsWith('<script'))
                    document.head.append(document.createRange().createContextualFragment(breach));
            })""",
            breach,
        )
        expected = (
            ("script-src-attr", "script-src-elem", "script-src", "form-action") if "iframe" not in name else (None,)
        )
        assert told in expected, name
        assert reader.page.evaluate("window.hacked") is None and reader.outside == [], name


@pytest.mark.parametrize("login", [None, "reader:a long password"])
def test_the_page_itself_breaks_no_rule_of_the_policy(
    browser: "playwright.Browser",
    serve: Callable[[EngineWorker], str],
    worker: EngineWorker,
    arguments: argparse.Namespace,
    engine: FakeEngine,
    tmp_path: Path,
    login: str | None,
) -> None:
    arguments.auth = login
    context = browser.new_context(color_scheme="dark")
    page, broken = context.new_page(), []
    page.set_default_timeout(SECONDS * 1000)
    page.expose_function("broke", lambda told: broken.append(told))
    page.add_init_script(
        "document.addEventListener('securitypolicyviolation',"
        " event => broke(`${event.effectiveDirective} ${event.blockedURI} ${event.sourceFile}`))"
    )
    address = serve(worker)
    if login is not None:
        page.goto(address)
        for number, text in enumerate(login.split(":")):
            page.locator("form input, form textarea, .form input, .form textarea").nth(number).fill(text)
        page.get_by_role("button", name="Login").click()
        page.wait_for_load_state("networkidle")
    reader = Reader(page, address)
    reader.drops(write_book(tmp_path))
    reader.sees("#book", "Read once")
    engine.enqueue("Dark.")
    reader.asks("How was it?")
    reader.sees("#strip", "Answer complete")
    page.reload()
    reader.sees("#chat", "Dark.")
    page.emulate_media(color_scheme="light")
    page.wait_for_timeout(300)
    assert broken == []
    context.close()


def test_two_tabs_take_turns_and_the_second_is_told(
    visit: Callable[[], Reader], engine: FakeEngine, tmp_path: Path
) -> None:
    first, second = visit(), visit()
    first.drops(write_book(tmp_path))
    first.sees("#book", "Read once")
    second.drops(write_book(tmp_path, "Another book. " * 30, "other.txt"))
    second.sees("#book", "Read once")
    engine.enqueue("From | one.")
    engine.enqueue("From two.")
    first.asks("One?")
    first.sees("#chat", "From")
    first.sees("#strip", "Writing")
    second.asks("Two?")
    second.sees("#strip", "Queued: another page first")
    engine.writing.set()
    first.sees("#chat", "From | one.")
    second.sees("#chat", "From two.")


def test_two_tabs_tell_whose_book_the_model_holds(
    visit: Callable[[], Reader], engine: FakeEngine, tmp_path: Path
) -> None:
    first, second = visit(), visit()
    first.drops(write_book(tmp_path))
    first.sees("#book", "Answers begin at once")
    second.drops(write_book(tmp_path, "Another book. " * 30, "other.txt"))
    second.sees("#book", "Answers begin at once")
    first.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    first.sees("#book", "Another page uses the model now. The next answer reads it again first")
    engine.enqueue("From one.")
    first.asks("One?")
    first.sees("#chat", "From one.")
    first.sees("#book", "Answers begin at once")
    second.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    second.sees("#book", "Another page uses the model now")


def test_a_closed_tab_makes_way(
    visit: Callable[[], Reader], engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.runtime.jobs.LINGER_SECONDS", 1.0)
    first, second = visit(), visit()
    for reader, name in ((first, "one.txt"), (second, "two.txt")):
        reader.drops(write_book(tmp_path, f"The book {name}. " * 20, name))
        reader.sees("#book", "Read")
        reader.sees("#book", "Answers begin at once")
    engine.enqueue("An answer that never | ends")
    first.asks("One?")
    first.sees("#strip", "Writing")
    second.asks("Two?")
    second.sees("#strip", "Queued: another page first")
    first.page.close()
    second.sees("#strip", "Reading")
