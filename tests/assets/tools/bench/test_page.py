"""What the page costs: the same answer alone and through the page, timed by the same clock."""

import gc
import os
import threading
from dataclasses import asdict

import pytest

from assets.tools.bench.page import ServedPage, Stopwatch, measure
from assets.tools.bench.table import table_line
from tests.app.fakes import GRADIO_WARNINGS
from tests.core.toys import tiny_engine, with_words

pytestmark = GRADIO_WARNINGS


@pytest.mark.browser
def test_the_same_answer_alone_and_through_the_page() -> None:
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    environment = dict(os.environ)
    watch = Stopwatch(with_words(tiny_engine(context=2048)), 24)
    others = threading.enumerate()  # of tests before this one
    with ServedPage(watch) as page:
        folder = page.folder
        page.open_book("It was a dark and stormy night. " * 8, "book.txt")
        row = measure(page, 512, "triforce", "How was the night?", 1)
    del page
    gc.collect()  # Gradio leaves event loops lying about; better collected here than in an innocent test
    assert row.client.startswith("Chromium ") and row.method == "triforce" and row.same_tokens and row.new_tokens == 24
    assert row.alone_ms_per_token > 0 and row.page_ms_per_token > 0
    assert row.page_over_alone_range[0] <= row.page_over_alone <= row.page_over_alone_range[1]
    assert len(watch.runs) == 4 and len({run.prompt_ids for run in watch.runs}) == 1, "one prompt for all"
    assert dict(os.environ) == environment and not folder.exists(), "nothing stays"
    assert not [one for one in threading.enumerate() if one.name == "engine" and one not in others]
    head, cells = table_line(asdict(row), header=True).split("\n")
    assert head.split() == ["context", "method", "tokens", "alone", "ms", "page", "ms", "page/alone", "client", "same"]
    assert len(cells.split()) == 9 and len(head) == len(cells)
