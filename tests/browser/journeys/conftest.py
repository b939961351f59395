"""What a journey begins with: a page of its own program, whose engine writes what the journey lays before it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from app.context.kept_documents import KeptDocuments
from app.conversations.store import Conversations
from app.runtime.downloads import Downloads
from app.runtime.worker import EngineWorker
from tests.app.conftest import Served, arguments_for, serving
from tests.app.fakes import FakeEngine, worker_of

if TYPE_CHECKING:  # they skip their tests where no browser is installed
    from tests.browser.journeys.page import Page


@pytest.fixture
def worker(engine: FakeEngine, tmp_path: Path) -> Iterator[EngineWorker]:
    """A worker whose conversations are kept in the test's own folder."""
    stored = Conversations(tmp_path / "conversations")
    kept = worker_of(engine, conversations=stored, kept=KeptDocuments(tmp_path / "texts"))
    yield kept
    kept.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page of a module's journeys, which is built once: each journey puts its own worker behind it."""
    first = worker_of(FakeEngine())
    with serving(arguments_for(tmp_path_factory.mktemp("served") / "data")) as start:
        yield start(first)
    first.close()


@pytest.fixture(scope="module")
def profile(browser: Any) -> Iterator[Any]:
    """A browser that has the page's scripts: fetched and compiled anew they are most of what a journey costs."""
    with browser.new_context() as context:
        yield context


@pytest.fixture
def visit(browser: Any, served: Served, worker: EngineWorker) -> Iterator[Callable[..., "Page"]]:
    """Open the page in this browser or a new one with these options; whatever happens there, it asks nobody outside."""
    from tests.browser.journeys.page import Page

    pages, site = list[Page](), served.site
    site.worker, site.downloads, site.rows = worker, Downloads(), ()
    site.__post_init__()

    def open_page(profile: Any = None, **options: Any) -> Page:
        pages.append(Page((profile or browser.new_context(**options)).new_page(), served.address))
        return pages[-1]

    yield open_page
    for context in {page.tab.context for page in pages if not page.tab.is_closed()}:
        context.close()
    assert not any(page.outside for page in pages), [page.outside for page in pages]


@pytest.fixture
def page(visit: Callable[..., "Page"], profile: Any) -> Iterator["Page"]:
    """The page in a browser that has seen it before, and remembers nothing of it."""
    page = visit(profile)
    yield page
    page.tab.evaluate("localStorage.clear()")
    page.tab.close()
    profile.clear_permissions()
