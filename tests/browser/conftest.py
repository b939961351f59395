"""A browser, and pages of their own programs, whose engines write what a test lays before them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from app.context.kept_documents import KeptDocuments
from app.conversations.store import Conversations
from app.runtime.downloads import Downloads
from app.runtime.worker import EngineWorker
from tests.app.conftest import Served, arguments_for, serving
from tests.app.conftest import arguments as arguments
from tests.app.conftest import engine as engine
from tests.app.conftest import serve as serve
from tests.app.fakes import FakeEngine, free_port, worker_of
from tests.conftest import chromium

if TYPE_CHECKING:  # they skip their tests where no browser is installed
    from tests.browser.journeys.page import Page


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    from tests.browser.journeys.page import QUIET, playwright

    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=QUIET)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def profiles(browser: Any) -> list[Any]:
    """Browsers that have the page's scripts: fetched and compiled anew they are most of what a journey costs."""
    return []


@pytest.fixture
def worker(engine: FakeEngine, tmp_path: Path) -> Iterator[EngineWorker]:
    """A worker whose conversations are kept in the test's own folder."""
    stored = Conversations(tmp_path / "conversations")
    kept = worker_of(engine, conversations=stored, kept=KeptDocuments(tmp_path / "texts"))
    yield kept
    kept.close()


@pytest.fixture(scope="session")
def port() -> int:
    """Of all pages that are served: what a browser keeps of one it has of the next."""
    return free_port()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[Served]:
    """The page of a module's journeys, which is built once: each journey puts its own worker behind it."""
    first, arguments = worker_of(FakeEngine()), arguments_for(tmp_path_factory.mktemp("served") / "data")
    arguments.port = port
    with serving(arguments) as start:
        yield start(first)
    first.close()


@pytest.fixture
def visit(browser: Any, profiles: list[Any], served: Served, worker: EngineWorker) -> Iterator[Callable[..., "Page"]]:
    """Open the page in one more browser, which remembers nothing of it; it asks nobody outside."""
    from tests.browser.journeys.page import Page

    pages, site = list[Page](), served.site
    site.worker, site.downloads, site.rows = worker, Downloads(), ()
    site.__post_init__()

    def open_page(**screen: int) -> Page:
        if len(pages) == len(profiles):
            profiles.append(browser.new_context())
        tab = profiles[len(pages)].new_page()
        pages.append(Page(tab, served.address, **screen))
        return pages[-1]

    yield open_page
    for page in pages:
        page.tab.evaluate("localStorage.clear()")
        page.tab.context.clear_permissions()
        for tab in page.tab.context.pages:
            tab.close()
    assert not any(page.outside for page in pages), [page.outside for page in pages]


@pytest.fixture
def page(visit: Callable[..., "Page"]) -> "Page":
    return visit()
