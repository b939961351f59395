"""The served pages that the tests of the app use, and a browser."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.app.conftest import arguments as arguments
from tests.app.conftest import begin_worker as begin_worker
from tests.app.conftest import engine as engine
from tests.app.conftest import serve as serve
from tests.app.conftest import start_worker as start_worker
from tests.app.conftest import worker as worker
from tests.browser.journeys.conftest import page as page
from tests.browser.journeys.conftest import port as port
from tests.browser.journeys.conftest import served as served
from tests.browser.journeys.conftest import visit as visit
from tests.conftest import chromium


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
