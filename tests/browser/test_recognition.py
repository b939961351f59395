"""A scan in a real browser: offered, recognised, stopped, read; and the command where there is no engine."""

from collections.abc import Callable
from pathlib import Path

import pytest

from app.documents import ocr
from tests.app.documents import fake_ocr
from tests.app.documents.fake_ocr import GATE, MISSING, WAITS, write_scan
from tests.app.fakes import GRADIO_WARNINGS, FakeEngine
from tests.browser.test_page import Reader, browser, playwright, visit  # noqa: F401
from tests.browser.test_race import goes_to, too_wide

pytestmark = [pytest.mark.browser, *GRADIO_WARNINGS]


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, engine: FakeEngine) -> None:
    engine.context = 100_000
    fake_ocr.use(monkeypatch)
    monkeypatch.setattr(ocr, "PACE", ocr.Pace(20.0))


def test_a_scan_is_recognised_and_what_stop_leaves_is_offered_again(
    visit: Callable[[], Reader],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    monkeypatch.setenv(GATE, str(gate))
    reader = visit()
    reader.drops(write_scan(tmp_path / "scan.pdf", 60, 70, WAITS, 80))
    reader.sees("#book .problem", "4 of 4 pages are pictures.")
    reader.page.get_by_role("button", name="Recognise their text about 1 min 20 s").click()
    reader.sees("#book .arrival", "page 3 of 4")
    reader.sees("#book .arrival", "left")
    reader.page.set_viewport_size({"width": 360, "height": 740})
    assert too_wide(reader) <= 0
    reader.page.set_viewport_size({"width": 1280, "height": 800})
    reader.page.locator("#book .arrival").get_by_role("button", name="Stop").click()
    reader.sees("#book", "Read once")
    reader.sees("#book .warnings", "Recognised on pictures (OCR), so that letters may be wrong: pages 1–2.")
    reader.sees("#book .recognition", "2 of 4 pages are pictures.")
    gate.unlink()
    goes_to(reader, "Library")
    reader.page.locator("#library-list").get_by_role("button", name="Recognise their text").click()
    playwright.expect(reader.page.locator("#library-list .warnings")).to_contain_text("pages 1–4.")
    playwright.expect(reader.page.locator("#library-list .recognition")).to_have_count(0)
    reader.page.get_by_role("button", name="Preview scan").click()
    reader.sees("#library-preview .page-text", "A page of shade 60 lay on the table")
    assert reader.outside == []


def test_without_an_engine_the_page_names_one_command(
    visit: Callable[[], Reader],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(MISSING, "1")
    reader = visit()
    reader.drops(write_scan(tmp_path / "scan.pdf", 60))
    reader.sees("#book .problem code", "-m pip install -r requirements-ocr.txt")
    monkeypatch.delenv(MISSING)
    reader.page.get_by_role("button", name="Dismiss").click()
    reader.drops(tmp_path / "scan.pdf")
    reader.page.get_by_role("button", name="Recognise their text").click()
    reader.sees("#book", "Read once")
