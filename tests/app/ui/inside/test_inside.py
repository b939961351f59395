"""Inside the speculation: charts and provenance as pure functions, and what the tab shows when."""

import re
from dataclasses import replace
from html import unescape
from typing import Any, cast
from xml.etree import ElementTree

import pytest

from app.context.context_documents import Library
from app.runtime.trace import Trace
from app.ui.charts import MOST_LABELS, Bar, Column, Segment, bars, columns
from app.ui.inside.view import EMPTY, SOURCES, positions_chart, provenance, rounds_chart, tiles, time_chart
from core.config import GenerationConfig
from core.decoding.stats import LevelStats, Origin
from core.generation.events import RoundDone, TokenRecord
from tests.app.fakes import Reader, finished, lane_stats
from tests.app.ui.pages import PageOf, text_of


def a_trace(text: str = "It was a dark and stormy night indeed", method: str = "triforce") -> Trace:
    """One token a word, written by everyone in turn."""
    trace = Trace(text, method)
    origins = [Origin(level, cast(Any, kind)) for level, kind in SOURCES]
    for number, word in enumerate(text.split(" ")):
        record = TokenRecord(number, f"{word} ", origins[number % len(origins)], number // 4, 0.93, 0.88)
        trace.apply(RoundDone(text=record.text, tokens=(record,), stats=lane_stats(number + 1, method)))
    return trace


def ended(trace: Trace) -> Trace:
    return trace.apply(replace(finished(trace.text, trace.method), stats=trace.stats))


def tags_of(html: str, name: str, kind: str = "") -> list[ElementTree.Element]:
    """The elements of a name, and of a class."""
    tree = ElementTree.fromstring(f"<div>{html.replace(' data-keep', '')}</div>")
    return [tag for tag in tree.iter(name) if kind in (tag.get("class") or "")]


def measured(tags: list[ElementTree.Element], side: str) -> list[float]:
    """Their heights or widths in percent."""
    return [float(re.findall(rf"{side}:([0-9.]+)%", tag.get("style") or "")[0]) for tag in tags]


def test_columns_and_bars_are_drawn_to_scale_and_named_for_everyone() -> None:
    html = columns("Title", "about it", "across", [Column("1", 4, 2, "50%", "2 of 4"), Column("2", 2, 2)], tone="draft")
    assert measured(tags_of(html, "div", "whole"), "height") == [100, 50]
    assert measured(tags_of(html, "i"), "height") == [50, 100]
    assert 'role="img" aria-label="Title. about it"' in html and "50%" in text_of(html)
    assert tags_of(html, "li")[0].get("title") == "1: 2 of 4" and "2 of 4" in text_of(html.split("<details")[1])
    data = [Bar("a", "4 ms", (Segment("draft", "D", 1, "1"), Segment("full", "F", 3, "3"))), Bar("b", "2 ms", ())]
    spans = tags_of(bars("Time", "", data), "span", "key")
    assert measured(spans, "width") == [25, 75] and [tag.get("title") for tag in spans] == ["D: 1", "F: 3"]


@pytest.mark.parametrize("data", [[], [Column("1", 0)], [Column(str(n), n, note="x") for n in range(200)]])
def test_charts_of_nothing_and_of_much_stay_in_their_box(data: list[Column]) -> None:
    html = columns("T", "", "x", data, tone="full")
    assert all(height <= 100 for height in measured(tags_of(html, "div", "whole"), "height"))
    assert len([tag for tag in tags_of(html, "span") if tag.text and tag.text.isdigit()]) <= MOST_LABELS
    assert not [tag for tag in tags_of(html, "small") if tag.text] and bars("T", "", [])


def test_the_charts_say_what_the_statistics_say() -> None:
    level = LevelStats(10, 40, 30, 20, (10, 8, 0), (9, 2, 0), {1: 2, 3: 7, 4: 1})
    assert "10 passes; most often 3 tokens at once" in text_of(rounds_chart(level))
    assert "most often" not in rounds_chart(replace(level, committed_per_round={2: 1, 5: 1, 8: 1})), "none is"
    said = [tag.get("title") for tag in tags_of(rounds_chart(level), "li")]
    assert said == ["1: 2 passes", "2: 0 passes", "3: 7 passes", "4: 1 pass"]
    places = text_of(positions_chart("1", level, "draft"))
    assert "90%" in places and "25%" in places and "2 of 8 accepted" in places and "of 0" not in places
    times = text_of(time_chart([a_trace(), a_trace(method="autoregressive")]))
    assert "20.0 ms a token" in times and "80.0 ms a token" in times and "Full cache 72.0 ms" in times
    assert "Read a token 4.00 MiB 4.00 times less than plain decoding" in text_of(tiles(a_trace()))
    trace = a_trace()
    trace.stats = replace(trace.stats, level1=LevelStats())
    assert "level 1 –" in text_of(tiles(trace)) and "Guesses a round – / 4.00" in text_of(tiles(trace)), "not used"


def test_provenance_tells_round_p_and_q_of_every_token_and_while_it_grows_of_the_newest() -> None:
    html = provenance(ended(a_trace()))
    tips = [unescape(tip) for tip in re.findall(r'data-tip="([^"]*)"', html)]
    assert tips[0] == "Draft, accepted|round 1 · p 0.93 · q 0.88" and len(tips) == 8 and "round 2" in tips[4]
    assert re.findall(r'<span class="t ([a-z-]+)"', html)[-1] == "full-bonus"
    assert "Corrected by the full cache 12%" in text_of(html)
    trace = a_trace("word " * 1000)
    assert provenance(trace).count("data-tip") == 400 and "(601 tokens before)" in provenance(trace)
    assert provenance(ended(trace)).count("data-tip") == 1001


def test_an_empty_shelf_empties_the_tab(reader: Reader) -> None:
    page = PageOf(reader.worker, reader.session.id)
    reader.asks("One?", config=GenerationConfig(max_new_tokens=2))
    reader.opens("Another book. " * 20, "other.txt")
    page.does("inside:triforce")  # of a race that is not there
    assert page.state("inside")["inside"] != EMPTY, "beside the first one it changes nothing"
    reader.arranges(lambda _: Library())
    assert page.state("inside")["inside"] == EMPTY
