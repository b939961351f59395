"""The policy of the page in a real browser: what gets through the escaping does not run, and the page keeps to it."""

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from app.runtime.worker import EngineWorker
from tests.app.fakes import GRADIO_WARNINGS, SECONDS, FakeEngine, write_book
from tests.browser.journeys.page import EVIL, Page, expect, playwright

pytestmark = [pytest.mark.browser, *GRADIO_WARNINGS]


def test_nothing_of_a_book_is_run_or_fetched(page: Page, engine: FakeEngine, tmp_path: Path) -> None:
    page.reads(write_book(tmp_path, f"{EVIL} # {EVIL}\n" * 20, f"a{EVIL.replace('/', '')}.md"))
    engine.enqueue(
        f"{EVIL} ![pixel](https://example.com/pixel.png) `{EVIL}` [link](javascript:window.hacked=1)"
        " [page 12](https://example.com/leak) [page 13][1]\n\n[1]: https://example.com/leaks"
    )
    page.asks(EVIL)
    page.answers("<script>window.hacked=1</script>")
    expect(page.conversation).to_contain_text("[page 12](https://example.com/leak)")
    expect(page.conversation.locator("a, img, script")).to_have_count(0)
    page.tab.wait_for_timeout(300)
    assert page.tab.evaluate("window.hacked") is None and page.outside == []


BREACHES = {  # what a book would do that got through the escaping
    "a script": "<script>window.hacked=1</script>",
    "a handler": "<img src=x onerror='window.hacked=1'>",
    "an SVG's handler": "<svg><animate onbegin='window.hacked=1' attributeName='x' dur='1s'></svg>",
    "a picture": "<img src='https://example.com/pixel.png'>",
    "a way to another machine": "<img src=x onerror='location=\"https://example.com/\"'>",
    "an iframe": "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "a form": "<form action='https://example.com/'><input></form>",
    "a link": "<a href='javascript:window.hacked=1'>click</a>",
}


def test_the_policy_stops_a_script_or_a_picture_that_got_through(page: Page) -> None:
    for name, breach in BREACHES.items():
        told = page.tab.evaluate(
            """([breach, limit]) => new Promise(done => {
                setTimeout(() => done("nothing"), limit);
                document.addEventListener('securitypolicyviolation', event => done(event.effectiveDirective));
                const place = document.body.appendChild(document.createElement('div'));
                place.innerHTML = breach;
                place.querySelector('iframe')?.addEventListener('load', () => done("inside"));  // its document is told
                place.querySelector('form')?.submit();
                place.querySelector('a')?.click();
                if (breach.startsWith('<script'))
                    document.head.append(document.createRange().createContextualFragment(breach));
            })""",
            [breach, SECONDS * 1000],
        )
        stopped = {"an iframe": ("inside",), "a picture": ("img-src",)}
        scripts = ("script-src-attr", "script-src-elem", "script-src", "form-action")
        assert told in stopped.get(name, scripts), name
        if name == "a picture":
            page.outside.clear()  # it was asked for, and never sent
        assert page.tab.evaluate("window.hacked") is None and page.outside == [], name


def test_neither_login_nor_page_break_a_rule_of_the_policy(
    browser: "playwright.Browser",
    serve: Callable[[EngineWorker], str],
    worker: EngineWorker,
    arguments: argparse.Namespace,
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    login = ("reader", "a long password")
    arguments.auth = ":".join(login)
    context = browser.new_context(color_scheme="dark")
    tab, broken = context.new_page(), []
    tab.set_default_timeout(SECONDS * 1000)
    tab.expose_function("broke", lambda told: broken.append(told))
    tab.add_init_script(
        "document.addEventListener('securitypolicyviolation',"
        " event => broke(`${event.effectiveDirective} ${event.blockedURI} ${event.sourceFile}`))"
    )
    address = serve(worker)
    tab.goto(address)
    for number, text in enumerate(login):
        tab.locator("form input, form textarea, .form input, .form textarea").nth(number).fill(text)
    tab.get_by_role("button", name="Login").click()
    expect(tab.locator("#masthead")).to_be_visible()
    page = Page(tab, address)
    page.reads(write_book(tmp_path))
    engine.enqueue(r"It was \(dark_1\).")
    page.asks("How was it?")
    page.answers("It was")
    page.reloads()
    expect(page.conversation).to_contain_text("It was")
    tab.emulate_media(color_scheme="light")
    tab.wait_for_timeout(300)
    assert broken == []
    context.close()
