"""What the page costs: the same answer alone and through the page, timed by the same clock."""

import gc
import os
import threading
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, cast

import pytest

from assets.tools.bench import page as page_cost
from assets.tools.bench.page import Run, ServedPage, Stopwatch, measure
from assets.tools.bench.table import table_line
from core.config import GenerationConfig, SamplingParams
from tests.app.fakes import GRADIO_WARNINGS, FakeEngine
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


def test_the_clock_runs_between_rounds_too(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(page_cost.time, "perf_counter", lambda: now[0])
    watch = Stopwatch(cast(Any, FakeEngine()), 5)
    watch.method = "autoregressive"
    lively = GenerationConfig(method="draft", max_new_tokens=999, sampling=SamplingParams(temperature=1.0))
    for _ in watch.generate([1, 2, 3], lively):
        now[0] += 0.010  # what whoever takes the event does with it
    # five tokens, a round each: four rounds after the first, each followed by 10 ms, and no time before the first
    assert watch.runs == [Run((1, 2, 3), tuple(range(1000, 1005)), pytest.approx(10 * 5 / 4))]
    config = cast(FakeEngine, watch._engine).configs[0]
    assert (config.method, config.max_new_tokens, config.sampling) == ("autoregressive", 5, SamplingParams())
    assert watch.context == 4096, "everything else is the engine's own"


def test_pairs_are_in_turns_and_ratios_are_of_pairs() -> None:
    order: list[str] = []

    class Page:
        watch = Stopwatch(cast(Any, None), 5)
        reader = SimpleNamespace(name="a browser")

        def through_page(self, question: str) -> Run:
            order.append("page")
            return Run((1,), (5, 6), 2.2 * len(order))

        def alone(self, prompt_ids: Any) -> Run:
            order.append("alone")
            return Run((1,), (5, 6), 2.0 * len(order))

    row = measure(cast(ServedPage, Page()), 8192, "triforce", "?", 4)
    assert order[2:] == ["page", "alone", "alone", "page", "page", "alone", "alone", "page"]
    ratios = [2.2 * 3 / (2 * 4), 2.2 * 6 / (2 * 5), 2.2 * 7 / (2 * 8), 2.2 * 10 / (2 * 9)]
    assert row.page_over_alone == pytest.approx(sum(sorted(ratios)[1:3]) / 2)
    assert row.page_over_alone_range == pytest.approx((min(ratios), max(ratios)))
