"""The smallest real model from its offer to an answer: by the command, and by the button of the page."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from app.runtime.worker import EngineWorker
from core.config import EngineConfig
from core.engine import Engine
from core.models.hub.catalog import ROOT
from tests.app.conftest import serve as serve
from tests.app.documents.conftest import MakePdf, make_pdf, writer  # noqa: F401
from tests.app.fakes import GRADIO_WARNINGS
from tests.browser.conftest import browser as browser
from tests.browser.journeys.page import Page, expect, playwright
from tests.real.conftest import SMALLEST
from tests.real.test_answers import TEXT

pytestmark = [pytest.mark.real, *GRADIO_WARNINGS]
LONG = 300_000  # milliseconds: real weights are loaded
QUESTION = "What is the name of the keeper of the lighthouse?"


def launch(home: Path, *words: str) -> Any:
    """The JSON that a command prints, with models of its own."""
    done = subprocess.run(
        [sys.executable, "launch.py", *words, "--no-venv", "--json"],
        cwd=ROOT,
        env=os.environ | {"HF_HOME": str(home)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.usefixtures("smollm2")  # skipped where it cannot be fetched
def test_the_command_fetches_it_and_ask_answers_with_it(tmp_path: Path) -> None:
    (got,) = launch(tmp_path, "models", "get", SMALLEST)["repositories"]
    assert got["fetched_bytes"] == got["size_bytes"] == 98_362_432
    text = tmp_path / "note.txt"
    text.write_text(TEXT, encoding="utf-8")
    told = launch(tmp_path, "ask", str(text), "-q", QUESTION, "--model", SMALLEST, "--device", "cpu", "--no-saved")
    (answer,) = told["methods"].values()
    assert "Miriam Okafor" in answer["text"]


@pytest.mark.browser
@pytest.mark.usefixtures("smollm2")
def test_on_the_page_an_own_pdf_is_asked_about_after_one_click(
    browser: playwright.Browser,
    serve: Callable[[EngineWorker], str],
    start_worker: Callable[..., EngineWorker],
    make_pdf: MakePdf,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    address = serve(start_worker(Engine.load(EngineConfig(device="cpu", context=4096))))
    with browser.new_context() as context:
        reader = Page(context.new_page(), address)

        def sees(where: str, text: str) -> None:
            expect(reader.tab.locator(where)).to_contain_text(text, timeout=LONG)

        reader.reads(make_pdf(TEXT.splitlines()))
        reader.tab.locator(f'#model-offer [data-act="offer-get:{SMALLEST}"]').click()
        sees("#masthead .chip.model", SMALLEST)
        sees("#book", "Another model runs now")
        sees("#book", "Read once")
        reader.asks(QUESTION)
        sees("#chat", "Miriam Okafor")
        assert reader.outside == []
