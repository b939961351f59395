"""Journeys of a reader whose model is a demonstration: a full one is offered, fetched and used, or declined."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.config import EngineConfig
from core.planning.hardware import Machine
from tests.app.fakes import MACHINE, FakeEngine, write_book
from tests.app.ui.models.conftest import gate, toys  # noqa: F401
from tests.browser.journeys.page import JOURNEY, PHONE, Page, expect
from tests.core.models.hub.test_download import hub  # noqa: F401
from tests.core.models.hub.toy_hub import ToyHub

pytestmark = JOURNEY
TWO_LINES = 72  # pixels: what is wrong, and what helps


@pytest.fixture
def bundled(engine: FakeEngine, toys: ToyHub, monkeypatch: pytest.MonkeyPatch) -> ToyHub:  # noqa: F811
    """The engine is a bundled demonstration model; a hub has another one."""

    def load(config: EngineConfig) -> tuple[FakeEngine, Machine]:
        other = FakeEngine(has_draft=False)
        other.info.model = config.model
        return other, MACHINE

    monkeypatch.setattr("app.server.serve_page.load", load)
    engine.info.limits = "Bundled demonstration model"
    return toys


def wish(page: Page) -> Any:
    return page.offer.get_by_role("button", name="Download tiny")


def test_a_full_model_is_offered_fetched_and_used(
    bundled: ToyHub,
    gate: threading.Event,  # noqa: F811
    visit: Callable[..., Page],
    tmp_path: Path,
) -> None:
    page = visit(width=1360, height=860)
    expect(page.offer).to_have_count(0)
    page.reads(write_book(tmp_path))
    expect(page.offer).to_contain_text("tiny suits this machine best")
    assert bundled.tokens == [], "the hub was asked before the button was pressed"
    bounds = page.offer.bounding_box()
    assert bounds and bounds["height"] <= TWO_LINES
    wish(page).click()
    expect(page.offer).to_contain_text("Downloading tiny")
    other = visit()
    other.opens(write_book(tmp_path, "Then came the day. " * 9, "day.txt"))
    expect(other.offer).to_contain_text("Downloading tiny")
    gate.set()
    for one in (page, other):
        expect(one.facts).to_contain_text("tiny")
        expect(one.offer).to_have_count(0)
    expect(page.place("radio", "Lookup")).to_be_checked()


def test_a_declined_offer_stays_away_in_this_browser(
    bundled: ToyHub, visit: Callable[..., Page], tmp_path: Path
) -> None:
    page, other = visit(**PHONE), visit()
    page.reads(write_book(tmp_path))
    page.fits_its_width()
    page.presses("Not now", page.offer)
    expect(wish(page)).to_be_hidden()
    later = Page(page.tab.context.new_page(), page.tab.url)  # another day
    for one in (later, other):
        one.reads(write_book(tmp_path))
        expect(one.offer).to_be_visible()
    expect(wish(other)).to_be_visible()
    expect(wish(later)).to_be_hidden()
