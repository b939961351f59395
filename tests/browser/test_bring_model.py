"""A model that lies on this machine, in a browser: its path, its row, its use; wrong paths; what cannot be used."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.fakes import GRADIO_WARNINGS
from tests.browser.test_page import EVIL, Reader, browser, playwright, visit  # noqa: F401
from tests.core.models.hub.test_local import add, cache  # noqa: F401
from tests.thinkers import save_thinker

pytestmark = [pytest.mark.browser, *GRADIO_WARNINGS]


def brings(reader: Reader, path: object) -> None:
    box = reader.page.locator("#bring-path input, #bring-path textarea")
    box.fill(str(path))
    reader.page.locator("#bring-add").click()


def test_a_folder_is_brought_checked_and_used(visit: Callable[[], Reader], cache: Path, tmp_path: Path) -> None:  # noqa: F811
    folder = save_thinker(tmp_path / "My thinker")
    ears = add(cache, "openai/whisper-tiny")
    (ears / "config.json").write_text(json.dumps({"model_type": "whisper", "architectures": ["WhisperModel"]}))
    reader = visit()
    reader.page.get_by_role("tab", name="System").click()
    reader.sees("#models", "harbour")
    brings(reader, f"{tmp_path}/{EVIL}")
    reader.sees("#models-doing", "There is nothing at")
    brings(reader, folder)
    reader.sees("#models-doing", "My thinker is on the list below")
    reader.sees("#models", "Brought from")
    reader.sees("#models .unusable summary", "1 more model on this disk that cannot be used")
    reader.page.locator("#models .unusable summary").click()
    reader.sees("#models .unusable", "openai/whisper-tiny")
    reader.page.reload()
    reader.page.get_by_role("tab", name="System").click()
    reader.page.get_by_role("button", name="Use My thinker").click()
    reader.sees("#masthead", "My thinker")
    reader.page.get_by_role("tab", name="Read").click()
    reader.page.locator("#settings > button").click()
    playwright.expect(reader.page.locator("#thinking")).to_contain_text("As set up (on)")
    assert reader.page.evaluate("window.hacked") is None
    assert reader.outside == []
