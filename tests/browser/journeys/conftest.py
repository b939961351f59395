"""What a journey begins with: a page served for it alone, on an engine that writes what the journey lays before it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from app.context.kept_documents import KeptDocuments
from app.conversations.store import Conversations
from app.runtime.worker import EngineWorker
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


@pytest.fixture
def visit(browser: Any, serve: Callable[[EngineWorker], str], worker: EngineWorker) -> Iterator[Callable[..., "Page"]]:
    """Open the page in a browser of its own, with these options; whatever happens there, it asks nobody outside."""
    from tests.browser.journeys.page import Page

    address, contexts, pages = serve(worker), list[Any](), list[Page]()

    def open_page(**options: Any) -> Page:
        contexts.append(browser.new_context(**options))
        pages.append(Page(contexts[-1].new_page(), address))
        return pages[-1]

    yield open_page
    for context in contexts:
        context.close()
    assert not any(page.outside for page in pages), [page.outside for page in pages]


@pytest.fixture
def page(visit: Callable[..., "Page"]) -> "Page":
    return visit()
