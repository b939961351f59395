"""The served pages that the tests of the app use, and a browser."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.app.conftest import arguments as arguments
from tests.app.conftest import engine as engine
from tests.app.conftest import serve as serve
from tests.app.conftest import start_worker as start_worker
from tests.app.conftest import worker as worker
from tests.browser.journeys.conftest import page as page
from tests.browser.journeys.conftest import profile as profile
from tests.browser.journeys.conftest import served as served
from tests.browser.journeys.conftest import visit as visit


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from tests.browser.journeys.page import QUIET, playwright

    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)
        yield chromium
        chromium.close()
