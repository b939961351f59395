"""Another site's page in the same browser: it may link to ours, and do nothing else with it."""

from collections.abc import Iterator

import pytest

from tests.app.conftest import Served
from tests.app.fakes import GRADIO_WARNINGS, SECONDS
from tests.app.remote.fake_server import fake_server, raw
from tests.browser.journeys.page import REBOUND, Page, playwright

pytestmark = [pytest.mark.browser, *GRADIO_WARNINGS]
# What each of them gives: a status, or an error where the browser stands in the way.
ATTEMPTS = """async ([address, own]) => {
  const told = async (work) => { try { return (await work).status; } catch (error) { return "refused"; } };
  const post = { method: "POST", body: "{}", mode: "no-cors" };
  const form = new FormData();
  form.append("files", new Blob(["stored"]), "stored.txt");
  const shown = (tag, name, url) => new Promise((done) => {
    const element = document.createElement(tag);
    element.onload = () => done("shown");
    element.onerror = () => done("refused");
    element[name] = url;
    document.body.append(element);
  });
  const socket = () => new Promise((done) => {
    const line = new WebSocket(address.replace("http", "ws"));
    line.onopen = () => done("open");
    line.onerror = () => done("refused");
  });
  return {
    read: await told(fetch(address + "config")),
    named: await told(fetch(address + "config", { credentials: "include" })),
    followed: await told(fetch(address + "page/state?session=" + "0".repeat(32))),
    acted: await told(fetch(address + "page/act", {
      method: "POST", body: "{}", headers: { "content-type": "application/json" } })),
    posted: await told(fetch(address + "page/act", post)),
    stored: await told(fetch(address + "gradio_api/upload", { method: "POST", body: form, mode: "no-cors" })),
    pictured: await shown("img", "src", address + "favicon.ico"),
    scripted: await shown("script", "src", address + "page/static/stream.js"),
    socket: await socket(),
  };
}"""


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """Another site: one page, and a link to ours."""
    with fake_server() as server:
        server.tells("/", raw(b"<!doctype html><title>elsewhere</title><body><a>read a book</a>", kind="text/html"))
        yield f"http://localhost:{server.server_address[1]}/"


def test_another_site_reads_asks_and_stores_nothing(
    browser: "playwright.Browser", served: Served, elsewhere: str
) -> None:
    address = served.address
    page = browser.new_page()
    page.goto(elsewhere)
    found = page.evaluate(ATTEMPTS, [address, elsewhere])
    assert found.pop("posted") in (0, "refused") and found.pop("stored") in (0, "refused"), "it cannot see what came"
    assert set(found.values()) == {"refused"}, found
    assert not any((served.arguments.data_dir / "uploads").rglob("stored*"))
    page.evaluate("address => { document.querySelector('a').href = address; }", address)
    page.click("a")
    playwright.expect(page.locator("#masthead")).to_contain_text("tokens of context", timeout=SECONDS * 1000)
    page.close()


def test_a_name_that_was_rebound_to_this_machine_reaches_nothing(browser: "playwright.Browser", served: Served) -> None:
    page = browser.new_page()
    for path in ("", "config", "gradio_api/info", "page/state"):
        answer = page.goto(f"http://{REBOUND}:{served.arguments.port}/{path}")
        assert answer is not None and answer.status == 421 and "not known by this name" in page.content()
    page.close()


def test_the_page_works_under_its_other_name(browser: "playwright.Browser", served: Served) -> None:
    page = browser.new_page()
    Page(page, f"http://localhost:{served.arguments.port}/")
    assert page.evaluate("window.crossOriginIsolated") is False and page.evaluate("window.opener") is None
    page.close()
